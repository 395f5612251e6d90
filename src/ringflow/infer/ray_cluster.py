"""Workers on Ray: every task is a Ray task; its workers keep the model between tasks, and are replaced when they die."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Self

from ringflow.base.errors import FailureError
from ringflow.infer.carried import CarriedModel
from ringflow.infer.shards import Answer, ShardSource, ShardTask, reconstruct_shard
from ringflow.launch.frameworks import one_line
from ringflow.launch.ray_session import open_ray

#: How often a task is given to another worker when the first one dies.
_NEW_TRIES = 3


class RayCluster:
    """The workers of a Ray cluster, or of the one that this process is connected to, which then stays connected."""

    def __init__(self, address: str | None, workers: int | None, source: ShardSource, model: CarriedModel) -> None:
        self._ray, self._ours = open_ray(address, workers)
        self.workers = workers or max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        self.at_once = self.workers
        self._told = self._ray.put((source, model))
        self._work = self._ray.remote(num_cpus=1, max_retries=_NEW_TRIES)(_work)
        self._under_way: set[Any] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for task in list(self._under_way):
            self._ray.cancel(task)
        if self._ours:
            self._ray.shutdown()

    def submit(self, task: ShardTask) -> Future[Answer]:
        """Start a task."""
        reference = self._work.remote(self._told, task)
        self._under_way.add(reference)
        future: Future[Answer] = reference.future()
        # Whoever holds a reference keeps the result in Ray's memory.
        future.add_done_callback(lambda _: self._under_way.discard(reference))
        return future

    def explain(self, error: Exception) -> FailureError:
        """What went wrong, in one line."""
        if "No module named 'ringflow'" in str(error):
            return FailureError("the workers' Python has no ringflow; install it on every node of the cluster")
        if isinstance(error, (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.OutOfMemoryError)):
            return FailureError(
                "workers died again and again, perhaps for want of memory; use fewer --workers and run the same command "
                "again: it goes on where it stopped"
            )
        reason = one_line(str(error))
        return FailureError(f"Ray failed ({reason}); run the same command again: it goes on where it stopped")


def _work(told: tuple[ShardSource, CarriedModel], task: ShardTask) -> Answer:
    """What a worker does."""
    source, model = told
    return reconstruct_shard(source, model, task)
