"""Where a training gets its events: datasets on disk, or the simulation running beside it.

`data` is a list of dataset folders, separated by commas, or `sim:` and names of samples. Validation events are never trained
on: the `valid` split of datasets, or a stream of simulated events with a seed of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.log import progress
from ringflow.base.provenance import collect
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
from ringflow.models.model import Model
from ringflow.sim.detector import Detector
from ringflow.sim.generator import GeneratedEvents, block_seed, sample_name
from ringflow.sim.geometry import load_detector, split_variation
from ringflow.train import collisions
from ringflow.train.batches import ChunkSource
from ringflow.train.collisions import TRAINING, VALIDATION, Stream, start_workers, stream_seed
from ringflow.train.settings import TrainSettings
from ringflow.train.validation import Validation

SIMULATED = "sim:"
_VALIDATION_BLOCK = 50


@dataclass(frozen=True)
class TrainingData:
    """What a training learns from and is measured with."""

    #: By lane of this process.
    sources: Mapping[int, ChunkSource]
    validation: ElementBatch
    #: Figures of a network on the validation events beside the loss; none where there is no truth to compare with.
    validate: Callable[[Model], dict[str, float]] | None = None
    #: What a model file tells of its origin.
    card: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def open_training_data(
    settings: TrainSettings, device: torch.device, folder: Path, lanes: Sequence[int] = (0,)
) -> Iterator[TrainingData]:
    """The events of some lanes of a training, until the context is left; `folder` takes what a dataset that cannot be written
    to may not."""
    names, source, calorimeter = _names(settings.data), settings.source, settings.model.calorimeter
    events = -(-settings.length.validation_events // len(names))
    workers = start_workers(source.workers) if settings.data.startswith(SIMULATED) else None
    sources: dict[int, DatasetChunks | SimulatedChunks] = {}
    make: Callable[..., DatasetChunks | SimulatedChunks]
    try:
        if workers is not None:
            size = min(source.block_events, max(source.chunk_events // len(names), 1))
            detector = None if device.type == "cpu" else Detector(load_detector(settings.detector), str(device))
            make = partial(SimulatedChunks, _streams(settings, TRAINING, size), workers, detector=detector)
            blocks, known = _simulated_events(settings, events, workers), True
        else:
            datasets = [Dataset(name) for name in names]
            writable = all(os.access(dataset.path, os.W_OK) for dataset in datasets)
            make = partial(
                DatasetChunks,
                datasets,
                detector=detector_name(settings.detector),
                seed=settings.seed,
                threads=source.workers,
                cache=None if writable else folder / "cache",
            )
            blocks, known = _valid_events(datasets, calorimeter, events), all(map(has_truth, datasets))
        for lane in lanes:
            dealt = Lane(lane, max(source.lanes, 1))
            sources[lane] = make(calorimeter=calorimeter, chunk_events=source.chunk_events, lane=dealt)
        origin = collect(settings, {"training": settings.seed})
        del origin["settings"]  # the trainer adds them
        described = {"detector": detector_name(settings.detector), "data": describe_data(settings)}
        elements = join([from_block(block, calorimeter, with_targets=True) for block in blocks.values()])
        validate = Validation(blocks, calorimeter) if known else None
        yield TrainingData(sources, elements, validate, {**described, "provenance": origin})
    finally:
        if workers is not None:  # first of all, or the sources would wait for all that was begun
            workers.shutdown(cancel_futures=True)
        for begun in sources.values():
            begun.close()


def require_data(settings: TrainSettings) -> None:
    """Refuse data that do not exist or cannot be learned from, before anything is made."""
    if settings.data.startswith(SIMULATED):
        _names(settings.data)
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


def detector_name(detector: str) -> str:
    """Name of a detector that is given by its name or its file, varied or not."""
    detector, _ = split_variation(detector)
    return load_detector(detector).name if detector.endswith(".toml") else detector


def _names(data: str) -> list[str]:
    """Samples or folders that the data consist of."""
    names = [name.strip() for name in data.removeprefix(SIMULATED).split(",") if name.strip()]
    if not names:
        raise UsageError(f"no data in {data!r}; give data=FOLDER of a dataset, or data=sim:ttbar,qq")
    if data.startswith(SIMULATED):
        meant = names = [sample_name(name) for name in names]
    else:
        meant = [str(Path(name).resolve()) for name in names]
    for number, name in enumerate(names):
        if meant[number] in meant[:number]:
            raise UsageError(f"{name!r} is twice in the data; name it once")
    return names


def _valid_events(datasets: Sequence[Dataset], calorimeter: str, events: int) -> dict[str, EventBlock]:
    """The first events of the `valid` splits, by sample, with truth and what the rules see where these are there."""
    found: dict[str, EventBlock] = {}
    for dataset in datasets:
        columns = [*training_columns(dataset, calorimeter)]
        if has_truth(dataset):
            columns += [*TRUTH_COLUMNS, *(name for name in ("track", "cluster") if name in dataset.columns)]
        blocks: list[EventBlock] = []
        for block in dataset.events("valid", list(dict.fromkeys(columns))):
            blocks.append(block)
            if sum(map(len, blocks)) >= events:
                break
        name = dataset.manifest.sample
        if name in found:
            name = next(free for n in count(2) if (free := f"{name}_{n}") not in found)
        whole = concatenate(blocks)
        found[name] = whole.take(0, min(len(whole), events))
    return found


def _streams(settings: TrainSettings, purpose: int, block_events: int) -> list[Stream]:
    # A network is validated on the detector that it is for, also where it learns from others.
    detector = settings.detector if purpose == TRAINING else split_variation(settings.detector)[0]
    return [
        Stream(name, detector, stream_seed(settings.seed, purpose, name), block_events)
        for name in _names(settings.data)
    ]


def _simulated_events(settings: TrainSettings, events: int, workers: ProcessPoolExecutor) -> dict[str, EventBlock]:
    """`events` events of every sample with what an evaluation needs; in blocks small enough for all cores."""
    kept = ["track", "cluster", "target", "particle"]
    if settings.model.calorimeter == "hit":
        kept += ["hit", "hit_target"]
    streams = _streams(settings, VALIDATION, min(_VALIDATION_BLOCK, events))
    indices = range(-(-events // streams[0].block_events))
    futures = [[workers.submit(collisions.simulate, stream, index) for index in indices] for stream in streams]
    found: dict[str, EventBlock] = {}
    with progress(events * len(streams), "simulating validation events") as advance, _worker_errors():
        for stream, parts in zip(streams, futures, strict=True):
            made = []
            for future in parts:
                block = future.result()
                made.append(EventBlock(block.event_number, {part: block[part] for part in kept}))
                advance(len(block))
            found[stream.sample] = concatenate(made).take(0, events)
    return found


class SimulatedChunks(Ahead):
    """Chunks of new events, all samples in equal shares. Lanes take the blocks of the streams in turn.

    Worker processes make the collisions and run ahead by one chunk. On a CPU they also run the detector; an accelerator is
    given the collisions in the background thread, and events never leave it. Whoever started the workers ends them, before
    this is closed.
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
        super().__init__(self._assembled)
        self._streams, self._workers, self._lane = tuple(streams), workers, lane
        self._calorimeter, self._detector = calorimeter, detector
        size = sum(stream.block_events for stream in streams)
        self._blocks = max(-(-chunk_events // (size * lane.of)), 1)  # of every sample
        self._under_way: dict[int, list[Future[Any]]] = {}

    def tasks(self, index: int) -> list[tuple[Stream, int]]:
        """The blocks that a chunk consists of."""
        numbers = range(index * self._blocks, (index + 1) * self._blocks)
        shared = [number * self._lane.of + self._lane.number for number in numbers]
        return [(stream, number) for number in shared for stream in self._streams]

    def _assembled(self, index: int) -> ElementBatch:
        futures = self._under_way.pop(index, None) or self._submit(index)
        self._under_way = {index + 1: self._submit(index + 1)}
        parts = []
        with _worker_errors():
            for (stream, number), future in zip(self.tasks(index), futures, strict=True):
                made = future.result()
                if self._detector is None:
                    parts.append(from_tensors({name: torch.from_numpy(column) for name, column in made.items()}))
                else:
                    seed = block_seed(stream.seed, number)
                    parts.append(measured_elements(self._detector, made, seed, self._calorimeter))
        return join(parts)

    def _submit(self, index: int) -> list[Future[Any]]:
        work: Callable[..., Any] = collisions.generate
        if self._detector is None:
            work = partial(collisions.elements, calorimeter=self._calorimeter)
        return [self._workers.submit(work, stream, number) for stream, number in self.tasks(index)]


def measured_elements(detector: Detector, events: GeneratedEvents, seed: int, calorimeter: str) -> ElementBatch:
    """Collisions through the detector to elements with targets, without leaving the detector's device."""
    simulated = detector.simulate(events, seed)
    names = ("track", calorimeter, target_collection(calorimeter))
    counts = {name: torch.bincount(simulated[name].event, minlength=len(events)) for name in names}
    return build({name: simulated[name].columns for name in names}, counts, calorimeter, with_targets=True)


@contextmanager
def _worker_errors() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise FailureError(
            "a process that simulates ended unexpectedly, perhaps for want of memory; use fewer source.workers"
        ) from None
