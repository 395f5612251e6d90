"""Where collisions come from: the named samples of `samples.toml`, and the one call that makes a generator of them.

generator = make_generator(GeneratorSettings(sample="ttbar", seed=1), 1486.0, 2190.0)
events = generator.generate(0, 100)
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from ringflow.base.config import Settings
from ringflow.base.errors import UsageError
from ringflow.base.words import did_you_mean
from ringflow.event.particles import lookup, properties
from ringflow.sim.settings import GeneratorSettings

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GeneratedEvents:
    """Final-state particles (neutrinos included), flat over the events in order; GeV, mm, ns."""

    event_number: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    pdg: npt.NDArray[np.int32]
    px: Floats
    py: Floats
    pz: Floats
    energy: Floats
    x: Floats
    y: Floats
    z: Floats
    time: Floats
    interaction: npt.NDArray[np.int16]  # 0 for the hard collision, 1, 2, ... for overlaid ones

    def __len__(self) -> int:
        return len(self.event_number)


def at_origin(
    event_number: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], pdg: npt.NDArray[np.int32], *momentum: Floats
) -> GeneratedEvents:
    """Particles (px, py, pz, energy) that start at the collision point at time zero."""
    px, py, pz, energy = momentum
    zero, hard = np.zeros(len(pdg)), np.zeros(len(pdg), dtype=np.int16)
    return GeneratedEvents(event_number, counts, pdg, px, py, pz, energy, zero, zero, zero, zero, hard)


class Generator(Protocol):
    """Makes event number n the same way whatever was asked for before: a pure function of settings, seed and n."""

    @property
    def num_available(self) -> int | None:
        """Events that exist, for a file; None where there is no end."""

    def generate(self, start: int, count: int) -> GeneratedEvents:
        """Events number `start` to `start + count - 1` (fewer at the end of a file)."""

    def describe(self) -> Mapping[str, object]:
        """What to write into the provenance: settings, versions, input hashes."""


def event_key(*name: str | int) -> int:
    """A 64-bit number that is a pure function of a name such as ("ttbar", seed, event, interaction, attempt)."""
    text = "/".join(map(str, name))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def block_seed(seed: int, index: int) -> int:
    """Seed of the detector's random numbers in one block, below 2^63."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0]) >> 1


#: GeV that a gun may be set to, if its particles are lighter.
_GUN_ENERGIES = (0.1, 3000.0)
_TABLE = Path(__file__).parent / "samples.toml"


class Overlay(Settings):
    """Further interactions on top of a collision: events of a sample, their number drawn from a Poisson distribution."""

    sample: str
    mean: float = Field(gt=0)


class Collision(Settings):
    """Beams that collide at `cm_energy` (GeV), as Pythia settings; `energies` is the range it may be changed in."""

    description: str
    cm_energy: float = Field(gt=0)
    energies: tuple[float, float]
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
    """Definition of a named sample, at another energy if the name ends in one: `ttbar@500`."""
    samples = _samples()
    base, at, told = name.partition("@")
    if base not in samples:
        raise UsageError(f"unknown sample {base!r}; {did_you_mean(base, samples)}samples: {', '.join(samples)}")
    definition = samples[base]
    if not at:
        return definition
    low, high = definition.energies if isinstance(definition, Collision) else _GUN_ENERGIES
    try:
        energy = float(told)
    except ValueError:
        raise UsageError(f"{told!r} in {name!r} is not an energy; give it in GeV, as in {base}@{high:g}") from None
    if not low <= energy <= high:
        raise UsageError(f"{base} cannot be made at {told} GeV; give an energy from {low:g} to {high:g} GeV")
    if isinstance(definition, Gun):
        return definition.model_copy(update={"energy": (energy, energy)})
    overlay = definition.overlay
    if overlay is not None:
        overlay = overlay.model_copy(update={"sample": sample_name(f"{overlay.sample}@{told}")})
    return definition.model_copy(update={"cm_energy": energy, "overlay": overlay})


