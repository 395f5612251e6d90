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
from typing import Any, NamedTuple

import torch

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.log import progress
from ringflow.base.provenance import collect
from ringflow.base.words import did_you_mean
from ringflow.data.chunks import (
    ALL,
    Ahead,
    DatasetChunks,
    Lane,
    describe,
    from_tensors,
    require_learnable,
    seen_by,
    training_columns,
)
from ringflow.data.manifest import manifest_hash
from ringflow.data.read import TRUTH_COLUMNS, Dataset, has_truth
from ringflow.elements.batch import ElementBatch, build, from_block, join, target_collection
from ringflow.elements.features import feature_groups
from ringflow.elements.frame import Frame, FrameSettings, what_is_usual
from ringflow.event.block import EventBlock, concatenate
from ringflow.infer.shipped import model_file
from ringflow.models.file import load_model
from ringflow.models.model import Model
from ringflow.sim.detector import Detector
from ringflow.sim.generator import GeneratedEvents, block_seed, sample_name
from ringflow.sim.geometry import load_detector, split_variation
from ringflow.sim.tracker import frame_of
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
    #: The detector that elements are seen relative to, if it is one and they are.
    frame: FrameSettings | None = None


@contextmanager
def open_training_data(
    settings: TrainSettings, device: torch.device, folder: Path, lanes: Sequence[int] = (0,)
) -> Iterator[TrainingData]:
    """The events of some lanes of a training, until the context is left; `folder` takes what a dataset that cannot be written
    to may not."""
    names, source, calorimeter = _names(settings.data), settings.source, settings.model.calorimeter
    detectors, here = detectors_of(settings.detector), _frames(settings, torch.device("cpu"))
    events = -(-settings.length.validation_events // len(names))
    workers = start_workers(source.workers) if settings.data.startswith(SIMULATED) else None
    sources: dict[int, DatasetChunks | SimulatedChunks] = {}
    make: Callable[..., DatasetChunks | SimulatedChunks]
    try:
        if workers is not None:
            events = -(-events // len(detectors))
            size = min(source.block_events, max(source.chunk_events // (len(names) * len(detectors)), 1))
            on_device = {} if device.type == "cpu" else {d: Detector(load_detector(d), str(device)) for d in detectors}
            frames = _frames(settings, device)
            make = partial(
                SimulatedChunks, _streams(settings, TRAINING, size), workers, detectors=on_device, frames=frames
            )
            measured, known = _simulated_events(settings, events, workers), True
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
                frames=here,
            )
            measured, known = _valid_events(datasets, calorimeter, events), all(map(has_truth, datasets))
        for lane in lanes:
            dealt = Lane(lane, max(source.lanes, 1))
            sources[lane] = make(calorimeter=calorimeter, chunk_events=source.chunk_events, lane=dealt)
        origin = collect(settings, {"training": settings.seed})
        del origin["settings"]  # the trainer adds them
        described = {"detector": detector_name(settings.detector), "data": describe_data(settings)}
        parts = {
            name: seen_by(here, one.detector, from_block(one.block, calorimeter, with_targets=True))
            for name, one in measured.items()
        }
        elements = join(list(parts.values()))
        card = {**described, "seen": what_is_usual(elements, ("track", calorimeter)), "provenance": origin}
        validate = None
        if known:
            blocks = {name: one.block for name, one in measured.items()}
            validate = Validation(blocks, parts, {name: one.detector for name, one in measured.items()})
        only = next(iter(here.values())).settings if len(here) == 1 else None
        yield TrainingData(sources, elements, validate, card, only)
    finally:
        if workers is not None:  # first of all, or the sources would wait for all that was begun
            workers.shutdown(cancel_futures=True)
        for begun in sources.values():
            begun.close()


def require_data(settings: TrainSettings) -> None:
    """Refuse data that do not exist or cannot be learned from, before anything is made."""
    groups = sorted(filter(None, set(feature_groups(("track", settings.model.calorimeter)))))
    if wrong := next((name for name in settings.source.lacking if name not in groups), None):
        raise UsageError(
            f"source.lacking: no group of features {wrong!r}; {did_you_mean(wrong, groups)}known are {', '.join(groups)}"
        )
    if settings.data.startswith(SIMULATED):
        _names(settings.data)
        for detector in detectors_of(settings.detector):
            load_detector(detector)
    else:
        _frames(settings, torch.device("cpu"))
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
    streams = _streams(settings, TRAINING, 1)
    return [{"simulated": stream.sample, "detector": stream.detector, "seed": stream.seed} for stream in streams]


def detectors_of(detector: str) -> list[str]:
    """The detectors of a training, which are separated by commas."""
    names = [name.strip() for name in detector.split(",") if name.strip()]
    if not names:
        raise UsageError(f"no detector in {detector!r}; give its name, or several: detector=clic,cld")
    plain = [detector_name(name) for name in names] if len(names) > 1 else names
    if twice := next((name for number, name in enumerate(plain) if name in plain[:number]), None):
        raise UsageError(f"{twice!r} is twice among the detectors; name it once")
    return names


def detector_name(detector: str) -> str:
    """Name of a detector that is given by its name or its file, varied or not; of several, their names with commas."""
    if "," in detector:
        return ",".join(map(detector_name, detectors_of(detector)))
    detector, _ = split_variation(detector)
    return load_detector(detector).name if detector.endswith(".toml") else detector


def _frames(settings: TrainSettings, device: torch.device) -> dict[str, Frame]:
    """By name of the detector how its elements are seen, as the network to start from does if it is for that detector; empty
    where they are seen as they are."""
    if settings.model.features == "absolute":
        return {}
    known: dict[str, FrameSettings] = {}
    if settings.start is not None:
        path = model_file(Path(settings.start))  # also where a training goes on: it has to see what it saw before
        if (frame := load_model(path).model.frame) is not None:
            known[frame.settings.detector] = frame.settings
    kinds = ("track", settings.model.calorimeter)
    return {
        name: Frame(known.get(name) or frame_of(load_detector(detector)), kinds).to(device)
        for detector in detectors_of(settings.detector)
        for name in [detector_name(detector)]
    }


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


class _Measured(NamedTuple):
    """Validation events and the detector that they are of."""

    block: EventBlock
    detector: str


def _valid_events(datasets: Sequence[Dataset], calorimeter: str, events: int) -> dict[str, _Measured]:
    """The first events of the `valid` splits, by sample, with truth and what the rules see where these are there."""
    found: dict[str, _Measured] = {}
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
        found[name] = _Measured(whole.take(0, min(len(whole), events)), dataset.manifest.detector)
    return found


def _streams(settings: TrainSettings, purpose: int, block_events: int) -> list[Stream]:
    # A network is validated on the detector that it is for, also where it learns from others.
    given = detectors_of(settings.detector)
    detectors = given if purpose == TRAINING else [split_variation(name)[0] for name in given]
    return [
        Stream(
            name, detector, stream_seed(settings.seed, purpose, f"{name} in {other}" if other else name), block_events
        )
        for number, detector in enumerate(detectors)
        for other in [detector_name(detector) if number else ""]  # the first has the seeds that it has alone
        for name in _names(settings.data)
    ]


def _simulated_events(settings: TrainSettings, events: int, workers: ProcessPoolExecutor) -> dict[str, _Measured]:
    """`events` events of every sample with what an evaluation needs; in blocks small enough for all cores."""
    kept = ["track", "cluster", "target", "particle"]
    if settings.model.calorimeter == "hit":
        kept += ["hit", "hit_target"]
    streams = _streams(settings, VALIDATION, min(_VALIDATION_BLOCK, events))
    indices = range(-(-events // streams[0].block_events))
    futures = [[workers.submit(collisions.simulate, stream, index) for index in indices] for stream in streams]
    found: dict[str, _Measured] = {}
    several = len({stream.detector for stream in streams}) > 1
    with progress(events * len(streams), "simulating validation events") as advance, _worker_errors():
        for stream, parts in zip(streams, futures, strict=True):
            made = []
            for future in parts:
                block = future.result()
                made.append(EventBlock(block.event_number, {part: block[part] for part in kept}))
                advance(len(block))
            detector = detector_name(stream.detector)
            name = f"{stream.sample}_{detector}" if several else stream.sample
            found[name] = _Measured(concatenate(made).take(0, events), detector)
    return found


class SimulatedChunks(Ahead):
    """Chunks of new events, all samples in equal shares. Lanes take the blocks of the streams in turn.

    Worker processes make the collisions and run ahead by one chunk. On a CPU they also run the detector; an accelerator is
    given the collisions in the background thread, and events never leave it (`detectors`: by name, there). Whoever started the
    workers ends them, before this is closed.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        workers: ProcessPoolExecutor,
        *,
        calorimeter: str,
        chunk_events: int,
        detectors: Mapping[str, Detector],
        frames: Mapping[str, Frame] | None = None,
        lane: Lane = ALL,
    ) -> None:
        super().__init__(self._assembled)
        self._streams, self._workers, self._lane = tuple(streams), workers, lane
        self._calorimeter, self._detectors, self._frames = calorimeter, detectors, frames or {}
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
                if stream.detector not in self._detectors:
                    part = from_tensors({name: torch.from_numpy(column) for name, column in made.items()})
                else:
                    seed = block_seed(stream.seed, number)
                    part = measured_elements(self._detectors[stream.detector], made, seed, self._calorimeter)
                parts.append(seen_by(self._frames, detector_name(stream.detector), part))
        return join(parts)

    def _submit(self, index: int) -> list[Future[Any]]:
        work: Callable[..., Any] = collisions.generate
        if not self._detectors:
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
