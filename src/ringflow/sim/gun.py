"""Particle guns: one particle per event from the origin, for the validation of a detector."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ringflow.base.errors import UsageError
from ringflow.event.particles import lookup, properties
from ringflow.sim.generated import GeneratedEvents
from ringflow.sim.samples import Gun
from ringflow.sim.seeds import event_key


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
        u_kind, u_energy, u_polar, u_azimuth = np.array([_uniform(key) for key in keys]).reshape(-1, 4).T
        pdg = np.array(gun.pdg, dtype=np.int32)[(u_kind * len(gun.pdg)).astype(np.intp)]
        energy = gun.energy[0] + u_energy * (gun.energy[1] - gun.energy[0])
        cos_theta = gun.cos_theta[0] + u_polar * (gun.cos_theta[1] - gun.cos_theta[0])
        phi = (2 * u_azimuth - 1) * np.pi
        mass = lookup(pdg, "mass")
        momentum = np.sqrt(energy**2 - mass**2)
        transverse = momentum * np.sqrt(1 - cos_theta**2)
        direction = (transverse * np.cos(phi), transverse * np.sin(phi), momentum * cos_theta)
        return GeneratedEvents.at_origin(numbers, np.ones(count, dtype=np.int64), pdg, direction, energy)

    def describe(self) -> Mapping[str, object]:
        """Name, definition and seed."""
        return {"kind": "gun", "sample": self._name, "seed": self._seed, **self._gun.model_dump(mode="json")}


def _uniform(key: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(key)).random(4)
