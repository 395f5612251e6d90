"""A session of Spark: the one that is open in this process, or one at a master that answers."""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from ringflow.base.errors import FailureError, UsageError
from ringflow.launch.frameworks import framework, one_line, require_answer, split_address

_SECONDS_FOR_WORKERS = 60.0
#: Seconds without a new worker after which no more are expected: those of a standalone master start all at once.
_SECONDS_FOR_MORE = {"spark://": 10.0}
_LOOPBACK = ("localhost", "127.0.0.1")


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
        require_master(master)
        require_java()
        # The same Python on both sides; an environment of one's own for the workers is left as it is.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        builder = SparkSession.builder.appName("ringflow")
        for name, value in _settings(master, workers).items():
            builder = builder.config(name, value)
        try:
            return builder.getOrCreate(), True
        except Exception as error:  # of Python, or of Java through a bridge that has errors of its own
            raise no_session(master, str(error)) from None


def no_session(master: str, reason: str) -> FailureError:
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


def require_master(master: str) -> None:
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


def require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        where = f"JAVA_HOME={home} has none" if home else "there is none"
        raise FailureError(f"Spark needs Java 17 or later, and {where}; install a Java runtime or set JAVA_HOME to it")


def await_workers(context: Any) -> None:
    """Wait until there is a worker: Spark itself would wait for ever."""
    if context.master.startswith("local"):
        return
    until = time.monotonic() + _SECONDS_FOR_WORKERS
    while context._jsc.sc().getExecutorMemoryStatus().size() < 2:  # the first is this process
        if context._jsc.sc().isStopped():
            raise no_session(context.master, "stopped SparkContext")
        if time.monotonic() > until:
            raise FailureError(
                f"{context.master} has no free worker since {_SECONDS_FOR_WORKERS:.0f} s; start one, or end other work on it"
            )
        time.sleep(0.1)


def require_slots(context: Any, wanted: int) -> None:
    """Wait until so many tasks can run at once; an error when no more come, for Spark itself would try for minutes."""
    await_workers(context)
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    seconds = next(
        (s for start, s in _SECONDS_FOR_MORE.items() if context.master.startswith(start)), _SECONDS_FOR_WORKERS
    )
    slots, since = 0, time.monotonic()
    while (found := int(scala.maxNumConcurrentTasks(profile))) < wanted:
        if found != slots:
            slots, since = found, time.monotonic()
        if context.master.startswith("local") or time.monotonic() - since > seconds:
            raise FailureError(
                f"{wanted} workers do not fit: {context.master} has {found} free slots; use --workers {max(found, 1)}, or "
                "give it more cores"
            )
        time.sleep(0.1)
