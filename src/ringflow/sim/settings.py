"""Settings of a production. Free of torch, so that a login node reads them fast."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from ringflow.base.config import Settings


class GeneratorSettings(Settings):
    """Where the collisions come from: a named sample, or a HepMC3 file."""

    sample: str | None = None
    hepmc: Path | None = None
    seed: int = Field(default=1, ge=0)


class ProductionSettings(Settings):
    """How many events, and how the work is cut. Neither `workers` nor `events` changes any event."""

    #: Left out: all events of a HepMC file, or 1000 of a sample.
    events: int | None = Field(default=None, ge=1)
    workers: int = Field(default=1, ge=1)
    events_per_shard: int = Field(default=250, ge=1)
    #: Events simulated as one tensor batch; part of what an event is made from, like the seed.
    block_events: int = Field(default=50, ge=1, le=4000)
    device: str = "cpu"
    keep_hits: bool = True


class SimulateSettings(Settings):
    """Everything `ringflow simulate` needs."""

    detector: str = "clic"
    generator: GeneratorSettings = GeneratorSettings()
    production: ProductionSettings = ProductionSettings()
