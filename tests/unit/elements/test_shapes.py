"""Cluster shapes and the hadronic scale, and the winners of groups."""

from __future__ import annotations

import pytest
import torch

from ringflow.elements.grouping import group_minimum, group_winner
from ringflow.elements.shapes import cluster_columns, hadronic_scale


def hits(**columns: list[float]) -> dict[str, torch.Tensor]:
    made = {name: torch.tensor(values) for name, values in columns.items()}
    return {"time": torch.ones(len(made["energy"])), **made}


def test_columns_of_a_small_cluster():
    given = hits(
        energy=[1.0, 3.0, 9.0],
        x=[1500.0, 1540.0, 0.0],
        y=[0.0, 0.0, 1800.0],
        z=[0.0, 0.0, 50.0],
        subsystem=[0, 0, 2],
        layer=[2, 7, 4],
    )
    made = cluster_columns(given, torch.tensor([0, 0, 1]), 2, 1500.0, 2307.0, [0, 0, 40, 40, 100, 100])
    assert made["energy"].tolist() == [4.0, 9.0]
    assert made["ecal_energy"].tolist() == [4.0, 0.0]
    assert made["hcal_energy"].tolist() == [0.0, 9.0]
    assert made["x"].tolist() == pytest.approx([1530.0, 0.0])
    assert made["width_along"][0].item() == pytest.approx((0.25 * 30**2 + 0.75 * 10**2) ** 0.5)
    assert made["width_across"].tolist() == pytest.approx([0.0, 0.0], abs=0.05)
    assert made["start_layer"].tolist() == [2, 44]
    assert made["mean_depth"][0].item() == pytest.approx(30.0)
    assert made["num_hits"].tolist() == [2, 1]


def test_unclustered_hits_count_nowhere():
    given = hits(energy=[1.0, 5.0], x=[1500.0, 1500.0], y=[0.0, 0.0], z=[0.0, 0.0], subsystem=[0, 0], layer=[0, 0])
    made = cluster_columns(given, torch.tensor([0, -1]), 1, 1500.0, 2307.0, [0] * 6)
    assert made["energy"].tolist() == [1.0]


def test_hadronic_scale_passes_through_its_points_and_is_flat_outside():
    points, factors = [1.0, 10.0, 100.0], [1.4, 1.2, 1.1]
    energy = torch.tensor([0.01, 1.0, 10.0, 100.0, 1e4])
    expected = energy * torch.tensor([1.4, 1.4, 1.2, 1.1, 1.1])
    torch.testing.assert_close(hadronic_scale(energy, points, factors), expected)
    middle = hadronic_scale(torch.tensor([10.0**0.5]), points, factors).item()
    assert middle == pytest.approx(1.3 * 10.0**0.5, rel=1e-5)


def test_group_winner_takes_the_first_of_equals_and_says_where_there_is_none():
    winner = group_winner(torch.tensor([1.0, 5.0, 5.0, 2.0]), torch.tensor([0, 0, 0, 2]), 4)
    assert winner.tolist() == [1, -1, 3, -1]


def test_group_minimum():
    assert group_minimum(torch.tensor([4, 2, 7]), torch.tensor([1, 1, 0]), 3).tolist() == [7, 2, 0]
