"""Workers on Spark: every task is a Spark job of its own, so that results can be taken in order while others are made."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Self

from ringflow.base.errors import FailureError
from ringflow.infer.carried import CarriedModel
from ringflow.infer.shards import Answer, ShardSource, ShardTask, reconstruct_shard
from ringflow.launch.frameworks import one_line
from ringflow.launch.spark_session import await_workers, open_spark

#: What Spark says of a Python process or an executor that is gone.
_SIGNS_OF_DEATH = ("Python worker exited unexpectedly", "ExecutorLostFailure", "Python worker failed to connect back")


class SparkCluster:
    """The workers of a Spark master, or of a session that is open in this process, which then stays open."""

    def __init__(self, master: str | None, workers: int | None, source: ShardSource, model: CarriedModel) -> None:
        self._session, self._ours = open_spark(master, workers)
        self._context = self._session.sparkContext
        self._asked = workers
        try:
            await_workers(self._context)
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
