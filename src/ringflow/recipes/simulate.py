"""Simulate: from collisions to a dataset."""

from __future__ import annotations

import hashlib
import time
from functools import partial
from pathlib import Path
from typing import Any

from ringflow.base.config import to_toml
from ringflow.base.errors import UsageError
from ringflow.base.memory import keep_freed_memory
from ringflow.base.provenance import collect
from ringflow.event.block import Collection, EventBlock
from ringflow.recipes.production import Request, produce
from ringflow.recipes.workers import Plan
from ringflow.sim.generator import GeneratedEvents, Generator, block_seed, make_generator
from ringflow.sim.geometry import load_detector
from ringflow.sim.settings import SimulateSettings

DEFAULT_EVENTS = 1000
#: What an event of a collision takes on disk with and without hits (bytes), and what any event takes: rather less than
#: it is, because the figures only serve to refuse what cannot fit.
COLLISION_BYTES = {True: 50_000, False: 5_000}
LEAST_BYTES = 2_000
_HIT_COLLECTIONS = ("hit", "hit_link", "hit_target")


def simulate(settings: SimulateSettings, out: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Make a dataset, finish an interrupted one, or find that it is already there.

    Neither the number of workers nor an interruption changes a byte. Asking for more events extends a dataset.
    """
    started = time.perf_counter()
    settings = _resolve(settings)
    manifest, new_events = produce(
        out,
        _request(settings),
        partial(SimulatedBlocks, settings),
        workers=settings.production.workers,
        overwrite=overwrite,
    )
    seconds = time.perf_counter() - started
    return {
        "path": str(out),
        "events": manifest.num_events,
        "shards": len(manifest.shards),
        "bytes": manifest.bytes,
        "seconds": round(seconds, 3),
        "events_per_second": round(new_events / seconds, 2),
        "mean_counts": {name: round(count / manifest.num_events, 2) for name, count in manifest.counts.items()},
    }


class SimulatedBlocks:
    """Blocks of simulated events: generator and detector, opened once per process.

    A block is always made whole, with random numbers of its own, so that its events do not depend on what is asked for.
    """

    def __init__(self, settings: SimulateSettings) -> None:
        import torch

        from ringflow.sim.detector import Detector

        # One thread per worker: sums in another order would be other events, and the cores belong to the workers.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        keep_freed_memory()
        self._settings = settings
        self._detector = Detector(load_detector(settings.detector), settings.production.device)
        self._generator = _generator(settings)

    def block(self, index: int) -> EventBlock:
        """Events number `index * block_events` and following (fewer at the end of a file)."""
        events = self.measure(self.generate(index), index)
        return events if self._settings.production.keep_hits else _without_hits(events)

    def generate(self, index: int) -> GeneratedEvents:
        """The collisions of a block."""
        size = self._settings.production.block_events
        return self._generator.generate(index * size, size)

    def measure(self, generated: GeneratedEvents, index: int) -> EventBlock:
        """What the detector makes of them."""
        return self._detector.simulate_block(generated, block_seed(self._settings.generator.seed, index))

    def close(self) -> None:
        """Give the process its threads back."""
        import torch

        torch.set_num_threads(self._threads_before)


def _generator(settings: SimulateSettings) -> Generator:
    return make_generator(settings.generator, *load_detector(settings.detector).tracker_cylinder)


def _resolve(settings: SimulateSettings) -> SimulateSettings:
    """Settings with the number of events and the device filled in; refuses what does not exist."""
    device = settings.production.device
    if device != "cpu":
        from ringflow.train.device import choose_device

        device = str(choose_device(device))
    available = _generator(settings).num_available
    asked = settings.production.events
    if available is not None and asked is not None and asked > available:
        raise UsageError(f"{settings.generator.hepmc} has {available} events, {asked} were asked for; ask for fewer")
    events = asked or available or DEFAULT_EVENTS
    production = settings.production.model_copy(update={"events": events, "device": device})
    return settings.model_copy(update={"production": production})


def _request(settings: SimulateSettings) -> Request:
    production = settings.production
    assert production.events is not None, "resolved before"
    hepmc = settings.generator.hepmc
    return Request(
        plan=Plan(production.events, production.events_per_shard, production.block_events),
        record=_record(settings),
        detector=load_detector(settings.detector).name,
        sample=hepmc.name if hepmc is not None else str(settings.generator.sample),
        settings=to_toml(_shareable(settings)),
        event_bytes=_event_bytes(settings),
    )


def _event_bytes(settings: SimulateSettings) -> int:
    sample = settings.generator.sample
    if sample is None or sample == "gamma_gamma" or sample.startswith("gun_"):
        return LEAST_BYTES
    return COLLISION_BYTES[settings.production.keep_hits]


def _record(settings: SimulateSettings) -> dict[str, Any]:
    """What the dataset is made from: two requests with equal records make equal bytes."""
    described = settings.model_dump(mode="json")
    del described["production"]["workers"]
    files = [Path(settings.detector)] if settings.detector.endswith(".toml") else []
    if settings.generator.hepmc is not None:
        described["generator"]["hepmc"] = settings.generator.hepmc.name
        files.append(settings.generator.hepmc)
    # What is published of a detector does not change an event.
    geometry = load_detector(settings.detector).model_dump_json(exclude={"published"})
    return {
        **collect(described, {"generator": settings.generator.seed}, files),
        "generator": dict(_generator(settings).describe()),
        "geometry_sha256": hashlib.sha256(geometry.encode()).hexdigest(),
    }


def _shareable(settings: SimulateSettings) -> SimulateSettings:
    """The settings without what leaves no trace in the dataset."""
    return settings.model_copy(update={"production": settings.production.model_copy(update={"workers": 1})})


def _without_hits(events: EventBlock) -> EventBlock:
    """Drop the hits and what points to them."""
    particles = events["particle"]
    columns = {name: values for name, values in particles.columns.items() if name != "hit_target"}
    kept = {name: part for name, part in events.collections.items() if name not in _HIT_COLLECTIONS}
    return EventBlock(events.event_number, {**kept, "particle": Collection(particles.counts, columns)})
