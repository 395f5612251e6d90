"""Kinematics of decays in flight."""

from __future__ import annotations

import pytest
import torch

from ringflow.sim.decay import three_body, two_body
from ringflow.sim.decay_table import CHANNELS
from ringflow.sim.draw import Draw

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


def test_three_body_conserves_momentum_and_fills_phase_space():
    parent = mother(0.4976, 5.0)
    daughters = three_body(parent, masses(0.4976)[0], masses(0.135, 0.135, 0.135), DRAW)
    for component, total in enumerate(parent):
        torch.testing.assert_close(sum(d[component] for d in daughters), total, rtol=1e-9, atol=1e-9)
    # Three equal daughters share the energy equally on average.
    share = (daughters[2][3] / parent[3]).mean().item()
    assert share == pytest.approx(1.0 / 3.0, abs=0.01)


def test_two_body_is_isotropic_at_rest():
    parent = mother(0.135, 0.0)
    first, _ = two_body(parent, *masses(0.135, 0.0, 0.0), DRAW)
    cosine = first[2] / first[3]
    assert cosine.mean().item() == pytest.approx(0.0, abs=0.03)
    assert cosine.std().item() == pytest.approx(3**-0.5, abs=0.02)


def test_channels_conserve_charge():
    charge = {11: -1, 13: -1, 211: 1, 321: 1, 12: 0, 22: 0, 111: 0, 130: 0}
    for parent, channels in CHANNELS.items():
        for _, products in channels:
            total = sum(charge[abs(pdg)] * (1 if pdg > 0 else -1) for pdg in products)
            assert total == charge[parent], (parent, products)
