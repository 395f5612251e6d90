"""Particles in flight: the table that transport, interactions and decays hand to each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ringflow.sim.helix import Helix
from ringflow.sim.species import SpeciesTable
from ringflow.sim.table import Table


@dataclass(frozen=True)
class Flight(Table):
    """One row per particle in flight; mm, ns, GeV, double precision.

    `particle` is the generator particle it descends from, `root` the row that began its track: its own row, or an earlier one
    if it goes on as the same charged particle (an electron after radiating a photon).
    """

    particle: Tensor
    species: Tensor
    x: Tensor
    y: Tensor
    z: Tensor
    time: Tensor
    px: Tensor
    py: Tensor
    pz: Tensor
    root: Tensor

    @property
    def momentum(self) -> Tensor:
        """Magnitude of the momentum."""
        return torch.sqrt(self.px**2 + self.py**2 + self.pz**2)

    def energy(self, species: SpeciesTable) -> Tensor:
        """Total energy."""
        return torch.sqrt(self.momentum**2 + species.mass[self.species] ** 2)

    def helix(self, species: SpeciesTable, field: float) -> Helix:
        """Path in the field."""
        charge = species.charge[self.species]
        return Helix.of(self.x, self.y, self.z, self.px, self.py, self.pz, charge, field)


def daughters(
    parents: Flight,
    rows: Tensor,
    species: Tensor | int,
    momentum: tuple[Tensor, Tensor, Tensor],
    root: Tensor | int = -1,
) -> Flight:
    """New particles at the position of `parents[rows]`; a root of -1 means they start a track of their own."""
    px, py, pz = momentum
    at = parents.take(rows)

    def column(value: Tensor | int) -> Tensor:
        return value if isinstance(value, Tensor) else torch.full_like(at.particle, value)

    return Flight(at.particle, column(species), at.x, at.y, at.z, at.time, px, py, pz, column(root))


def orthogonal_frame(
    dx: Tensor, dy: Tensor, dz: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Two unit vectors that complete a direction to a right-handed frame [Duff et al., JCGT 6 (2017) 1]."""
    sign = torch.where(dz >= 0.0, 1.0, -1.0).to(dz.dtype)
    a = -1.0 / (sign + dz)
    b = dx * dy * a
    first = (1.0 + sign * dx * dx * a, sign * b, -sign * dx)
    second = (b, sign + dy * dy * a, -dy)
    return first, second
