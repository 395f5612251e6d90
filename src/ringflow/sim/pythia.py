"""Collisions from Pythia 8, each event a pure function of its name: sample, seed and number.

Cost on one core: 0.7 to 0.8 ms per ttbar event, of which 0.06 ms are seeding and 0.02 ms taking the particles out; the
start of Pythia takes 0.2 s, or 3 s where photons collide.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import FailureError
from ringflow.event.particles import SPEED_OF_LIGHT
from ringflow.sim.generator import Collision, GeneratedEvents, event_key, sample

#: How often an event that Pythia gave up is tried again, every time with other random numbers.
ATTEMPTS = 20

# The start of Pythia searches the maximum of the cross section with random numbers: the same for every seed.
_BASE_LINES = ("Print:quiet = on", "Random:setSeed = on", "Random:seed = 1", "ParticleDecays:limitCylinder = on")
_DATA_HINT = "check the sample, and that PYTHIA8DATA, if set, is the xmldoc folder of the installed Pythia 8"
_BATCH = 100  # events in memory with their whole history, 0.1 MB each
_SEEDS = 900_000_000
_SHIFTS = 16_777_213  # of the 24-bit arithmetic sequence inside Pythia's generator

#: Radius and half length (mm) within which decays belong to the generator: what would decay outside reaches the detector whole.
Cylinder = tuple[float, float]
#: What identifies an event to the seeding.
EventName = tuple[str | int, ...]
#: Columns of the particles of some events, flat over the events; named and measured as in `GeneratedEvents`.
Columns = dict[str, npt.NDArray[Any]]
COLUMNS = ("pdg", "px", "py", "pz", "energy", "x", "y", "z", "time")


class PythiaGenerator:
    """A named collision, overlaid with others where the sample says so."""

    num_available = None

    def __init__(self, name: str, collision: Collision, seed: int, cylinder: Cylinder) -> None:
        self._name, self._seed, self._overlay = name, seed, collision.overlay
        self._collision = PythiaSource(collision, cylinder)
        if self._overlay is not None:
            overlaid = sample(self._overlay.sample)
            assert isinstance(overlaid, Collision), f"overlay of {self._overlay.sample}, which is not a collision"
            self._overlaid = PythiaSource(overlaid, cylinder)

    def generate(self, start: int, count: int) -> GeneratedEvents:
        """Events number `start` to `start + count - 1`."""
        numbers = range(start, start + count)
        names: list[EventName] = [(self._name, self._seed, number, 0) for number in numbers]
        counts, columns = self._collision.events(names)
        if self._overlay is not None:
            for number in numbers:
                key = event_key(self._name, self._seed, number, "overlay")
                extra = int(np.random.Generator(np.random.PCG64(key)).poisson(self._overlay.mean))
                names += [(self._name, self._seed, number, 1 + interaction) for interaction in range(extra)]
            extra_counts, extra_columns = self._overlaid.events(names[count:])
            counts = np.concatenate([counts, extra_counts])
            columns = {key: np.concatenate([values, extra_columns[key]]) for key, values in columns.items()}
        row = np.repeat(np.array([name[2] for name in names], dtype=np.int64) - start, counts)
        order = np.argsort(row, kind="stable")
        return GeneratedEvents(
            event_number=np.arange(start, start + count, dtype=np.int64),
            counts=np.bincount(row, minlength=count).astype(np.int64),
            interaction=np.repeat(np.array([name[3] for name in names], dtype=np.int16), counts)[order],
            **{key: values[order] for key, values in columns.items()},
        )

    def describe(self) -> Mapping[str, object]:
        """Name, seed, Pythia's version and the settings it was given."""
        described: dict[str, object] = {
            "kind": "pythia",
            "sample": self._name,
            "seed": self._seed,
            "pythia8mc": version("pythia8mc"),
            "settings": self._collision.settings,
        }
        if self._overlay is not None:
            settings = self._overlaid.settings
            described["overlay"] = {**self._overlay.model_dump(mode="json"), "settings": settings}
        return described


