"""`ringflow bench train`, `ringflow bench loader`, and what one of several processes does for `ringflow bench scaling`.

`train`: every step of the trainer is timed, with its loss, its optimiser and its average, on random elements: batches by
element budget, of events that all have the given number of elements. Batches are timed apart, too: how fast they are taken out
of a chunk that lies on the device, without a network behind them.

`loader`: whether the loading of a dataset keeps up with a training on the CPU. Three things are timed one after the other, so
that none takes the other's cores: chunks alone, through a first epoch that reads Parquet and stores finished elements, and
through later epochs that read those; batches taken out of a chunk; and training steps of a preset on the same events. What is
stored lies in a temporary folder: the dataset is not touched.
"""

from __future__ import annotations

import gc
import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from ringflow import __version__
from ringflow.base.errors import UsageError
from ringflow.data.chunks import DatasetChunks
from ringflow.data.read import Dataset
from ringflow.elements.batch import ElementBatch, ElementTargets, random_elements
from ringflow.event.particles import CHARGED_HADRON, NONE, PHOTON
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.train.batches import Feed
from ringflow.train.device import (
    choose_device,
    choose_precision,
    computing_in,
    hardware,
    is_accelerator,
    peak_memory,
    synchronize,
)
from ringflow.train.parallel import MeshPlace
from ringflow.train.settings import ComputeSettings, SourceSettings, TrainSettings
from ringflow.train.step import TrainingStep
from ringflow.train.world import ALONE, World, joined

_CPU = torch.device("cpu")
#: A chunk lasts for as long as it takes.
_ENDLESS = 1_000_000
_RATE = 1e-4
#: Steps before the clock starts: compilation, allocation; memory is taken, buckets of gradients are arranged.
_WARM_UP, _TEAM_WARM_UP, _TEAM_WARM_UP_COMPILED = 8, 3, 10
#: Batches a chunk holds: the order of its events is worked out once for all of them, as in a training.
_CHUNK_BATCHES, _TEAM_CHUNK_BATCHES = 32, 4
_LEAST_STEPS = 3
#: Bytes of the sums that are timed alone, beside one as long as the gradient, and how often.
_SUMS, _SUMS_TIMED = (4_096, 65_536, 1_048_576), 11
_FLOAT_BYTES = 4


class KeptChunk:
    """A source that has one chunk."""

    def __init__(self, chunk: ElementBatch) -> None:
        self._chunk = chunk

    def chunk(self, index: int) -> ElementBatch:
        return self._chunk

    def prefetch(self, index: int) -> None:
        """Nothing to prepare."""

    def close(self) -> None:
        """Nothing to let go."""


def random_chunk(num_elements: int, num_events: int) -> ElementBatch:
    """Events of tracks and clusters, half of them particles, with random features."""
    elements = random_elements([num_elements] * num_events)
    pt, eta, phi, energy = elements.reference_N4.unbind(1)
    momentum = torch.stack([pt * torch.cos(phi), pt * torch.sin(phi), pt * torch.sinh(eta), energy], dim=1)
    is_particle = torch.rand(len(pt)) < 0.5
    label = torch.where(is_particle, torch.where(elements.charge_N != 0, CHARGED_HADRON, PHOTON), NONE)
    targets = ElementTargets(label, torch.where(is_particle, elements.charge_N, 0), momentum * is_particle[:, None])
    return replace(elements, targets=targets)


class Training:
    """A network that learns from a chunk, step by step, alone or with other processes."""

    def __init__(
        self, settings: TrainSettings, chunk: ElementBatch, device: torch.device, world: World = ALONE
    ) -> None:
        compute = settings.compute
        self.place = MeshPlace.of(world.rank, world.size, compute.strategy, compute.parts)
        self.device, self._world = device, world
        self.model = Model(settings.model).to(device)
        self.model.embedding.fit(chunk.features_NF)
        self.parameters = self.model.num_parameters
        #: Steps, events and elements so far; `computed` elements are with padding.
        self.done: Counter[str] = Counter()
        self._precision = choose_precision(device, compute.precision)
        self._step = TrainingStep(self.model, settings, device, world)
        self._call = self.model if device.type == "cpu" else torch.compile(self.model, dynamic=False)
        # The parts of a copy share its batches: as many as they are.
        self._feeds = [
            Feed(
                KeptChunk(chunk),
                budget=compute.batch_elements,
                reuse=_ENDLESS,
                seed=settings.seed,
                device=device,
                lane=lane,
            )
            for lane in self.place.lanes(world.size)
        ]

    def step(self) -> int:
        """Take a step as the trainer does, with what processes tell each other in it; its events."""
        batches = [feed.next(0) for feed in self._feeds]
        events: int = sum(batch.num_events for batch in batches)
        computed = sum(batch.elements.num_elements for batch in batches)
        real = sum(batch.num_elements for batch in batches)
        self._world.all_reduce([events, computed, real, 0.0, 0.0])
        self._step.take(batches, self.done["steps"], _RATE)
        if self._step.to_be_read:
            self._step.read()
        self.done.update(steps=1, events=events, computed=computed, real=real)
        return events

    def infer(self) -> int:
        """What the network says of a batch; its events."""
        batch = self._feeds[0].next(0)
        elements = batch.elements
        with torch.inference_mode(), computing_in(self._precision, self.device):
            self._call(elements.features_NF, elements.kind_N, elements.position_N2, batch.layout)
        return batch.num_events

    def load(self) -> int:
        """Take a batch out of the chunk, without a network behind it; its events."""
        self.done["loaded_batches"] += 1
        events: int = self._feeds[0].next(0).num_events
        self.done["loaded"] += events
        return events