def sample_name(name: str, energy: float | None = None) -> str:
    """The one name of a sample, at an energy if one is given: `ttbar@380.0` is `ttbar`, which has that energy itself."""
    base, at, _ = name.partition("@")
    if energy is not None:
        if at:
            raise UsageError(f"{name} has an energy already; give {base}, or leave --energy {energy:g} out")
        name = f"{base}@{energy!r}"
    definition = sample(name)
    if "@" not in name or definition == _samples()[base]:
        return base
    changed = definition.cm_energy if isinstance(definition, Collision) else definition.energy[0]
    return f"{base}@{changed:.12g}"


def make_generator(settings: GeneratorSettings, tracker_radius: float, tracker_half_length: float) -> Generator:
    """The generator of a sample or of a file; particles that decay do so within the tracker cylinder (mm)."""
    if (settings.sample is None) == (settings.hepmc is None):
        given = f"both {settings.sample!r} and {str(settings.hepmc)!r}" if settings.sample else "neither"
        raise UsageError(f"give a sample or a HepMC file, not {given}; samples: {', '.join(sample_names())}")

    cylinder = tracker_radius, tracker_half_length
    # Late imports: naming the samples must not cost a load of the generators.
    if settings.hepmc is not None:
        from ringflow.sim.hepmc import HepMCGenerator

        return HepMCGenerator(settings.hepmc, settings.seed, cylinder)
    assert settings.sample is not None
    name, definition = sample_name(settings.sample), sample(settings.sample)
    if isinstance(definition, Gun):
        return GunGenerator(name, definition, settings.seed)
    from ringflow.sim.pythia import PythiaGenerator

    return PythiaGenerator(name, definition, settings.seed, cylinder)


@cache
def _samples() -> Mapping[str, Collision | Gun]:
    table = _SampleTable.model_validate(tomllib.loads(_TABLE.read_text(encoding="utf-8")))
    return {**table.collision, **table.gun}


class GunGenerator:
    """Shoots what a `Gun` describes, without end; about 20 us per event."""

    num_available = None

    def __init__(self, name: str, gun: Gun, seed: int) -> None:
        too_heavy = [pdg for pdg in gun.pdg if properties(pdg).mass > gun.energy[0]]
        if too_heavy:
            raise UsageError(f"{name}: PDG {too_heavy[0]} needs more than the lowest energy, {gun.energy[0]} GeV")
        self._name = name
        self._gun = gun
        self._seed = seed

    def generate(self, start: int, count: int) -> GeneratedEvents:
        """Events number `start` to `start + count - 1`."""
        gun = self._gun
        numbers = np.arange(start, start + count, dtype=np.int64)
        keys = [event_key(self._name, self._seed, int(number)) for number in numbers]
        drawn = [np.random.Generator(np.random.PCG64(key)).random(4) for key in keys]
        u_kind, u_energy, u_polar, u_azimuth = np.array(drawn).reshape(-1, 4).T
        pdg = np.array(gun.pdg, dtype=np.int32)[(u_kind * len(gun.pdg)).astype(np.intp)]
        energy = gun.energy[0] + u_energy * (gun.energy[1] - gun.energy[0])
        cos_theta = gun.cos_theta[0] + u_polar * (gun.cos_theta[1] - gun.cos_theta[0])
        phi = (2 * u_azimuth - 1) * np.pi
        momentum = np.sqrt(energy**2 - lookup(pdg, "mass") ** 2)
        transverse = momentum * np.sqrt(1 - cos_theta**2)
        direction = (transverse * np.cos(phi), transverse * np.sin(phi), momentum * cos_theta)
        return at_origin(numbers, np.ones(count, dtype=np.int64), pdg, *direction, energy)

    def describe(self) -> Mapping[str, object]:
        """Name, definition and seed."""
        return {"kind": "gun", "sample": self._name, "seed": self._seed, **self._gun.model_dump(mode="json")}
