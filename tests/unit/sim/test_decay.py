"""Kinematics of decays in flight."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ringflow.event.particles import properties
from ringflow.sim.flight import CHANNELS, Draw, Flight, SpeciesTable
from ringflow.sim.tracker import decay, draw_pair_mass, two_body

DRAW = Draw(4, torch.device("cpu"))
COUNT = 5000


def mother(mass: float, momentum: float) -> tuple[torch.Tensor, ...]:
    direction = torch.nn.functional.normalize(torch.randn(COUNT, 3, dtype=torch.float64), dim=1)
    px, py, pz = (momentum * direction).unbind(1)
    return px, py, pz, torch.full((COUNT,), (momentum**2 + mass**2) ** 0.5, dtype=torch.float64)


def masses(*values: float) -> list[torch.Tensor]:
    return [torch.full((COUNT,), value, dtype=torch.float64) for value in values]


def invariant_mass(vector: tuple[torch.Tensor, ...]) -> torch.Tensor:
    px, py, pz, energy = vector
    return torch.sqrt((energy**2 - px**2 - py**2 - pz**2).clamp_min(0.0))


@pytest.mark.parametrize("products", [(0.1057, 0.0), (0.1396, 0.1350), (0.0, 0.0)])
def test_two_body_conserves_momentum_and_masses(products: tuple[float, float]):
    parent = mother(0.4937, 3.0)
    daughters = two_body(parent, *masses(0.4937, *products), DRAW)
    for component, total in enumerate(parent):
        torch.testing.assert_close(sum(d[component] for d in daughters), total, rtol=1e-9, atol=1e-9)
    for daughter, mass in zip(daughters, products, strict=True):
        torch.testing.assert_close(invariant_mass(daughter), masses(mass)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pdg", sorted(CHANNELS))
def test_daughters_carry_the_momentum_of_the_parent_less_neutrinos(pdg: int):
    species = SpeciesTable(np.array([pdg, -pdg]), torch.device("cpu"))
    mass = properties(pdg).mass
    px, py, pz, energy = mother(mass, 2.0)
    zero, rows = torch.zeros(COUNT, dtype=torch.float64), torch.arange(COUNT)
    kind = torch.full((COUNT,), species.row(pdg))
    parents = Flight(rows, kind, zero, zero, zero, zero, px, py, pz, rows)
    made = decay(parents, species, DRAW)
    total = torch.zeros(COUNT, 4, dtype=torch.float64)
    total.index_add_(0, made.particle, torch.stack([made.px, made.py, made.pz, made.energy(species)], dim=1))
    missing = torch.stack([px, py, pz, energy], dim=1) - total
    counted = torch.bincount(made.particle, minlength=COUNT)
    assert bool((counted >= 1).all())
    # What is missing is one or two neutrinos: no negative energy, no negative mass squared.
    assert missing[:, 3].min() > -1e-6
    assert (missing[:, 3] ** 2 - (missing[:, :3] ** 2).sum(1)).min() > -1e-5
    charge = torch.zeros(COUNT, dtype=torch.float64).index_add_(0, made.particle, species.charge[made.species])
    assert bool((charge == properties(pdg).charge).all())


def test_channels_come_as_often_as_the_table_says():
    species = SpeciesTable(np.array([321]), torch.device("cpu"))
    rows, zero = torch.arange(COUNT), torch.zeros(COUNT, dtype=torch.float64)
    parents = Flight(
        rows, torch.full((COUNT,), species.row(321)), zero, zero, zero, zero, *mother(0.4937, 1.0)[:3], rows
    )
    made = decay(parents, species, DRAW)
    three_charged = (
        (torch.bincount(made.particle[species.charge[made.species] != 0], minlength=COUNT) == 3).double().mean()
    )
    assert three_charged.item() == pytest.approx(0.0558, abs=0.012)
    muons = (made.species == species.row(-13)).double().sum().item() / COUNT
    assert muons == pytest.approx(0.6356 + 0.0335, abs=0.025)


def test_the_mass_of_a_pair_follows_phase_space():
    mass, products = 0.4937, (0.1396, 0.1396, 0.1396)
    found = draw_pair_mass(*masses(mass, *products), DRAW)
    pair = np.linspace(products[0] + products[1], mass - products[2], 2001)

    def breakup(m: np.ndarray | float, m1: np.ndarray | float, m2: float) -> np.ndarray:
        return np.sqrt(np.maximum((m**2 - (m1 + m2) ** 2) * (m**2 - (m1 - m2) ** 2), 0.0)) / m

    weight = breakup(mass, pair, products[2]) * breakup(pair, products[0], products[1])
    mean = np.average(pair, weights=weight)
    spread = np.sqrt(np.average((pair - mean) ** 2, weights=weight))
    assert found.mean().item() == pytest.approx(mean, rel=0.003)
    assert found.std().item() == pytest.approx(spread, rel=0.03)
