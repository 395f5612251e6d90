"""Work on a dataset in pieces of one shard: what a worker is told, what it does, what it answers.

A shard holds whole blocks, and a block is computed as a whole; so the numbers are those of one process that takes the blocks
one after the other. Workers read the shards themselves: they see the dataset at the same path as the driver does.
"""

from __future__ import annotations

import copy
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ringflow.base.errors import DatasetError, FailureError, RingflowError
from ringflow.data.manifest import MANIFEST_FILE, manifest_hash
from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock
from ringflow.infer.carried import CarriedModel, worker_session
from ringflow.infer.engine import after, made_of


@dataclass(frozen=True)
class ShardSource:
    """A dataset, or one of its splits, as workers find it."""

    path: str
    manifest_sha256: str
    split: str | None = None

    @classmethod
    def of(cls, dataset: Dataset, split: str | None = None) -> ShardSource:
        """That of an open dataset."""
        return cls(str(dataset.path.resolve()), manifest_hash(dataset.path), split)

    def blocks(self, shard: int, columns: Sequence[str]) -> Iterator[EventBlock]:
        """The events of one shard."""
        dataset = copy.copy(_open(self.path, self.manifest_sha256))
        dataset.manifest = dataset.manifest.model_copy(update={"shards": (dataset.manifest.shards[shard],)})
        return dataset.events(self.split, columns)


@dataclass(frozen=True)
class ShardTask:
    """Events `start` to `stop` of one shard, counted in the source; `start` is that of a block."""

    shard: int
    start: int
    stop: int


#: What comes back from a worker; an error as a value, because frameworks wrap what is raised and try it again.
Answer = list[EventBlock] | RingflowError


def shard_tasks(dataset: Dataset, split: str | None, events: int, done: int = 0) -> Iterator[ShardTask]:
    """The first `events` events shard by shard, without the first `done` of them."""
    first = 0
    for index, shard in enumerate(dataset.manifest.shards):
        there = shard.num_events if split is None else shard.splits[split]
        start, stop = max(done - first, 0), min(events - first, there)
        if start < stop:
            yield ShardTask(index, start, stop)
        first += there


def reconstruct_shard(source: ShardSource, model: CarriedModel, task: ShardTask) -> Answer:
    """The candidates of a task, made in a worker process."""
    try:
        session = worker_session(model)
        blocks = list(made_of(session, _first(source.blocks(task.shard, list(session.kinds)), task)))
    except RingflowError as error:
        return error
    if (found := sum(map(len, blocks))) != task.stop - task.start:
        return DatasetError(
            f"shard {task.shard} of {source.path} has {task.start + found} events instead of {task.stop}; "
            "make the dataset again"
        )
    return blocks


def _first(blocks: Iterator[EventBlock], task: ShardTask) -> Iterator[EventBlock]:
    """The blocks of a task; the last one is cut where the task ends."""
    left = task.stop - task.start
    for block in after(blocks, task.start):
        yield block.take(0, min(len(block), left))
        left -= len(block)
        if left <= 0:
            return


@lru_cache(maxsize=2)
def _open(path: str, manifest_sha256: str) -> Dataset:
    """The dataset as this process sees it, opened once."""
    folder = Path(path)
    if not (folder / MANIFEST_FILE).is_file():
        raise FailureError(
            f"a worker on {socket.gethostname()} cannot see the dataset {path}; put it on a file system that all workers "
            "see at the same path"
        )
    if manifest_hash(folder) != manifest_sha256:
        raise FailureError(
            f"a worker on {socket.gethostname()} sees another dataset at {path}; put it on a file system that all workers "
            "share"
        )
    return Dataset(folder)
