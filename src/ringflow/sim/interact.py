"""What happens in the tracker material: photons convert, electrons radiate, hadrons interact.

Each function takes particles at the point where it happens and returns what flies on. Energies are conserved; the recoil of the
nucleus is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ringflow.sim.draw import Draw
from ringflow.sim.flight import Flight, daughters, orthogonal_frame
from ringflow.sim.species import SpeciesTable
from ringflow.sim.transport import SOFTEST_PHOTON

#: Products of a nuclear interaction and how often each kind is one: pions first, knocked-out nucleons after.
_PRODUCTS = ((211, 0.26), (-211, 0.26), (111, 0.26), (2112, 0.12), (2212, 0.10))
_MOST_PRODUCTS = 12
_TRANSVERSE_KICK = 0.3  # GeV


def convert(photons: Flight, species: SpeciesTable, draw: Draw) -> Flight:
    """Photon to electron and positron, sharing the energy uniformly (the Bethe-Heitler spectrum is flat within 20 %)."""
    share = draw.uniform(photons.px)
    rows = torch.arange(len(photons), device=draw.device)

    def leg(pdg: int, part: Tensor) -> Flight:
        momentum = (photons.px * part, photons.py * part, photons.pz * part)
        return daughters(photons, rows, species.row(pdg), momentum)

    return Flight.join([leg(11, share), leg(-11, 1.0 - share)])


def radiate(electrons: Flight, species: SpeciesTable, draw: Draw) -> Flight:
    """Bremsstrahlung: the electron goes on, collinear with a photon of spectrum (4/3 - 4/3 y + y^2)/y."""
    share = SOFTEST_PHOTON ** draw.uniform(electrons.px)
    # Emissions were sampled with the rate of 4/(3y), so the rest of the spectrum is an acceptance.
    accepted = draw.uniform(share) < 1.0 - share + 0.75 * share**2
    share = torch.where(accepted, share, 0.0)
    rows = torch.arange(len(electrons), device=draw.device)
    rest = 1.0 - share
    slower = (electrons.px * rest, electrons.py * rest, electrons.pz * rest)
    photon = (electrons.px * share, electrons.py * share, electrons.pz * share)
    going_on = daughters(electrons, rows, electrons.species, slower, root=electrons.root)
    return Flight.join([going_on, daughters(electrons, rows, species.row(22), photon).take(accepted)])


def break_up(hadrons: Flight, species: SpeciesTable, draw: Draw) -> Flight:
    """Nuclear interaction: a handful of pions and nucleons share the energy, with a transverse kick each."""
    energy = hadrons.energy(species)
    available = energy - species.mass[hadrons.species] * species.baryon[hadrons.species]
    count = 2.0 + draw.poisson(0.5 + 0.6 * torch.log1p(available))
    count = count.clamp_max(_MOST_PRODUCTS).to(torch.int64)
    rows = torch.repeat_interleave(torch.arange(len(hadrons), device=draw.device), count)
    weight = draw.exponential(available[rows])
    total = torch.zeros_like(available).index_add_(0, rows, weight)
    share = available[rows] * weight / total[rows]

    chances = torch.tensor([chance for _, chance in _PRODUCTS], dtype=share.dtype, device=draw.device).cumsum(0)
    kinds = torch.tensor([species.row(pdg) for pdg, _ in _PRODUCTS], device=draw.device)
    pick = torch.bucketize(draw.uniform(share) * chances[-1], chances, right=True).clamp_max(len(_PRODUCTS) - 1)
    kind = kinds[pick]
    # A nucleon was there before: its share is kinetic. A pion is made: its share is all of its energy.
    mass = species.mass[kind]
    product_energy = share + mass * (species.baryon[kind] != 0)
    momentum = torch.sqrt((product_energy**2 - mass**2).clamp_min(1e-6))

    angle = (draw.exponential(momentum) * _TRANSVERSE_KICK / momentum).clamp_max(1.2)
    return daughters(hadrons, rows, kind, tilted(hadrons, rows, momentum, angle, draw))


def tilted(parents: Flight, rows: Tensor, momentum: Tensor, angle: Tensor, draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """Momenta at an angle to the parents' directions, at a random azimuth."""
    length = parents.momentum.clamp_min(1e-9)
    axis = tuple((component / length)[rows] for component in (parents.px, parents.py, parents.pz))
    first, second = orthogonal_frame(*axis)
    azimuth = 2.0 * torch.pi * draw.uniform(angle)
    along, across = torch.cos(angle), torch.sin(angle)
    u, v = across * torch.cos(azimuth), across * torch.sin(azimuth)
    px, py, pz = (momentum * (along * a + u * b + v * c) for a, b, c in zip(axis, first, second, strict=True))
    return px, py, pz