class PythiaSource:
    """One Pythia, started when it is first needed, that makes the event of a given name."""

    def __init__(self, collision: Collision, cylinder: Cylinder) -> None:
        self.settings = [*common_lines(cylinder), f"Beams:eCM = {collision.cm_energy!r}", *collision.pythia]
        self._names: Iterator[EventName] = iter(())

    @cached_property
    def _pythia(self) -> Any:
        import pythia8mc

        source = self

        class Reseed(pythia8mc.UserHooks):  # type: ignore[misc]
            """Called by Pythia at the start of every event: seeding inside a batch keeps the batch fast."""

            def onBeginEvent(self) -> None:  # noqa: N802 (Pythia's name)
                reseed(source._pythia, event_key(*next(source._names)))

        self._hook = Reseed()  # Pythia does not keep it alive
        return start_pythia(self.settings, self._hook)

    def events(self, names: Sequence[EventName]) -> tuple[npt.NDArray[np.int64], Columns]:
        """Particles per event, and their columns flat over the events in the order of the names."""
        pieces = [self._batch(names[first : first + _BATCH]) for first in range(0, len(names), _BATCH)]
        if not pieces:
            return np.zeros(0, dtype=np.int64), {key: np.zeros(0) for key in COLUMNS} | {"pdg": np.zeros(0, np.int32)}
        counts = np.concatenate([piece[0] for piece in pieces])
        return counts, {key: np.concatenate([piece[1][key] for piece in pieces]) for key in COLUMNS}

    def _batch(self, names: Sequence[EventName]) -> tuple[npt.NDArray[np.int64], Columns]:
        import awkward as ak

        missing = np.arange(len(names))
        made, made_rows = [], []
        for attempt in range(ATTEMPTS):
            self._names = iter([(*names[row], attempt) for row in missing.tolist()])
            batch = self._pythia.nextBatch(len(missing), "none")
            failed = ak.to_numpy(ak.is_none(batch))
            if not failed.all():
                particles = batch[~failed].prt
                made.append(particles[particles.status > 0])
                made_rows.append(missing[~failed])
            missing = missing[failed]
            if not len(missing):
                break
        else:
            event = "/".join(map(str, names[int(missing[0])]))
            raise FailureError(f"Pythia failed {ATTEMPTS} times to make event {event}; use another seed")
        particles = made[0] if len(made) == 1 else ak.concatenate(made)[np.argsort(np.concatenate(made_rows))]
        flat = ak.flatten(particles)
        momentum = [ak.to_numpy(flat.p[key]) for key in ("px", "py", "pz", "e")]
        # Pythia leaves out a vertex at the origin.
        x, y, z, ct = (ak.to_numpy(ak.fill_none(flat.vProd[key], 0.0)) for key in ("px", "py", "pz", "e"))
        columns = (ak.to_numpy(flat.id).astype(np.int32), *momentum, x, y, z, ct / SPEED_OF_LIGHT)
        return ak.to_numpy(ak.num(particles)).astype(np.int64), dict(zip(COLUMNS, columns, strict=True))


def start_pythia(lines: Sequence[str], hook: object = None, partons: object = None) -> Any:
    """A silent Pythia, initialised with the settings; `partons` is an `LHAup` that gives it its events."""
    import pythia8mc

    data = os.environ.get("PYTHIA8DATA")
    if data and not Path(data, "Index.xml").is_file():
        raise FailureError(f"PYTHIA8DATA={data} holds no Index.xml; unset it, or give the xmldoc folder of Pythia 8")
    pythia = pythia8mc.Pythia("", False)
    for line in lines:
        if not pythia.readString(line):
            raise FailureError(f"Pythia does not accept {line!r}; {_DATA_HINT}")
    if hook is not None:
        pythia.addUserHooksPtr(hook)
    if partons is not None:
        pythia.setLHAupPtr(partons)
    if not pythia.init():
        raise FailureError(f"Pythia does not start with {', '.join(lines)}; {_DATA_HINT}")
    return pythia


def reseed(pythia: Any, key: int) -> None:
    """Put Pythia's random numbers into the state that belongs to a 64-bit key.

    Its generator (RANMAR) takes 9e8 seeds, too few: a million events would share some. The start of the arithmetic
    sequence that RANMAR subtracts is free too, which gives 1.5e16 states.
    """
    key, seed = divmod(key, _SEEDS)
    pythia.rndm.init(1 + seed)
    state = pythia.rndm.getState()
    state.c = math.ldexp(key % _SHIFTS, -24)
    pythia.rndm.setState(state)


