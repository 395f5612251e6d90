"""Decays in flight of long-lived particles, by two- and three-body phase space."""

from __future__ import annotations

import torch
from torch import Tensor

from ringflow.event.particles import properties
from ringflow.sim.decay_table import CHANNELS, NEUTRINO
from ringflow.sim.draw import Draw
from ringflow.sim.flight import Flight, daughters
from ringflow.sim.species import SpeciesTable

Vector = tuple[Tensor, Tensor, Tensor, Tensor]  # px, py, pz, energy


def decay(parents: Flight, species: SpeciesTable, draw: Draw) -> list[Flight]:
    """Visible daughters of decaying particles, one table per daughter of a channel."""
    pick = draw.uniform(parents.px)
    made: list[Flight] = []
    for pdg, channels in CHANNELS.items():
        total = sum(chance for chance, _ in channels)
        for parent_pdg in (pdg, -pdg):
            if parent_pdg not in species.pdg:
                continue
            mine = parents.species == species.row(parent_pdg)
            low = 0.0
            for chance, products in channels:
                high = low + chance / total
                rows = torch.nonzero(mine & (pick >= low) & (pick < high)).squeeze(1)
                low = high
                if len(rows):
                    made += _decay_channel(parents, rows, species, _conjugate(products, parent_pdg), draw)
    return made


def _conjugate(products: tuple[int, ...], parent_pdg: int) -> tuple[int, ...]:
    """Daughters of the antiparticle of a charged parent; photons, neutral pions and neutrinos stay as they are."""
    flip = -1 if parent_pdg < 0 else 1
    return tuple(pdg if pdg in (22, 111, NEUTRINO) else flip * pdg for pdg in products)


def _decay_channel(
    parents: Flight, rows: Tensor, species: SpeciesTable, products: tuple[int, ...], draw: Draw
) -> list[Flight]:
    parent = parents.take(rows)
    mother: Vector = (parent.px, parent.py, parent.pz, parent.energy(species))
    mass = species.mass[parent.species]
    masses = [torch.full_like(mass, properties(pdg).mass) for pdg in products]
    momenta = two_body(mother, mass, masses[0], masses[1], draw) if len(masses) == 2 else three_body(mother, mass, masses, draw)
    return [
        daughters(parents, rows, species.row(pdg), momentum[:3])
        for pdg, momentum in zip(products, momenta, strict=True)
        if pdg != NEUTRINO
    ]


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


def three_body(mother: Vector, mass: Tensor, masses: list[Tensor], draw: Draw) -> list[Vector]:
    """Decay into three as two decays into two; the mass of the pair follows phase space by taking the best of a few tries."""
    m1, m2, m3 = masses
    low, high = m1 + m2, mass - m3
    pair = low + (high - low) * draw.uniform(mass)
    weight = _breakup_momentum(mass, pair, m3) * _breakup_momentum(pair, m1, m2)
    for _ in range(8):  # Metropolis steps with an independent proposal: the spectrum p1 * p2 within a few steps
        other = low + (high - low) * draw.uniform(mass)
        other_weight = _breakup_momentum(mass, other, m3) * _breakup_momentum(other, m1, m2)
        accept = draw.uniform(mass) * weight < other_weight
        pair, weight = torch.where(accept, other, pair), torch.where(accept, other_weight, weight)
    together, third = two_body(mother, mass, pair, m3, draw)
    return [*two_body(together, pair, m1, m2, draw), third]


def _breakup_momentum(mass: Tensor, m1: Tensor, m2: Tensor) -> Tensor:
    """Momentum of the daughters of a two-body decay at rest (Kaellen function)."""
    term = (mass**2 - (m1 + m2) ** 2) * (mass**2 - (m1 - m2) ** 2)
    return torch.sqrt(term.clamp_min(0.0)) / (2.0 * mass)


def boost(vector: Vector, frame: Vector, mass: Tensor) -> Vector:
    """From the rest frame of `frame` (of this mass) to the laboratory."""
    px, py, pz, energy = vector
    fx, fy, fz, frame_energy = frame
    product = fx * px + fy * py + fz * pz
    shift = (product / (frame_energy + mass) + energy) / mass
    return px + fx * shift, py + fy * shift, pz + fz * shift, (frame_energy * energy + product) / mass
