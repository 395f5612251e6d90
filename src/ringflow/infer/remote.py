"""Reconstruct on a cluster: workers make the candidates of one shard at a time, this process puts them in order.

Results come as workers finish; few are kept waiting for those before them, so that memory does not grow with the dataset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Protocol, Self

from ringflow.base.errors import FailureError, RingflowError
from ringflow.event.block import EventBlock
from ringflow.infer.carried import CarriedModel
from ringflow.infer.shards import Answer, ShardSource, ShardTask

#: Where a reconstruction can run.
PLACES = ("here", "spark", "ray")
#: Results that may wait for those before them, per task that is under way.
_KEPT_WAITING = 3


@dataclass(frozen=True)
class Place:
    """Where to reconstruct: `here`, or on `workers` of a cluster at an address, which is this machine unless given."""

    on: str = "here"
    address: str | None = None
    workers: int | None = None


HERE = Place()


class Cluster(Protocol):
    """Workers that reconstruct shards; leaving the context ends what was started for it."""

    @property
    def workers(self) -> int:
        """Tasks that are worked on at a time."""

    @property
    def at_once(self) -> int:
        """Tasks to hand out at a time: enough to keep the workers busy."""

    def __enter__(self) -> Self:
        """Ready to take tasks."""

    def __exit__(self, *_: object) -> None:
        """Stop everything that is under way."""

    def submit(self, task: ShardTask) -> Future[Answer]:
        """Start a task."""

    def explain(self, error: Exception) -> FailureError:
        """In one line, what the framework raised."""


def open_cluster(place: Place, source: ShardSource, model: CarriedModel) -> Cluster:
    """The workers of a place, told what to work on."""
    if place.on == "spark":
        from ringflow.infer.spark_cluster import SparkCluster

        return SparkCluster(place.address, place.workers, source, model)
    from ringflow.infer.ray_cluster import RayCluster

    return RayCluster(place.address, place.workers, source, model)


def reconstruct_on(cluster: Cluster, tasks: Iterable[ShardTask]) -> Iterator[EventBlock]:
    """The candidates of tasks, in their order."""
    for future in _in_order(cluster, iter(tasks)):
        try:
            answer = future.result()
        except Exception as error:
            raise cluster.explain(error) from error
        if isinstance(answer, RingflowError):
            raise answer
        yield from answer


def _in_order(cluster: Cluster, tasks: Iterator[ShardTask]) -> Iterator[Future[Answer]]:
    given: deque[Future[Answer]] = deque()
    while True:
        under_way = [future for future in given if not future.done()]
        while len(under_way) < cluster.at_once and len(given) < _KEPT_WAITING * cluster.at_once:
            if (task := next(tasks, None)) is None:
                break
            given.append(cluster.submit(task))
            under_way.append(given[-1])
        if not given:
            return
        if given[0].done():
            yield given.popleft()
        else:
            wait(under_way, return_when=FIRST_COMPLETED)
