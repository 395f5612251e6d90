"""The named samples, read from `samples.toml`, and the one call that makes a generator of them.

generator = make_generator(GeneratorSettings(sample="ttbar", seed=1), 1486.0, 2190.0)
events = generator.generate(0, 100)
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from ringflow.base.config import Settings
from ringflow.base.errors import UsageError
from ringflow.sim.generated import Generator
from ringflow.sim.settings import GeneratorSettings

_TABLE = Path(__file__).parent / "samples.toml"


class Overlay(Settings):
    """Further interactions on top of a collision: events of a sample, their number drawn from a Poisson distribution."""

    sample: str
    mean: float = Field(gt=0)


class Collision(Settings):
    """Beams that collide at `cm_energy` (GeV), as Pythia settings."""

    description: str
    cm_energy: float = Field(gt=0)
    pythia: tuple[str, ...]
    overlay: Overlay | None = None


class Gun(Settings):
    """One particle per event from the origin, flat in total energy (GeV) and in the cosine of the polar angle."""

    description: str
    pdg: tuple[int, ...] = Field(min_length=1)
    energy: tuple[float, float]
    cos_theta: tuple[float, float]

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        if not 0 < self.energy[0] <= self.energy[1]:
            raise ValueError(f"energy must be a rising range above 0, not {self.energy}")
        if not -1 <= self.cos_theta[0] <= self.cos_theta[1] <= 1:
            raise ValueError(f"cos_theta must be a rising range within -1 to 1, not {self.cos_theta}")
        return self


class _SampleTable(Settings):
    collision: dict[str, Collision]
    gun: dict[str, Gun]


def sample_names() -> list[str]:
    """Names of the samples, in the order of the table."""
    return list(_samples())


def sample(name: str) -> Collision | Gun:
    """Definition of a named sample."""
    samples = _samples()
    if name in samples:
        return samples[name]
    close = difflib.get_close_matches(name, samples, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(f"unknown sample {name!r}; {hint}samples: {', '.join(samples)}")


def make_generator(settings: GeneratorSettings, tracker_radius: float, tracker_half_length: float) -> Generator:
    """The generator of a sample or of a HepMC file; particles that decay do so within the tracker cylinder (mm)."""
    if (settings.sample is None) == (settings.hepmc is None):
        given = f"both {settings.sample!r} and {str(settings.hepmc)!r}" if settings.sample else "neither"
        raise UsageError(f"give a sample or a HepMC file, not {given}; samples: {', '.join(sample_names())}")

    # Late imports: naming the samples must not cost a load of the generators.
    from ringflow.sim.pythia import Cylinder

    cylinder = Cylinder(tracker_radius, tracker_half_length)
    if settings.hepmc is not None:
        from ringflow.sim.hepmc import HepMCGenerator

        return HepMCGenerator(settings.hepmc, settings.seed, cylinder)
    assert settings.sample is not None
    definition = sample(settings.sample)
    if isinstance(definition, Gun):
        from ringflow.sim.gun import GunGenerator

        return GunGenerator(settings.sample, definition, settings.seed)
    from ringflow.sim.pythia import PythiaGenerator

    return PythiaGenerator(settings.sample, definition, settings.seed, cylinder)


@cache
def _samples() -> Mapping[str, Collision | Gun]:
    table = _SampleTable.model_validate(tomllib.loads(_TABLE.read_text(encoding="utf-8")))
    return {**table.collision, **table.gun}
