"""Workers on Spark: every task is a Spark job of its own, so that results can be taken in order while others are made."""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
import warnings
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self

from ringflow.base.errors import FailureError, UsageError
from ringflow.infer.carried import CarriedModel
from ringflow.infer.remote import framework, one_line, require_answer, split_address
from ringflow.infer.shards import Answer, ShardSource, ShardTask, reconstruct_shard

_SECONDS_FOR_WORKERS = 60.0
_LOOPBACK = ("localhost", "127.0.0.1")
#: What Spark says of a Python process or an executor that is gone.
_SIGNS_OF_DEATH = ("Python worker exited unexpectedly", "ExecutorLostFailure", "Python worker failed to connect back")


class SparkCluster:
    """The workers of a Spark master, or of a session that is open in this process, which then stays open."""

    def __init__(self, master: str | None, workers: int | None, source: ShardSource, model: CarriedModel) -> None:
        self._session, self._ours = open_spark(master, workers)
        self._context = self._session.sparkContext
        self._asked = workers
        try:
            _await_workers(self._context)
            self._told = self._context.broadcast((source, model))
        except BaseException:
            self._end()
            raise
        self._group = f"ringflow-{uuid.uuid4().hex}"
        self._threads = ThreadPoolExecutor(256, "ringflow-spark")

    @property
    def workers(self) -> int:
        """Tasks that Spark runs at a time; it grows while workers come."""
        return self._asked or int(self._context.defaultParallelism)

    @property
    def at_once(self) -> int:
        """Twice as many: a job takes a tenth of a second to start, and nobody shall wait for it."""
        return 2 * self.workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if not self._stopped():
            if self._ours:
                self._context.setLogLevel("OFF")  # jobs that end with it complain on many lines
            self._context.cancelJobGroup(self._group)
        self._end()

    def submit(self, task: ShardTask) -> Future[Answer]:
        """Start a job."""
        return self._threads.submit(self._run, task)

    def explain(self, error: Exception) -> FailureError:
        """What went wrong, in one line."""
        text = str(error)
        if "No module named 'ringflow'" in text:
            return FailureError(
                "the workers' Python has no ringflow; install it there, or set PYSPARK_PYTHON to one that has"
            )
        if any(sign in text for sign in _SIGNS_OF_DEATH):
            return FailureError(
                "workers died again and again, perhaps for want of memory; use fewer --workers and run the same command "
                "again: it goes on where it stopped"
            )
        if self._stopped():
            return FailureError("Spark was stopped meanwhile; run the same command again: it goes on where it stopped")
        return FailureError(f"Spark failed ({one_line(text)}); run the same command again: it goes on where it stopped")

    def _run(self, task: ShardTask) -> Answer:
        self._context.setJobGroup(self._group, "ringflow reconstruct", interruptOnCancel=True)
        [answer] = self._context.runJob(self._context.parallelize([task], 1), partial(_work, self._told))
        made: Answer = answer
        return made

    def _stopped(self) -> bool:
        return self._context._jsc is None or bool(self._context._jsc.sc().isStopped())

    def _end(self) -> None:
        if self._ours:
            self._session.stop()


def _work(told: Any, tasks: Iterable[ShardTask]) -> list[Answer]:
    """What an executor does."""
    source, model = told.value
    return [reconstruct_shard(source, model, task) for task in tasks]


def open_spark(master: str | None = None, workers: int | None = None) -> tuple[Any, bool]:
    """A session at a master, on this machine unless given, and whether it was opened here.

    The session that this process has already is taken as it is.
    """
    framework("pyspark", "spark")
    with warnings.catch_warnings():
        # Said of pandas 3 whenever Spark meets Arrow; pandas has no part in what is done here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        if (there := SparkContext._active_spark_context) is not None:
            if master not in (None, there.master):
                raise UsageError(
                    f"this process has a session at {there.master}; stop it before you open one at {master}"
                )
            return SparkSession.builder.getOrCreate(), False
        master = master or f"local[{workers or '*'}]"
        _require_master(master)
        _require_java()
        # The same Python on both sides; an environment of one's own for the workers is left as it is.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        builder = SparkSession.builder.appName("ringflow")
        for name, value in _settings(master, workers).items():
            builder = builder.config(name, value)
        try:
            return builder.getOrCreate(), True
        except Exception as error:  # of Python, or of Java through a bridge that has errors of its own
            raise _no_session(master, str(error)) from None


def _no_session(master: str, reason: str) -> FailureError:
    if "JAVA_GATEWAY_EXITED" in reason:
        return FailureError(
            "Spark does not start; it needs Java 17 or later: see what it says above, and set JAVA_HOME"
        )
    if "stopped SparkContext" in reason:
        return FailureError(f"{master} answers but takes no work; is it a Spark master, of the version installed here?")
    return FailureError(f"no Spark session at {master} ({one_line(reason)}); see what Spark says above")


def _settings(master: str, workers: int | None) -> dict[str, str]:
    settings = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if workers and not master.startswith("local"):
        settings["spark.cores.max"] = settings["spark.executor.instances"] = str(workers)
    hosts = [host for host, _ in _standalone(master)]
    if master.startswith("local") or (hosts and all(host in _LOOPBACK for host in hosts)):
        # The name of a laptop leads nowhere often enough.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


def _standalone(master: str) -> list[tuple[str, int]]:
    """Hosts and ports of the masters in `spark://host:port,host:port`."""
    if not master.startswith("spark://"):
        return []
    addresses = [split_address(part) for part in master.removeprefix("spark://").split(",")]
    if None in addresses:
        raise UsageError(f"{master} is no Spark master; give spark://HOST:PORT, the port is 7077 unless chosen")
    return [address for address in addresses if address is not None]


def _require_master(master: str) -> None:
    if not master.startswith(("spark://", "local", "yarn", "k8s://")):
        raise UsageError(f"{master} is no Spark master; give spark://HOST:PORT, local[2], yarn or k8s://URL")
    problems = []
    for host, port in _standalone(master):
        try:
            require_answer("Spark master", host, port, "start it, or leave --master out to use this machine").close()
            return
        except FailureError as problem:
            problems.append(problem)
    if problems:
        raise problems[0]


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        where = f"JAVA_HOME={home} has none" if home else "there is none"
        raise FailureError(f"Spark needs Java 17 or later, and {where}; install a Java runtime or set JAVA_HOME to it")


def _await_workers(context: Any) -> None:
    """Wait until there is a worker: Spark itself would wait for ever."""
    if context.master.startswith("local"):
        return
    until = time.monotonic() + _SECONDS_FOR_WORKERS
    while context._jsc.sc().getExecutorMemoryStatus().size() < 2:  # the first is this process
        if context._jsc.sc().isStopped():
            raise _no_session(context.master, "stopped SparkContext")
        if time.monotonic() > until:
            raise FailureError(
                f"{context.master} has no free worker since {_SECONDS_FOR_WORKERS:.0f} s; start one, or end other work on it"
            )
        time.sleep(0.1)
