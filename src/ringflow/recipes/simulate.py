"""Simulate: from collisions to a dataset."""

from __future__ import annotations

import hashlib
import time
from functools import partial
from pathlib import Path
from typing import Any

from ringflow.base.config import to_toml
from ringflow.base.errors import UsageError
from ringflow.base.provenance import collect
from ringflow.event.block import Collection, EventBlock
from ringflow.recipes.production import Request, produce
from ringflow.recipes.workers import Plan
from ringflow.sim.generated import Generator
from ringflow.sim.geometry import load_detector
from ringflow.sim.samples import make_generator
from ringflow.sim.settings import SimulateSettings

DEFAULT_EVENTS = 1000
#: What an event takes on disk, roughly and rather less (bytes): to refuse what cannot fit.
EVENT_BYTES = {True: 100_000, False: 10_000}
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

        # One thread per worker: sums in another order would be other events, and the cores belong to the workers.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        self._settings = settings
        self._geometry = load_detector(settings.detector)
        self._generator = _generator(settings)

    def block(self, index: int) -> EventBlock:
        """Events number `index * block_events` and following (fewer at the end of a file)."""
        from ringflow.sim.detector import simulate_block

        production = self._settings.production
        generated = self._generator.generate(index * production.block_events, production.block_events)
        seed = block_seed(self._settings.generator.seed, index)
        events = simulate_block(generated, self._geometry, seed, production.device)
        return events if production.keep_hits else _without_hits(events)

    def close(self) -> None:
        """Give the process its threads back."""
        import torch

        torch.set_num_threads(self._threads_before)


def block_seed(seed: int, index: int) -> int:
    """Seed of the detector's random numbers in one block, below 2^63."""
    import numpy as np

    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0]) >> 1


def _generator(settings: SimulateSettings) -> Generator:
    tracker = load_detector(settings.detector).tracker
    radius = max(layer[0] for layer in tracker.barrel)
    half_length = max(disk[0] for disk in tracker.disks)
    return make_generator(settings.generator, radius, half_length)


def _resolve(settings: SimulateSettings) -> SimulateSettings:
    """Settings with the number of events filled in; refuses what does not exist."""
    available = _generator(settings).num_available
    asked = settings.production.events
    if available is not None and asked is not None and asked > available:
        raise UsageError(f"{settings.generator.hepmc} has {available} events, {asked} were asked for; ask for fewer")
    events = asked or available or DEFAULT_EVENTS
    return settings.model_copy(update={"production": settings.production.model_copy(update={"events": events})})


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
        event_bytes=EVENT_BYTES[production.keep_hits],
    )


def _record(settings: SimulateSettings) -> dict[str, Any]:
    """What the dataset is made from: two requests with equal records make equal bytes."""
    described = settings.model_dump(mode="json")
    del described["production"]["workers"]
    files = [Path(settings.detector)] if settings.detector.endswith(".toml") else []
    if settings.generator.hepmc is not None:
        described["generator"]["hepmc"] = settings.generator.hepmc.name
        files.append(settings.generator.hepmc)
    geometry = load_detector(settings.detector).model_dump_json()
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
