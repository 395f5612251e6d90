"""Where a training gets its events: datasets on disk, or the simulation running beside it.

`data` is a list of dataset folders, separated by commas, or `sim:` and names of samples. Validation events are never trained
on: the `valid` split of datasets, or a stream of simulated events with a seed of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.log import progress
from ringflow.data.chunks import (
    ALL,
    Ahead,
    DatasetChunks,
    Lane,
    describe,
    from_tensors,
    require_learnable,
    training_columns,
)
from ringflow.data.manifest import manifest_hash
from ringflow.data.read import TRUTH_COLUMNS, Dataset, has_truth
from ringflow.elements.batch import ElementBatch, build, from_block, join, target_collection
from ringflow.event.block import EventBlock, concatenate
from ringflow.sim.detector import Detector
from ringflow.sim.generator import GeneratedEvents, block_seed, sample
from ringflow.sim.geometry import load_detector
from ringflow.train import collisions
from ringflow.train.collisions import TRAINING, VALIDATION, Stream, start_workers, stream_seed
from ringflow.train.settings import TrainSettings

SIMULATED = "sim:"
_VALIDATION_BLOCK = 50


@dataclass(frozen=True)
class TrainingData:
    """What a training is fed with."""

    #: By lane.
    sources: dict[int, DatasetChunks | SimulatedChunks]
    validation: ElementBatch
    #: The validation events by sample, for figures of jets; empty where there is no truth to compare with.
    blocks: dict[str, EventBlock]
    #: For the card of the model.
    description: list[dict[str, Any]]


@contextmanager
def open_training_data(
    settings: TrainSettings, device: torch.device, folder: Path, lanes: Sequence[int] = (0,)
) -> Iterator[TrainingData]:
    """The events of some lanes of a training, until the context is left; `folder` takes what a dataset that cannot be written
    to may not."""
    with ExitStack() as ending:
        if settings.data.startswith(SIMULATED):
            workers = start_workers(settings.source.workers)
            ending.callback(workers.shutdown, cancel_futures=True)
            data = _simulated(settings, device, workers, lanes)
        else:
            workers, data = None, _from_datasets(settings, folder, lanes)
        for source in data.sources.values():
            ending.callback(source.close)
        if workers is not None:  # first of all, or the sources would wait for all that was begun
            ending.callback(workers.shutdown, cancel_futures=True)
        yield data


def require_data(settings: TrainSettings) -> None:
    """Refuse data that do not exist or cannot be learned from, before anything is made."""
    if settings.data.startswith(SIMULATED):
        for name in _names(settings.data):
            sample(name)
        load_detector(settings.detector)
    else:
        for name in _names(settings.data):
            require_learnable(Dataset(name), detector_name(settings.detector), settings.model.calorimeter)


def fingerprint(settings: TrainSettings) -> list[str]:
    """What tells these data from others that lie at the same place."""
    if settings.data.startswith(SIMULATED):
        return [settings.data]
    return [manifest_hash(Path(name)) for name in _names(settings.data)]


def describe_data(settings: TrainSettings) -> list[dict[str, Any]]:
    """What to remember of the data: which datasets in which version, or which streams of simulated events."""
    names = _names(settings.data)
    if not settings.data.startswith(SIMULATED):
        return [describe(Dataset(name)) for name in names]
    streams = [(name, stream_seed(settings.seed, TRAINING, name)) for name in names]
    return [{"simulated": name, "detector": settings.detector, "seed": seed} for name, seed in streams]


def _simulated(
    settings: TrainSettings, device: torch.device, workers: ProcessPoolExecutor, lanes: Sequence[int]
) -> TrainingData:
    names = _names(settings.data)
    source, calorimeter = settings.source, settings.model.calorimeter
    size = min(source.block_events, max(source.chunk_events // len(names), 1))
    training = [Stream(name, settings.detector, stream_seed(settings.seed, TRAINING, name), size) for name in names]
    detector = None if device.type == "cpu" else Detector(load_detector(settings.detector), str(device))
    chunks: dict[int, DatasetChunks | SimulatedChunks] = {
        lane: SimulatedChunks(
            training,
            workers,
            calorimeter=calorimeter,
            chunk_events=source.chunk_events,
            detector=detector,
            lane=Lane(lane, max(source.lanes, 1)),
        )
        for lane in lanes
    }
    share = -(-settings.length.validation_events // len(names))
    size = min(_VALIDATION_BLOCK, share)  # simulated on cores, so in blocks small enough for all of them
    fresh = [Stream(name, settings.detector, stream_seed(settings.seed, VALIDATION, name), size) for name in names]
    blocks = validation_blocks(fresh, share, workers, calorimeter)
    elements = [from_block(block, calorimeter, with_targets=True) for block in blocks.values()]
    return TrainingData(chunks, join(elements), blocks, describe_data(settings))


def _from_datasets(settings: TrainSettings, folder: Path, lanes: Sequence[int]) -> TrainingData:
    datasets = [Dataset(name) for name in _names(settings.data)]
    source, calorimeter = settings.source, settings.model.calorimeter
    writable = all(os.access(dataset.path, os.W_OK) for dataset in datasets)
    chunks: dict[int, DatasetChunks | SimulatedChunks] = {
        lane: DatasetChunks(
            datasets,
            detector=detector_name(settings.detector),
            calorimeter=calorimeter,
            chunk_events=source.chunk_events,
            seed=settings.seed,
            lane=Lane(lane, max(source.lanes, 1)),
            threads=source.workers,
            cache=None if writable else folder / "cache",
        )
        for lane in lanes
    }
    share = -(-settings.length.validation_events // len(datasets))
    blocks: dict[str, EventBlock] = {}
    for dataset in datasets:
        blocks[_free_name(dataset.manifest.sample, blocks)] = _valid_events(dataset, calorimeter, share)
    elements = [from_block(block, calorimeter, with_targets=True) for block in blocks.values()]
    known = blocks if all(map(has_truth, datasets)) else {}
    return TrainingData(chunks, join(elements), known, describe_data(settings))


def _valid_events(dataset: Dataset, calorimeter: str, events: int) -> EventBlock:
    """The first events of the `valid` split."""
    truth = TRUTH_COLUMNS if has_truth(dataset) else ()
    ruled = [
        name for name in ("track", "cluster") if name in dataset.columns
    ]  # the rules see more of them than a network
    columns = dict.fromkeys([*training_columns(dataset, calorimeter), *truth, *(ruled if truth else ())])
    blocks, left = [], events
    for block in dataset.events("valid", list(columns)):
        blocks.append(block.take(0, min(len(block), left)))
        left -= len(blocks[-1])
        if not left:
            break
    return concatenate(blocks)


def _names(data: str) -> list[str]:
    """Samples or folders that the data consist of."""
    names = [name.strip() for name in data.removeprefix(SIMULATED).split(",") if name.strip()]
    if not names:
        raise UsageError(f"no data in {data!r}; give data=FOLDER of a dataset, or data=sim:ttbar,qq")
    meant = names if data.startswith(SIMULATED) else [str(Path(name).resolve()) for name in names]
    for number, name in enumerate(names):
        if meant[number] in meant[:number]:
            raise UsageError(f"{name!r} is twice in the data; name it once")
    return names


def detector_name(detector: str) -> str:
    """Name of a detector that is given by its name or its file."""
    return load_detector(detector).name if detector.endswith(".toml") else detector


def _free_name(name: str, taken: dict[str, Any]) -> str:
    return next(free for free in (name, *(f"{name}_{n}" for n in range(2, 1000))) if free not in taken)


class SimulatedChunks:
    """Chunks of new events, all samples in equal shares. Lanes take the blocks of the streams in turn.

    Worker processes make the collisions and run ahead by one chunk. On a CPU they also run the detector; an accelerator is
    given the collisions in the background thread, and events never leave it.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        workers: ProcessPoolExecutor,
        *,
        calorimeter: str,
        chunk_events: int,
        detector: Detector | None,
        lane: Lane = ALL,
    ) -> None:
        self._streams, self._workers, self._lane = tuple(streams), workers, lane
        self._calorimeter, self._detector = calorimeter, detector
        size = sum(stream.block_events for stream in streams)
        self._blocks = max(-(-chunk_events // (size * lane.of)), 1)  # of every sample
        self._begun: dict[int, list[Future[Any]]] = {}
        self._ahead = Ahead(self._make)

    def chunk(self, index: int) -> ElementBatch:
        """Elements with targets."""
        return self._ahead.chunk(index)

    def prefetch(self, index: int) -> None:
        """Begin to make a chunk."""
        self._ahead.prefetch(index)

    def close(self) -> None:
        """Drop what was begun; whoever started the workers ends them, first."""
        self._ahead.close()

    def _make(self, index: int) -> ElementBatch:
        futures = self._begun.pop(index, None) or self._begin(index)
        self._begun = {index + 1: self._begin(index + 1)}
        with _worker_errors():
            parts = [
                self._finish(task, future.result()) for task, future in zip(self._tasks(index), futures, strict=True)
            ]
        return join(parts)

    def _tasks(self, index: int) -> list[tuple[Stream, int]]:
        numbers = range(index * self._blocks, (index + 1) * self._blocks)
        shared = [number * self._lane.of + self._lane.number for number in numbers]
        return [(stream, number) for number in shared for stream in self._streams]

    def _begin(self, index: int) -> list[Future[Any]]:
        work: Callable[..., Any] = collisions.generate
        if self._detector is None:
            work = partial(collisions.elements, calorimeter=self._calorimeter)
        return [self._workers.submit(work, stream, number) for stream, number in self._tasks(index)]

    def _finish(self, task: tuple[Stream, int], made: Any) -> ElementBatch:
        if self._detector is None:
            return from_tensors({name: torch.from_numpy(column) for name, column in made.items()})
        stream, number = task
        return measured_elements(self._detector, made, block_seed(stream.seed, number), self._calorimeter)


def measured_elements(detector: Detector, events: GeneratedEvents, seed: int, calorimeter: str) -> ElementBatch:
    """Collisions through the detector to elements with targets, without leaving the detector's device."""
    simulated = detector.simulate(events, seed)
    names = ("track", calorimeter, target_collection(calorimeter))
    counts = {name: torch.bincount(simulated[name].event, minlength=len(events)) for name in names}
    return build({name: simulated[name].columns for name in names}, counts, calorimeter, with_targets=True)


def validation_blocks(
    streams: Sequence[Stream], events: int, workers: ProcessPoolExecutor, calorimeter: str
) -> dict[str, EventBlock]:
    """`events` events of every stream with what an evaluation needs."""
    kept = ("track", "cluster", "target", "particle", *(("hit", "hit_target") if calorimeter == "hit" else ()))
    futures = {
        stream.sample: [
            workers.submit(collisions.simulate, stream, index) for index in range(-(-events // stream.block_events))
        ]
        for stream in streams
    }
    blocks = {}
    with progress(events * len(streams), "simulating validation events") as advance, _worker_errors():
        for name, parts in futures.items():
            made = []
            for future in parts:
                block = future.result()
                made.append(EventBlock(block.event_number, {part: block[part] for part in kept}))
                advance(len(block))
            blocks[name] = concatenate(made).take(0, events)
    return blocks


@contextmanager
def _worker_errors() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise FailureError(
            "a process that simulates ended unexpectedly, perhaps for want of memory; use fewer source.workers"
        ) from None
