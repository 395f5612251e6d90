"""Decays in flight of long-lived particles, by two- and three-body phase space.

Short-lived particles (K0S, hyperons, charm) are decayed by the generator; these live long enough to reach the detector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ringflow.event.particles import properties
from ringflow.sim.flight import CHANNELS, NEUTRINO, Draw, Flight, SpeciesTable, daughters

_MOST_CHANNELS = max(len(channels) for channels in CHANNELS.values())

Vector = tuple[Tensor, Tensor, Tensor, Tensor]  # px, py, pz, energy


@dataclass(frozen=True)
class _Channels:
    """Every channel of every parent present, particle and antiparticle, as one table of up to three daughters."""

    first: Tensor  # per species: its first channel
    upper: Tensor  # per channel: upper edge of its share of [0, 1) among the channels of its parent
    species: Tensor  # [channel, daughter], -1 for neutrinos and missing daughters
    mass: Tensor  # [channel, daughter]
    has_three: Tensor

    @classmethod
    def of(cls, table: SpeciesTable, device: torch.device) -> _Channels:
        first = [0] * len(table.pdg)
        upper: list[float] = []
        species: list[list[int]] = []
        mass: list[list[float]] = []
        has_three: list[bool] = []
        for row, parent in enumerate(table.pdg):
            channels = CHANNELS.get(abs(parent), ())
            first[row] = len(upper)
            total, edge = sum(chance for chance, _ in channels), 0.0
            for chance, products in channels:
                edge += chance / total
                daughters_ = [*_conjugate(products, parent), NEUTRINO][:3]
                upper.append(edge)
                species.append([-1 if pdg == NEUTRINO else table.row(pdg) for pdg in daughters_])
                mass.append([properties(pdg).mass for pdg in daughters_])
                has_three.append(len(products) == 3)
        return cls(
            torch.tensor(first, device=device),
            torch.tensor(upper, dtype=torch.float64, device=device),
            torch.tensor(species, device=device),
            torch.tensor(mass, dtype=torch.float64, device=device),
            torch.tensor(has_three, device=device),
        )

    def pick(self, parent: Tensor, draw: Draw) -> Tensor:
        """A channel for each parent species, by its probability."""
        channel = self.first[parent]
        chance = draw.uniform(self.upper.new_empty(len(parent)))
        for _ in range(_MOST_CHANNELS - 1):
            channel = channel + (chance >= self.upper[channel])
        return channel


def decay(parents: Flight, species: SpeciesTable, draw: Draw) -> Flight:
    """Visible daughters of decaying particles."""
    channels = _Channels.of(species, draw.device)
    channel = channels.pick(parents.species, draw)
    m1, m2, m3 = channels.mass[channel].unbind(1)
    mother: Vector = (parents.px, parents.py, parents.pz, parents.energy(species))
    mass = species.mass[parents.species]
    three = channels.has_three[channel]
    # A decay into three is one into a pair and a third, then one of the pair; in a decay into two the parent is the pair.
    pair_mass = torch.where(three, draw_pair_mass(mass, m1, m2, m3, draw), mass)
    together, third = two_body(mother, mass, torch.where(three, pair_mass, 0.0), m3, draw)
    pair: Vector = tuple(torch.where(three, a, b) for a, b in zip(together, mother, strict=True))  # type: ignore[assignment]
    momenta = [*two_body(pair, pair_mass, m1, m2, draw), third]
    rows = torch.arange(len(parents), device=draw.device)
    made = [daughters(parents, rows, channels.species[channel, k], momenta[k][:3]) for k in range(3)]
    seen = [
        part.take((part.species >= 0) & (three if k == 2 else torch.ones_like(three))) for k, part in enumerate(made)
    ]
    return Flight.join(seen)


def _conjugate(products: tuple[int, ...], parent_pdg: int) -> list[int]:
    """Daughters of the antiparticle of a charged parent; photons, neutral pions and neutrinos stay as they are."""
    flip = -1 if parent_pdg < 0 else 1
    return [pdg if pdg in (22, 111, NEUTRINO) else flip * pdg for pdg in products]


def two_body(mother: Vector, mass: Tensor, m1: Tensor, m2: Tensor, draw: Draw) -> list[Vector]:
    """Isotropic decay into two, boosted to the laboratory."""
    p = _breakup_momentum(mass, m1, m2)
    cosine = 2.0 * draw.uniform(p) - 1.0
    sine = torch.sqrt(1.0 - cosine**2)
    azimuth = 2.0 * torch.pi * draw.uniform(p)
    px, py, pz = p * sine * torch.cos(azimuth), p * sine * torch.sin(azimuth), p * cosine
    first = (px, py, pz, torch.sqrt(p**2 + m1**2))
    second = (-px, -py, -pz, torch.sqrt(p**2 + m2**2))
    return [boost(first, mother, mass), boost(second, mother, mass)]


def draw_pair_mass(mass: Tensor, m1: Tensor, m2: Tensor, m3: Tensor, draw: Draw) -> Tensor:
    """Mass of the first two of three daughters, by phase space: the product of the two break-up momenta."""
    low, span = m1 + m2, (mass - m1 - m2 - m3).clamp_min(0.0)
    pair = low + span * draw.uniform(mass)
    weight = _breakup_momentum(mass, pair, m3) * _breakup_momentum(pair, m1, m2)
    for _ in range(6):  # Metropolis steps with an independent proposal find the spectrum within a few steps
        other = low + span * draw.uniform(mass)
        other_weight = _breakup_momentum(mass, other, m3) * _breakup_momentum(other, m1, m2)
        accept = draw.uniform(mass) * weight < other_weight
        pair, weight = torch.where(accept, other, pair), torch.where(accept, other_weight, weight)
    return pair


def _breakup_momentum(mass: Tensor, m1: Tensor, m2: Tensor) -> Tensor:
    """Momentum of the daughters of a two-body decay at rest (Kaellen function)."""
    term = (mass**2 - (m1 + m2) ** 2) * (mass**2 - (m1 - m2) ** 2)
    return torch.sqrt(term.clamp_min(0.0)) / (2.0 * mass.clamp_min(1e-9))


def boost(vector: Vector, frame: Vector, mass: Tensor) -> Vector:
    """From the rest frame of `frame` (of this mass) to the laboratory."""
    px, py, pz, energy = vector
    fx, fy, fz, frame_energy = frame
    product = fx * px + fy * py + fz * pz
    shift = (product / (frame_energy + mass) + energy) / mass
    return px + fx * shift, py + fy * shift, pz + fz * shift, (frame_energy * energy + product) / mass