def final_particles(pythia: Any) -> Columns:
    """What the event in Pythia ends with."""
    rows = [
        (p.id(), p.px(), p.py(), p.pz(), p.e(), p.xProd(), p.yProd(), p.zProd(), p.tProd() / SPEED_OF_LIGHT)
        for p in pythia.event
        if p.isFinal()
    ]
    columns = dict(zip(COLUMNS, np.array(rows).reshape(-1, len(COLUMNS)).T, strict=True))
    return {**columns, "pdg": columns["pdg"].astype(np.int32)}


def common_lines(cylinder: Cylinder) -> list[str]:
    """Settings of every Pythia."""
    radius, half_length = cylinder
    return [*_BASE_LINES, f"ParticleDecays:xyMax = {radius!r}", f"ParticleDecays:zMax = {half_length!r}"]


_TAU = 15
_FINAL = 81  # Pythia's status of a hadron that is about to decay or to stay


class Decayer:
    """Lets Pythia decay what has less than about a metre to live, inside the cylinder; pi, K+-, K0L, mu and n stay."""

    def __init__(self, cylinder: Cylinder) -> None:
        self._pythia = start_pythia([*common_lines(cylinder), "ProcessLevel:all = off"])

    def is_short_lived(self, pdg: int) -> bool:
        """Whether Pythia would decay it; what is neither hadron nor tau, or not known to Pythia, is left alone."""
        table = self._pythia.particleData
        decays = table.isParticle(pdg) and (table.isHadron(pdg) or abs(pdg) == _TAU)
        return bool(decays and table.canDecay(pdg) and table.mayDecay(pdg))

    def decay(self, particles: Columns, settled: npt.NDArray[np.bool_], name: EventName) -> Columns:
        """The particles of one event with the short-lived ones replaced by their products, which follow at the end.

        A settled particle is known to leave the cylinder: it had its chance and is not decayed again.
        """
        kinds = np.unique(particles["pdg"]).tolist()
        decaying = np.isin(particles["pdg"], [pdg for pdg in kinds if self.is_short_lived(pdg)]) & ~settled
        if not decaying.any():
            return particles
        for attempt in range(ATTEMPTS):
            reseed(self._pythia, event_key(*name, attempt))
            self._fill({key: values[decaying] for key, values in particles.items()})
            if self._pythia.moreDecays():
                break
        else:
            kinds = sorted(set(particles["pdg"][decaying].tolist()))
            raise FailureError(f"Pythia failed {ATTEMPTS} times to decay PDG {kinds}; check energies and momenta")
        made = final_particles(self._pythia)
        return {key: np.concatenate([particles[key][~decaying], made[key]]) for key in COLUMNS}

    def _fill(self, particles: Columns) -> None:
        event, rndm, table = self._pythia.event, self._pythia.rndm, self._pythia.particleData
        event.reset()
        for pdg, px, py, pz, energy, x, y, z, time in zip(*(particles[key].tolist() for key in COLUMNS), strict=True):
            mass, energy = self._mass_and_energy(pdg, math.hypot(px, py, pz), energy)
            particle = event[event.append(pdg, _FINAL, 0, 0, px, py, pz, energy, mass)]
            particle.vProd(x, y, z, time * SPEED_OF_LIGHT)
            particle.tau(table.tau0(pdg) * rndm.exp())

    def _mass_and_energy(self, pdg: int, momentum: float, energy: float) -> tuple[float, float]:
        """Mass to decay with, and the energy that belongs to it: Pythia may search for ever below the mass it knows."""
        table = self._pythia.particleData
        mass, known_mass = max(energy**2 - momentum**2, 0.0) ** 0.5, table.m0(pdg)
        if abs(mass - known_mass) <= 1e-3 * known_mass + 5 * table.mWidth(pdg):
            return mass, energy
        # Rounded digits of a fast particle spoil its mass more than its energy.
        known_energy = math.hypot(momentum, known_mass)
        if abs(energy - known_energy) <= 1e-3 * known_energy:
            return known_mass, known_energy
        raise FailureError(f"PDG {pdg} has a mass of {mass:.3g} GeV, not {known_mass:.3g}; check energies and momenta")
