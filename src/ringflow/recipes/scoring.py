"""Score the shards of a dataset, in this process or in several: reconstruct, compare with the truth, count."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from ringflow.base.errors import DatasetError, FailureError
from ringflow.data.candidates import CandidateFile
from ringflow.data.read import Dataset
from ringflow.evaluate.candidates import checked, has_truth
from ringflow.evaluate.measure import measure
from ringflow.evaluate.sheet import Sheet, Truth
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.recipes.reconstructions import Reconstruct, columns_for, open_reconstruction

#: Blocks are compared with the truth in groups of at least so many events: matrix products like them large.
EVENTS_AT_ONCE = 250
_TRUTH = ("particle", "target")


@dataclass(frozen=True)
class ShardTask:
    """The first `events` events of (a split of) one shard, and the reconstructions to score."""

    dataset: Path
    shard: int
    events: int
    split: str | None
    reconstructions: tuple[str, ...]
    files: tuple[tuple[str, Path], ...]
    model: Path | None = None  # the shipped one unless given


def score_shards(tasks: Sequence[ShardTask], workers: int) -> Iterator[dict[str, Sheet]]:
    """The sheets of every task by reconstruction, in the order of the tasks."""
    if workers == 1 or len(tasks) <= 1:
        yield from map(score_shard, tasks)
        return
    # Ctrl-C reaches all processes: only the parent answers, and ends the others.
    pool = ProcessPoolExecutor(
        min(workers, len(tasks)),
        mp_context=get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        yield from pool.map(score_shard, tasks)
    except BrokenProcessPool:
        raise FailureError("a worker ended unexpectedly, perhaps for want of memory; use fewer workers") from None
    finally:
        pool.shutdown(cancel_futures=True)


def score_shard(task: ShardTask) -> dict[str, Sheet]:
    """One sheet per reconstruction."""
    dataset = _one_shard(task)
    sample, truth_known = dataset.manifest.sample, has_truth(dataset)
    sheets = {name: Sheet.empty(sample, has_truth=truth_known) for name in task.reconstructions}
    for block in _chunks(dataset, task):
        truth = Truth.of(block) if truth_known else None
        for name, sheet in sheets.items():
            reco = checked(block[_key(name)], block.event_number, name)
            measure(sheet, sample, block.event_number, truth, reco)
    return sheets


def first_event(task: ShardTask) -> tuple[EventBlock, dict[str, Collection]]:
    """The first event of a task with all its columns, and the candidates of every reconstruction, to be drawn."""
    dataset = _one_shard(task)
    event = next(dataset.events(task.split)).take(0, 1)
    return event, {name: _make(name, maker, event) for name, maker in _makers(dataset, task).items()}


def _one_shard(task: ShardTask) -> Dataset:
    """The dataset as if it had one shard only."""
    dataset = Dataset(task.dataset)
    dataset.manifest = dataset.manifest.model_copy(update={"shards": (dataset.manifest.shards[task.shard],)})
    return dataset


def _chunks(dataset: Dataset, task: ShardTask) -> Iterator[EventBlock]:
    """Blocks of `EVENTS_AT_ONCE` events or more with their truth and the candidates of every reconstruction."""
    made_here = tuple(name for name in task.reconstructions if name not in dict(task.files))
    present = columns_for(dataset, made_here, task.model)
    columns = [f"{name}_{column}" for name, part in present.items() for column in part]
    makers = _makers(dataset, task)
    waiting: list[EventBlock] = []
    left = task.events
    for block in dataset.events(task.split, columns):
        waiting.append(_reconstruct(block.take(0, min(len(block), left)), makers))
        left -= len(waiting[-1])
        if not left or sum(map(len, waiting)) >= EVENTS_AT_ONCE:
            yield concatenate(waiting)
            waiting = []
        if not left:
            return


def _makers(dataset: Dataset, task: ShardTask) -> dict[str, Reconstruct | CandidateFile]:
    files, detector = dict(task.files), dataset.manifest.detector
    return {
        name: CandidateFile(files[name]) if name in files else open_reconstruction(name, detector, task.model)
        for name in task.reconstructions
    }


def _reconstruct(block: EventBlock, makers: dict[str, Reconstruct | CandidateFile]) -> EventBlock:
    """The truth of a block and all candidates; what they were made of is let go."""
    kept = {name: block[name] for name in _TRUTH if name in block}
    for name, maker in makers.items():
        kept[_key(name)] = _momenta_only(_make(name, maker, block))
    return EventBlock(block.event_number, kept)


def _make(name: str, maker: Reconstruct | CandidateFile, block: EventBlock) -> Collection:
    if isinstance(maker, CandidateFile):
        return maker.select(block.event_number)
    try:
        return maker(block)
    except KeyError as missing:  # outside data need not have every column
        raise DatasetError(
            f"{name} needs the column {missing}, which the dataset lacks; name the others with --reconstructions"
        ) from None


def _momenta_only(made: Collection) -> Collection:
    return Collection(made.counts, {name: made[name] for name in ("label", "px", "py", "pz", "energy")})


def _key(reconstruction: str) -> str:
    """A reconstruction may be called like a collection."""
    return f"candidates of {reconstruction}"
