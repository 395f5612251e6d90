"""Settings of a production. Free of torch, so that a login node reads them fast."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from ringflow.base.config import Settings


class GeneratorSettings(Settings):
    """Where the collisions come from: a named sample, or a file of another generator."""

    #: Name of a sample, at another energy with it: `ttbar@500`.
    sample: str | None = None
    #: HepMC3, HepMC2 or LHE file to read instead of a sample: plain, .gz or .zst.
    hepmc: Path | None = None
    #: The same seed gives the same events.
    seed: int = Field(default=1, ge=0)


class ProductionSettings(Settings):
    """How many events, and how the work is cut. Neither `workers` nor `events` changes any event."""

    #: Number of events; left out: all of a file, or 1000 of a sample.
    events: int | None = Field(default=None, ge=1)
    #: Processes to use; the events do not depend on it.
    workers: int = Field(default=1, ge=1)
    #: Events per file of the dataset.
    events_per_shard: int = Field(default=250, ge=1)
    #: Events simulated as one tensor batch; part of what an event is made from, like the seed.
    block_events: int = Field(default=50, ge=1, le=4000)
    #: Where the detector is simulated: `cpu`, an accelerator as torch calls it, or `auto` for the one that is there.
    device: str = "cpu"
    #: Whether the calorimeter hits are written, too.
    keep_hits: bool = True


class SimulateSettings(Settings):
    """Everything `ringflow simulate` needs."""

    #: Name of a detector, or a TOML file of one.
    detector: str = "clic"
    generator: GeneratorSettings = GeneratorSettings()
    production: ProductionSettings = ProductionSettings()
