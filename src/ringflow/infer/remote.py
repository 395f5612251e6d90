"""Reconstruct on a cluster: workers make the candidates of one shard at a time, this process puts them in order.

Results come as workers finish; few are kept waiting for those before them, so that memory does not grow with the dataset.
"""

from __future__ import annotations

import importlib
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Protocol, Self

from ringflow.base.errors import FailureError, RingflowError
from ringflow.event.block import EventBlock
from ringflow.infer.carried import CarriedModel
from ringflow.infer.shards import Answer, ShardSource, ShardTask

#: Where a reconstruction can run.
PLACES = ("here", "spark", "ray")
#: Results that may wait for those before them, per task that is under way.
_KEPT_WAITING = 3
_SECONDS_TO_ANSWER = 5.0


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


def framework(module: str, extra: str) -> Any:
    """A module of an extra, or one line that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = (error.name or module).split(".")[0]
        raise FailureError(f"{name} is not installed; pip install 'ringflow[{extra}]'") from None


def one_line(text: str) -> str:
    """The beginning of what a framework says on many lines."""
    return " ".join(text.split())[:160]


def require_answer(what: str, host: str, port: int, advice: str) -> socket.socket:
    """A connection to what listens there, made before a framework tries it for minutes."""
    try:
        return socket.create_connection((host, port), _SECONDS_TO_ANSWER)
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise FailureError(f"no {what} answers at {host}:{port} ({reason}); {advice}") from None


def split_address(address: str) -> tuple[str, int] | None:
    """Host and port of `host:port`; None if it is no such thing."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return host.strip("[]"), int(port)
