"""`ringflow bench train`: how many events per second a network is trained with, and how many it reconstructs.

Every step of the trainer is timed, with its loss, its optimiser and its average, on random elements: batches by element
budget, of events that all have the given number of elements. Loading is timed apart: how fast batches are taken out of a
chunk that lies on the device, and without a network behind them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ringflow.base.errors import UsageError
from ringflow.bench.record import hardware
from ringflow.elements.batch import CLUSTER, TRACK, ElementBatch, ElementTargets
from ringflow.elements.features import feature_names
from ringflow.event.particles import CHARGED_HADRON, NONE, PHOTON
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.train.batches import Feed
from ringflow.train.device import choose_device, choose_precision, computing_in, peak_memory, synchronize
from ringflow.train.settings import ComputeSettings, SourceSettings, TrainSettings
from ringflow.train.step import TrainingStep

#: Steps before the clock starts: compilation, allocation.
_WARM_UP = 8
#: Batches a chunk holds: the order of its events is worked out once for all of them, as in a training.
_CHUNK_BATCHES = 32


def run(model: ModelSettings, num_elements: int, batch_elements: int, seconds: float, device: str) -> dict[str, Any]:
    """Events per second of training, of inference and of loading, and the share of padding."""
    if num_elements > batch_elements:
        raise UsageError(
            f"an event of {num_elements} elements does not fit into a batch of {batch_elements}; "
            f"try --batch-elements {8 * num_elements}"
        )
    settings = TrainSettings(
        model=model,
        source=SourceSettings(reuse=1_000_000),
        compute=ComputeSettings(device=device, batch_elements=batch_elements),
    )
    place = choose_device(device)
    torch.manual_seed(0)
    chunk = random_chunk(num_elements, max(_CHUNK_BATCHES * batch_elements // num_elements, 4)).to(place)
    network = Model(model).to(place)
    network.embedding.fit(chunk.features_NF)
    training = train_rate(settings, network, chunk, place, seconds)
    return {
        "benchmark": "train",
        "backbone": model.backbone,
        "parameters": network.num_parameters,
        "num_elements": num_elements,
        "batch_elements": batch_elements,
        "device": str(place),
        **training,
        "infer_events_per_second": _inference(settings, network, chunk, place, seconds / 2),
        "load_events_per_second": load_rate(settings, chunk, place, seconds / 2)["events_per_second"],
        "peak_mb": round(peak_memory(place) / 2**20, 1),
        "settings": settings.model_dump(mode="json"),
        **hardware(place.type),
    }


def random_chunk(num_elements: int, num_events: int) -> ElementBatch:
    """Events of a third tracks and two thirds clusters, half of them particles, with random features."""
    rows = num_elements * num_events
    within = torch.arange(rows) % num_elements
    is_track = within < max(num_elements // 3, 1)
    is_particle = torch.rand(rows) < 0.5
    label = torch.where(is_particle, torch.where(is_track, CHARGED_HADRON, PHOTON), NONE)
    reference = torch.stack([torch.rand(rows) + 0.1, torch.randn(rows), 6.0 * torch.rand(rows) - 3.0], dim=1)
    pt, eta, phi = reference.unbind(1)
    energy = pt * torch.cosh(eta)
    momentum = torch.stack([pt * torch.cos(phi), pt * torch.sin(phi), pt * torch.sinh(eta), energy], dim=1)
    charge = torch.where(is_track, 1, 0)
    return ElementBatch(
        kind_N=torch.where(is_track, TRACK, CLUSTER),
        features_NF=torch.randn(rows, len(feature_names(("track", "cluster")))),
        position_N2=reference[:, 1:].contiguous(),
        reference_N4=torch.cat([reference, energy[:, None]], dim=1),
        charge_N=charge,
        offsets_B=torch.arange(num_events + 1) * num_elements,
        targets=ElementTargets(label, torch.where(is_particle, charge, 0), momentum * is_particle[:, None]),
    )


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


def _feed(settings: TrainSettings, chunk: ElementBatch, device: torch.device) -> Feed:
    budget = settings.compute.batch_elements
    return Feed(KeptChunk(chunk), budget=budget, reuse=settings.source.reuse, seed=settings.seed, device=device)


def train_rate(
    settings: TrainSettings, model: Model, chunk: ElementBatch, device: torch.device, seconds: float
) -> dict[str, Any]:
    """Events per second of training on the events of a chunk, and the share of padding; the network learns from it."""
    step = TrainingStep(model, settings, device)
    feed = _feed(settings, chunk, device)
    done = {"steps": 0, "computed": 0, "real": 0}

    def once() -> int:
        batch = feed.next(0)
        step.take([batch], done["steps"], 1e-4)
        if step.records.full:
            step.records.read()
        done["steps"] += 1
        done["computed"] += batch.elements.num_elements
        done["real"] += batch.num_elements
        return batch.num_events

    rate = _rate(once, device, seconds)
    return {"train_events_per_second": rate, "padding_share": round(1.0 - done["real"] / done["computed"], 4)}


def _inference(
    settings: TrainSettings, model: Model, chunk: ElementBatch, device: torch.device, seconds: float
) -> float:
    feed = _feed(settings, chunk, device)
    precision = choose_precision(device, settings.compute.precision)
    model.eval()
    call = torch.compile(model, dynamic=False) if device.type != "cpu" else model

    def once() -> int:
        batch = feed.next(0)
        elements = batch.elements
        with torch.inference_mode(), computing_in(precision, device):
            call(elements.features_NF, elements.kind_N, elements.position_N2, batch.layout)
        return batch.num_events

    return _rate(once, device, seconds)


def load_rate(settings: TrainSettings, chunk: ElementBatch, device: torch.device, seconds: float) -> dict[str, float]:
    """Events and batches per second taken out of a chunk, without a network behind them."""
    feed = _feed(settings, chunk, device)
    done = {"batches": 0, "events": 0}

    def once() -> int:
        events = feed.next(0).num_events
        done["batches"] += 1
        done["events"] += events
        return events

    rate = _rate(once, device, seconds)
    per_event = done["batches"] / done["events"]
    return {"events_per_second": rate, "batches_per_second": round(rate * per_event, 1)}


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
