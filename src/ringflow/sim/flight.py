"""Particles in flight: random draws, kinds of particles, and the table that transport and decays hand to each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ringflow.elements.helix import Helix, Vector
from ringflow.elements.tables import ColumnTable
from ringflow.event.particles import INVISIBLE, label_of, lookup


class Draw:
    """Draws from one stream. The same seed, device type and calls give the same numbers."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self._stream = torch.Generator(device=device).manual_seed(seed)

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform in [0, 1), in the shape and dtype of `like`."""
        return torch.empty_like(like).uniform_(generator=self._stream)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal."""
        return torch.empty_like(like).normal_(generator=self._stream)

    def exponential(self, like: Tensor) -> Tensor:
        """Exponential of mean one."""
        # By inversion: torch's own sampler is five times slower on a CPU.
        return self.uniform(like).neg_().log1p_().neg_()

    def poisson(self, mean: Tensor) -> Tensor:
        """Poisson counts."""
        return torch.poisson(mean, generator=self._stream)

    def gamma(self, shape: Tensor) -> Tensor:
        """Gamma of unit scale."""
        return torch._standard_gamma(shape, generator=self._stream)

    def fast_gamma(self, shape: Tensor) -> Tensor:
        """Gamma of unit scale by the cube-root transformation, for millions of spots.

        The cube root of a gamma variate is nearly normal [Wilson, Hilferty, PNAS 17 (1931) 684]; shapes are raised by one to
        where that is good to a per cent, and brought back with the power of a uniform variate.
        """
        raised = shape + 1.0
        root = 1.0 - 1.0 / (9.0 * raised) + self.normal(shape) / (3.0 * torch.sqrt(raised))
        # log of u^(1/shape), by the exponential variate.
        return raised * root.clamp_min(0.0) ** 3 * torch.exp(-self.exponential(shape) / shape)


NEUTRINO = 12

#: Decays in flight: |PDG| of the parent -> (probability, daughters) [PDG, Review of Particle Physics]. The probabilities of a
#: parent are normalised where they are used. Channels are for the positive (or neutral) parent; neutrinos are written as 12
#: whatever their flavour, since they leave.
CHANNELS: dict[int, tuple[tuple[float, tuple[int, ...]], ...]] = {
    13: ((1.0, (11, NEUTRINO, NEUTRINO)),),
    111: ((1.0, (22, 22)),),
    211: ((1.0, (-13, NEUTRINO)),),
    321: (
        (0.6356, (-13, NEUTRINO)),
        (0.2067, (211, 111)),
        (0.0558, (211, 211, -211)),
        (0.0507, (111, -11, NEUTRINO)),
        (0.0335, (111, -13, NEUTRINO)),
        (0.0176, (211, 111, 111)),
    ),
    130: (
        (0.2028, (211, 11, NEUTRINO)),
        (0.2027, (-211, -11, NEUTRINO)),
        (0.1352, (211, 13, NEUTRINO)),
        (0.1352, (-211, -13, NEUTRINO)),
        (0.1952, (111, 111, 111)),
        (0.1254, (211, -211, 111)),
    ),
}

#: What interactions and decays in the tracker make; always in the table.
SECONDARIES = (22, 11, -11, 13, -13, 111, 211, -211, 2112, 2212)

_NUCLEONS_AND_HYPERONS = 1000  # hadrons above this PDG number carry baryon number


class SpeciesTable:
    """Properties of the kinds of particles in a block and of everything they may turn into, one row per kind."""

    def __init__(self, present: np.ndarray, device: torch.device) -> None:
        kinds = np.unique(np.concatenate([np.unique(present), SECONDARIES])).astype(np.int64)
        code = np.abs(kinds)
        decays = np.array([int(kind) in CHANNELS for kind in code])
        is_baryon = (code > _NUCLEONS_AND_HYPERONS) & (code // 1000 % 10 > 0) & (code < 10**6)
        baryon = np.where(is_baryon, np.sign(kinds), 0).astype(np.float64)

        def tensor(values: np.ndarray) -> Tensor:
            return torch.as_tensor(values, device=device)

        self.pdg: list[int] = kinds.tolist()
        self.number = tensor(kinds)  # the same, rising
        self.label = tensor(label_of(kinds))
        self.charge = tensor(lookup(kinds, "charge"))
        self.mass = tensor(lookup(kinds, "mass"))
        self.ctau = tensor(np.where(decays, lookup(kinds, "ctau"), np.inf))  # mm; infinite where we know no decay
        self.is_photon, self.is_electron, self.is_muon = (tensor(code == pdg) for pdg in (22, 11, 13))
        self.is_invisible = tensor(np.isin(code, INVISIBLE))
        self.is_hadron = ~(self.is_photon | self.is_electron | self.is_muon | self.is_invisible)
        self.baryon = tensor(baryon)  # +1, -1 or 0

    def row(self, pdg: int) -> int:
        """Row of a PDG number."""
        return self.pdg.index(pdg)


@dataclass(frozen=True)
class Flight(ColumnTable):
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


def born(at: Flight, species: Tensor | int, momentum: Vector) -> Flight:
    """New particles where others are; they start tracks of their own."""
    px, py, pz = momentum
    kind = species if isinstance(species, Tensor) else torch.full_like(at.species, species)
    return replace(at, species=kind, px=px, py=py, pz=pz, root=torch.full_like(at.root, -1))


def orthogonal_frame(dx: Tensor, dy: Tensor, dz: Tensor) -> tuple[Vector, Vector]:
    """Two unit vectors that complete a direction to a right-handed frame [Duff et al., JCGT 6 (2017) 1]."""
    sign = torch.where(dz >= 0.0, 1.0, -1.0).to(dz.dtype)
    a = -1.0 / (sign + dz)
    b = dx * dy * a
    return (1.0 + sign * dx * dx * a, sign * b, -sign * dx), (b, sign + dy * dy * a, -dy)


def tilted(axis: Vector, angle: Tensor, draw: Draw) -> Vector:
    """Directions at an angle to others, at a random azimuth."""
    azimuth = 2.0 * torch.pi * draw.uniform(angle)
    along, across = torch.cos(angle), torch.sin(angle)
    u, v = across * torch.cos(azimuth), across * torch.sin(azimuth)
    x, y, z = (along * a + u * b + v * c for a, b, c in zip(axis, *orthogonal_frame(*axis), strict=True))
    return x, y, z