def _rate(once: Callable[[], int], device: torch.device, seconds: float) -> float:
    """Events per second after the warm-up."""
    for _ in range(_WARM_UP):
        once()
    synchronize(device)
    start, events, calls = time.perf_counter(), 0, 0
    while True:
        events += once()
        calls += 1
        # Looking at the clock alone does not wait for the device, which may be far behind.
        if calls % 64 == 0 or device.type == "cpu":
            synchronize(device)
            if time.perf_counter() - start >= seconds:
                break
    return round(events / (time.perf_counter() - start), 1)


def time_training(
    model: ModelSettings, num_elements: int, batch_elements: int, seconds: float, device: str
) -> dict[str, Any]:
    """Events per second of training, of inference and of loading, and the share of padding."""
    if num_elements > batch_elements:
        raise UsageError(
            f"an event of {num_elements} elements does not fit into a batch of {batch_elements}; "
            f"try --batch-elements {8 * num_elements}"
        )
    settings = TrainSettings(
        model=model,
        source=SourceSettings(reuse=_ENDLESS),
        compute=ComputeSettings(device=device, batch_elements=batch_elements),
    )
    place = choose_device(device)
    torch.manual_seed(0)
    chunk = random_chunk(num_elements, max(_CHUNK_BATCHES * batch_elements // num_elements, 4)).to(place)
    training = Training(settings, chunk, place)
    trained = _rate(training.step, place, seconds)
    training.model.eval()
    return {
        "benchmark": "train",
        "backbone": model.backbone,
        "parameters": training.parameters,
        "num_elements": num_elements,
        "batch_elements": batch_elements,
        "device": str(place),
        "train_events_per_second": trained,
        "padding_share": round(1.0 - training.done["real"] / training.done["computed"], 4),
        "infer_events_per_second": _rate(training.infer, place, seconds / 2),
        "load_events_per_second": _rate(training.load, place, seconds / 2),
        "peak_mb": round(peak_memory(place) / 2**20, 1),
        "settings": settings.model_dump(mode="json"),
        **hardware(place.type),
    }


def time_loading(dataset: Path, preset: str, overrides: Sequence[str], seconds: float) -> dict[str, Any]:
    """Events per second of chunks, batches and training, and how many times faster loading is than training."""
    settings = TrainSettings.resolve(preset, [*overrides, f"source.reuse={_ENDLESS}", "compute.device=cpu"])
    opened = Dataset(dataset)
    with tempfile.TemporaryDirectory(prefix="ringflow-bench-") as cache:
        chunk, chunks = _epochs(opened, settings, Path(cache), seconds)
    torch.manual_seed(settings.seed)
    training = Training(settings, chunk, _CPU)
    batches = _rate(training.load, _CPU, seconds / 4)
    trained = _rate(training.step, _CPU, seconds)
    # Chunks, and batches out of them, one after the other.
    loading = {epoch: round(1.0 / (1.0 / batches + (1.0 / rate if rate else 0.0)), 1) for epoch, rate in chunks.items()}
    return {
        "benchmark": "loader",
        "sample": opened.manifest.sample,
        "detector": opened.manifest.detector,
        "preset": Path(preset).name,
        "train_events": opened.manifest.splits["train"],
        "elements_per_event": round(chunk.num_elements / chunk.num_events, 1),
        "batch_elements": settings.compute.batch_elements,
        "threads": {"loading": settings.source.workers, "training": torch.get_num_threads()},
        "chunk_events_per_second": chunks,
        "batches_per_second": round(batches * training.done["loaded_batches"] / training.done["loaded"], 1),
        "batch_events_per_second": batches,
        "load_events_per_second": loading,
        "train_events_per_second": trained,
        "load_over_train": {epoch: round(rate / trained, 2) for epoch, rate in loading.items()},
        **hardware("cpu"),
    }


def _epochs(
    dataset: Dataset, settings: TrainSettings, cache: Path, seconds: float
) -> tuple[ElementBatch, dict[str, float | None]]:
    """A chunk, and events per second of the first and of later epochs; None where all is kept in memory."""
    events = dataset.manifest.splits["train"]
    source = DatasetChunks(
        [dataset],
        detector=dataset.manifest.detector,
        calorimeter=settings.model.calorimeter,
        # Of one chunk nothing would be stored.
        chunk_events=min(settings.source.chunk_events, max(events // 2, 1)),
        seed=settings.seed,
        threads=settings.source.workers,
        cache=cache,
    )
    index = 0

    def epoch(least_seconds: float) -> tuple[ElementBatch, float]:
        nonlocal index
        start, delivered = time.perf_counter(), 0
        while delivered < events or time.perf_counter() - start < least_seconds:
            chunk = source.chunk(index)
            delivered += chunk.num_events
            index += 1
        return chunk, round(delivered / (time.perf_counter() - start), 1)

    try:
        chunk, first = epoch(0.0)
        later = None if chunk.num_events == events else epoch(seconds / 4)[1]
        return chunk, {"first_epoch": first, "later_epochs": later}
    finally:
        source.close()


def time_team(
    settings: TrainSettings, num_elements: int, seconds: float, threads: int, *, apart: bool = False
) -> dict[str, Any]:
    """Time the steps of the world of processes that this one belongs to; what was found is the same in all of them.

    A step is that of the trainer, with all that the processes say to each other. Every process has one batch per step, so that
    its work does not depend on how many there are (weak scaling). `apart`: every process trains a network of its own.
    """
    device = choose_device(settings.compute.device)
    if not is_accelerator(device):
        torch.set_num_threads(threads)
    with joined(device, settings.compute.timeout) as world:
        world.require_same({"version of ringflow": __version__})
        found = _world_steps(settings, num_elements, seconds, device, world, apart)
        # The network holds the group of processes, and goes in circles. One that outlives the end of the group can abort this
        # process when it ends, because threads of torch want Python when there is none any more.
        gc.collect()
        return found


def _world_steps(
    settings: TrainSettings, num_elements: int, seconds: float, device: torch.device, world: World, apart: bool
) -> dict[str, Any]:
    from ringflow.train.profile import Traffic  # which can draw, and other benchmarks need not

    torch.manual_seed(settings.seed)
    events_of_chunk = _TEAM_CHUNK_BATCHES * (settings.compute.batch_elements // num_elements)
    chunk = random_chunk(num_elements, events_of_chunk).to(device)
    training = Training(settings, chunk, device, ALONE if apart else world)
    ready = time.time()

    def timed(count: int) -> list[float]:
        clock = [time.perf_counter()]
        for _ in range(count):
            training.step()
            clock.append(time.perf_counter())
        return [after - before for before, after in pairwise(clock)]

    warm = timed(_TEAM_WARM_UP_COMPILED if is_accelerator(device) else _TEAM_WARM_UP)
    steps = world.broadcast(max(_LEAST_STEPS, math.ceil(seconds / max(min(warm), 1e-6))))
    traffic = Traffic()
    world.all_reduce([0.0])
    start = time.perf_counter()
    taken = timed(steps)
    synchronize(device)
    world.all_reduce([0.0])
    elapsed = time.perf_counter() - start
    told = world.all_gather((ready, training.done["events"], traffic.sent or 0))
    events = sum(found for _, found, _ in told[:: training.place.parts]) // (len(warm) + steps)
    # By quartiles of the logarithm, so that one interruption does not count.
    low, _, high = statistics.quantiles([math.log(value) for value in taken], n=4)
    return {
        "workers": world.size,
        "apart": apart,
        "strategy": settings.compute.strategy,
        "device": str(device),
        "parameters": training.parameters,
        "events_per_step": events,
        "steps": steps,
        "seconds_per_step": elapsed / steps,
        "events_per_second": events * steps / elapsed,
        # An accelerator is behind: the host sees only when it asks.
        "step_spread": None if is_accelerator(device) else (high - low) / 1.349,
        "first_step_at": max(when for when, _, _ in told),
        "bytes_per_step": None if traffic.reason else statistics.mean(sent for *_, sent in told) / steps,
        "all_reduce": [] if apart or world.size == 1 else _sums(world, device, training.parameters),
    }


def _sums(world: World, device: torch.device, parameters: int) -> list[dict[str, float]]:
    """What it takes to add up so many bytes over all processes, without anything else going on."""
    found = []
    for size in sorted({*_SUMS, _FLOAT_BYTES * parameters}):
        tensor = torch.zeros(size // _FLOAT_BYTES, device=device)
        seconds = []
        for _ in range(_SUMS_TIMED):
            world.all_reduce([0.0])
            start = time.perf_counter()
            world.all_reduce_(tensor)
            synchronize(device)
            seconds.append(time.perf_counter() - start)
        found.append({"bytes": size, "seconds": statistics.median(seconds[1:])})
    return found
