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
from ringflow.data.production import Request, plan_shards, produce, require_space
from ringflow.sim.blocks import SimulatedBlocks, open_generator
from ringflow.sim.generator import sample_name
from ringflow.sim.geometry import load_detector, split_variation
from ringflow.sim.settings import SimulateSettings

DEFAULT_EVENTS = 1000
#: What an event of a collision takes on disk with and without hits (bytes), and what any event takes: rather less than
#: it is, because the figures only serve to refuse what cannot fit.
COLLISION_BYTES = {True: 50_000, False: 5_000}
LEAST_BYTES = 2_000


def simulate(settings: SimulateSettings, out: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Make a dataset, finish an interrupted one, or find that it is already there.

    Neither the number of workers nor an interruption changes a byte. Asking for more events extends a dataset.
    """
    started = time.perf_counter()
    settings = _resolve(settings)
    production, generator = settings.production, settings.generator
    assert production.events is not None, "resolved before"
    sample = generator.hepmc.name if generator.hepmc is not None else str(generator.sample)
    small = generator.hepmc is not None or sample.startswith(("gamma_gamma", "gun_"))
    event_bytes = LEAST_BYTES if small else COLLISION_BYTES[production.keep_hits]
    require_space(out, production.events, event_bytes)  # before hundreds of millions of shards are planned
    shareable = settings.model_copy(update={"production": production.model_copy(update={"workers": 1})})
    request = Request(
        tasks=plan_shards(production.events, production.events_per_shard, production.block_events),
        record=_record(settings),
        detector=load_detector(settings.detector).name,
        sample=sample,
        doing=f"simulating {sample}",
        settings=to_toml(shareable),
        event_bytes=event_bytes,
    )
    blocks = partial(SimulatedBlocks, settings)
    manifest, new_events = produce(out, request, blocks, workers=production.workers, overwrite=overwrite)
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


def _resolve(settings: SimulateSettings) -> SimulateSettings:
    """Settings with the number of events and the device filled in; refuses what does not exist."""
    device = settings.production.device
    if device != "cpu":
        from ringflow.train.device import choose_device

        device = str(choose_device(device))
    available = open_generator(settings).num_available
    asked = settings.production.events
    if available is not None and asked is not None and asked > available:
        raise UsageError(f"{settings.generator.hepmc} has {available} events, {asked} were asked for; ask for fewer")
    events = asked or available or DEFAULT_EVENTS
    production = settings.production.model_copy(update={"events": events, "device": device})
    generator = settings.generator
    if generator.sample is not None:
        generator = generator.model_copy(update={"sample": sample_name(generator.sample)})
    return settings.model_copy(update={"production": production, "generator": generator})


def _record(settings: SimulateSettings) -> dict[str, Any]:
    """What the dataset is made from: two requests with equal records make equal bytes."""
    described = settings.model_dump(mode="json")
    del described["production"]["workers"]
    path, _ = split_variation(settings.detector)
    files = [Path(path)] if path.endswith(".toml") else []
    if settings.generator.hepmc is not None:
        described["generator"]["hepmc"] = settings.generator.hepmc.name
        files.append(settings.generator.hepmc)
    # What is published of a detector does not change an event, nor does a variation that there is none of.
    detector = load_detector(settings.detector)
    left_out = {"published"} if detector.variation is not None else {"published", "variation"}
    geometry = detector.model_dump_json(exclude=left_out)
    # Whoever reads the dataset knows a detector of ours by its name, and nobody else's.
    own = {"geometry": detector.model_dump(mode="json", exclude=left_out)} if detector.name != settings.detector else {}
    return {
        **collect(described, {"generator": settings.generator.seed}, files),
        "generator": dict(open_generator(settings).describe()),
        "geometry_sha256": hashlib.sha256(geometry.encode()).hexdigest(),
        **own,
    }
