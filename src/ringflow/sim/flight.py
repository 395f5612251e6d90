"""Particles in flight: random draws, kinds of particles, helices, and the table that transport and decays hand to each other.

A solenoid field bends paths; they are given as transverse path lengths in mm (the length of the projection onto the xy plane).
All functions are elementwise over tensors of particles; straight lines (neutral particles) are helices of no curvature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ringflow.elements.shapes import normal_of_side
from ringflow.elements.tables import ColumnTable
from ringflow.event.particles import INVISIBLE, SPEED_OF_LIGHT, label_of, lookup

Vector = tuple[Tensor, Tensor, Tensor]


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


#: Turning rate of a unit charge: pt [GeV] = BENDING * B [T] * radius [mm].
BENDING = SPEED_OF_LIGHT * 1e-6

#: Below this curvature times distance a path counts as straight; the sagitta is then under a nanometre in a detector.
_STRAIGHT = 1e-9
_TWO_PI = 2.0 * torch.pi


@dataclass(frozen=True)
class Helix(ColumnTable):
    """Position, direction and signed turning rate (rad per mm of transverse path)."""

    x: Tensor
    y: Tensor
    z: Tensor
    phi: Tensor
    tan_lambda: Tensor
    turn: Tensor

    @classmethod
    def of(
        cls, x: Tensor, y: Tensor, z: Tensor, px: Tensor, py: Tensor, pz: Tensor, charge: Tensor, field: float
    ) -> Helix:
        """Helix of particles in a field along +z; positive charges turn clockwise seen from +z."""
        pt = torch.hypot(px, py).clamp_min(1e-9)
        return cls(x, y, z, torch.atan2(py, px), pz / pt, -BENDING * charge * field / pt)

    def position(self, path: Tensor) -> Vector:
        """Point after a transverse path."""
        half_turn = 0.5 * self.turn * path
        chord = path * torch.sinc(half_turn / torch.pi)
        middle = self.phi + half_turn
        return self.x + chord * torch.cos(middle), self.y + chord * torch.sin(middle), self.z + path * self.tan_lambda

    def direction(self, path: Tensor) -> Vector:
        """Unit vector of the momentum after a transverse path."""
        azimuth = self.phi + self.turn * path
        cos_lambda = torch.rsqrt(1.0 + self.tan_lambda**2)
        return cos_lambda * torch.cos(azimuth), cos_lambda * torch.sin(azimuth), cos_lambda * self.tan_lambda

    def length(self, path: Tensor) -> Tensor:
        """Length in space of a transverse path."""
        return path * torch.sqrt(1.0 + self.tan_lambda**2)

    def to_cylinder(self, radius: float | Tensor) -> Tensor:
        """Shortest path forward to a cylinder around the beam axis; infinite if it is never met."""
        along = self.x * torch.cos(self.phi) + self.y * torch.sin(self.phi)
        discriminant = along**2 - (self.x**2 + self.y**2 - radius**2)
        root = torch.sqrt(discriminant.clamp_min(0.0))
        straight = torch.where(-along - root > 1e-6, -along - root, -along + root)
        straight = torch.where((discriminant >= 0.0) & (straight > 1e-6), straight, torch.inf)

        turn = torch.where(self.turn.abs() < _STRAIGHT, _STRAIGHT, self.turn)
        centre_x = self.x - torch.sin(self.phi) / turn
        centre_y = self.y + torch.cos(self.phi) / turn
        centre = torch.hypot(centre_x, centre_y).clamp_min(1e-9)
        bend = 1.0 / turn.abs()
        cosine = (radius**2 - centre**2 - bend**2) / (2.0 * centre * bend)
        half_angle = torch.acos(cosine.clamp(-1.0, 1.0))
        start = self.phi - 0.5 * torch.pi * turn.sign()
        axis = torch.atan2(centre_y, centre_x)
        candidates = [
            torch.remainder((axis + side * half_angle - start) * turn.sign(), _TWO_PI) for side in (-1.0, 1.0)
        ]
        # A start on the cylinder itself is not a crossing.
        first, second = (torch.where(angle * bend < 1e-6, _TWO_PI, angle) for angle in candidates)
        curved = torch.where(cosine.abs() <= 1.0, torch.minimum(first, second) * bend, torch.inf)
        return torch.where(self.turn.abs() < _STRAIGHT, straight, curved)

    def to_side(self, distance: float, normal: Tensor) -> Tensor:
        """Path forward to a plane along the beam, at a distance from the axis and with a normal at an azimuth; infinite if
        it is never met."""
        away = distance - (self.x * torch.cos(normal) + self.y * torch.sin(normal))
        angle = self.phi - normal
        slope = torch.cos(angle)
        straight = torch.where(slope > 1e-9, away / slope.clamp_min(1e-9), torch.inf)

        turn = torch.where(self.turn.abs() < _STRAIGHT, _STRAIGHT, self.turn)
        sine = torch.sin(angle) + turn * away  # of the angle against the normal at the plane
        first = torch.asin(sine.clamp(-1.0, 1.0))
        turned = (torch.remainder((end - angle) * turn.sign(), _TWO_PI) for end in (first, torch.pi - first))
        curved = torch.where(sine.abs() <= 1.0, torch.minimum(*turned) / turn.abs(), torch.inf)
        path = torch.where(self.turn.abs() < _STRAIGHT, straight, curved)
        return torch.where(path > 1e-6, path, torch.inf)

    def to_sides(self, distance: float, sides: int) -> Tensor:
        """Path forward from inside a barrel of flat sides to the first of them; infinite if none is met."""
        path = torch.full_like(self.x, torch.inf)
        # The side met is that below the cylinder inside of all sides, or that below the one around their edges.
        for radius in (distance, distance / math.cos(math.pi / sides)):
            reached = self.to_cylinder(radius)
            x, y, _ = self.position(torch.where(reached.isfinite(), reached, 0.0))
            normal = normal_of_side(x, y, sides)
            to_side = self.to_side(distance, normal)
            x, y, _ = self.position(torch.where(to_side.isfinite(), to_side, 0.0))
            on_side = (y * torch.cos(normal) - x * torch.sin(normal)).abs() <= distance * math.tan(
                math.pi / sides
            ) + 1e-6
            path = torch.minimum(path, torch.where(reached.isfinite() & on_side, to_side, torch.inf))
        return path

    def to_plane(self, z: float | Tensor) -> Tensor:
        """Path forward to a plane across the beam; infinite if it flies away from it."""
        path = (z - self.z) / torch.where(self.tan_lambda == 0.0, 1e-30, self.tan_lambda)
        return torch.where(path > 1e-6, path, torch.inf)

    def perigee(self) -> Vector:
        """Signed d0, z0 and azimuth at the point of closest approach to the beam axis."""
        along = self.x * torch.cos(self.phi) + self.y * torch.sin(self.phi)
        across = self.x * torch.sin(self.phi) - self.y * torch.cos(self.phi)
        # Turning angle back to the perigee; atan2 keeps it small and right for straight lines too.
        angle = torch.atan2(self.turn * along, 1.0 - self.turn * across)
        straight = self.turn.abs() < _STRAIGHT
        path = torch.where(straight, -along, -angle / torch.where(straight, 1.0, self.turn))
        x, y, z = self.position(path)
        azimuth = self.phi + self.turn * path
        return (
            x * torch.sin(azimuth) - y * torch.cos(azimuth),
            z,
            torch.remainder(azimuth + torch.pi, _TWO_PI) - torch.pi,
        )


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
