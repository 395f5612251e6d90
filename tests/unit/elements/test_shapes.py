"""Cluster shapes and the hadronic scale, and the winners of groups."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given as for_all
from hypothesis import strategies as st

from ringflow.elements.shapes import PROMPT, Face, cluster_columns, hadronic_scale
from ringflow.elements.tables import group_winner

FACE = Face(1500.0, 2307.0)
LAYERS_IN_FRONT = [0, 0, 40, 40, 100, 100]
FINE = ["front_energy", "ecal_x", "ecal_y", "ecal_z", "ecal_width", "hcal_width", "peak_energy"]
FINE += ["peak_x", "peak_y", "peak_z", "slope_phi", "slope_theta"]
ECAL, ECAL_ENDCAP, HCAL, YOKE = 0, 1, 2, 4


def columns_of(*rows: tuple[float, float, float, float, int, int], label: list[int] | None = None):
    """Columns of clusters of hits given as (energy, x, y, z, subsystem, layer); one cluster unless labelled."""
    names = ("energy", "x", "y", "z", "subsystem", "layer")
    given = {name: torch.tensor([row[at] for row in rows]) for at, name in enumerate(names)}
    label = label or [0] * len(rows)
    given["time"] = torch.ones(len(rows))
    return cluster_columns(given, torch.tensor(label), max(label) + 1, FACE, LAYERS_IN_FRONT)


def point(columns: dict[str, torch.Tensor], part: str, cluster: int = 0) -> list[float]:
    return [columns[f"{part}_{axis}"][cluster].item() for axis in "xyz"]


def test_columns_of_a_small_cluster():
    made = columns_of(
        (1.0, 1500.0, 0.0, 0.0, ECAL, 2),
        (3.0, 1540.0, 0.0, 0.0, ECAL, 7),
        (9.0, 0.0, 1800.0, 50.0, HCAL, 4),
        label=[0, 0, 1],
    )
    assert made["energy"].tolist() == [4.0, 9.0]
    assert made["ecal_energy"].tolist() == [4.0, 0.0]
    assert made["hcal_energy"].tolist() == [0.0, 9.0]
    assert made["x"].tolist() == pytest.approx([1530.0, 0.0])
    assert made["width_along"][0].item() == pytest.approx((0.25 * 30**2 + 0.75 * 10**2) ** 0.5)
    assert made["width_across"].tolist() == pytest.approx([0.0, 0.0], abs=0.05)
    assert made["start_layer"].tolist() == [2, 44]
    assert made["mean_depth"][0].item() == pytest.approx(30.0)
    assert made["num_hits"].tolist() == [2, 1]


def test_the_depth_in_a_barrel_of_flat_sides_counts_from_its_sides():
    face = Face(1500.0, 2307.0, sides=8)
    angle = torch.tensor([0.0, math.pi / 8, math.pi / 4])
    radius = 1600.0 / torch.tensor([1.0, math.cos(math.pi / 8), 1.0])  # 1600 mm from the axis, across the side
    inside = torch.ones(3, dtype=torch.bool)
    depth = face.depth(radius * torch.cos(angle), radius * torch.sin(angle), torch.zeros(3), inside)
    torch.testing.assert_close(depth, torch.full((3,), 100.0), rtol=0, atol=1e-2)


def test_late_hits_do_not_tell_the_time_of_a_cluster_unless_all_are_late():
    light = 1500.0 / 299.792458
    given = {name: torch.ones(4) for name in ("energy", "z")}
    given |= {"x": torch.full((4,), 1500.0), "y": torch.zeros(4), "z": torch.zeros(4)}
    given |= {name: torch.zeros(4, dtype=torch.int64) for name in ("subsystem", "layer")}
    given["time"] = light + torch.tensor([0.5, 1.5, PROMPT + 30.0, PROMPT + 40.0])
    made = cluster_columns(given, torch.tensor([0, 0, 0, 1]), 2, FACE, LAYERS_IN_FRONT)
    torch.testing.assert_close(made["time"], light + torch.tensor([1.0, PROMPT + 40.0]))


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


def test_the_front_is_the_first_ten_layers_of_the_electromagnetic_calorimeter():
    made = columns_of(
        (1.0, 1500.0, 0.0, 0.0, ECAL, 0),
        (2.0, 1530.0, 0.0, 0.0, ECAL, 9),
        (4.0, 1535.0, 0.0, 0.0, ECAL, 10),
        (8.0, 1800.0, 0.0, 0.0, HCAL, 0),
        (16.0, 4000.0, 0.0, 0.0, YOKE, 0),
        (32.0, 500.0, 0.0, 2310.0, ECAL_ENDCAP, 3),
        label=[0, 0, 0, 0, 0, 1],
    )
    assert made["front_energy"].tolist() == [3.0, 32.0]


def test_the_electromagnetic_centre_is_that_of_its_hits_else_of_all():
    made = columns_of(
        (1.0, 1500.0, 0.0, 0.0, ECAL, 0),
        (3.0, 1500.0, 40.0, 8.0, ECAL, 0),
        (4.0, 2000.0, -100.0, 50.0, HCAL, 0),
        (1.0, 0.0, 2000.0, 0.0, HCAL, 0),
        (1.0, 0.0, 2100.0, 10.0, HCAL, 3),
        label=[0, 0, 0, 1, 1],
    )
    assert point(made, "ecal", 0) == pytest.approx([1500.0, 30.0, 6.0])
    assert point(made, "ecal", 1) == pytest.approx([0.0, 2050.0, 5.0])


def test_the_peak_is_the_strongest_electromagnetic_hit_and_what_lies_around_its_line():
    made = columns_of(
        (1.0, 1500.0, 14.0, 0.0, ECAL, 0),
        (2.0, 1500.0, 0.0, 0.0, ECAL, 0),
        (0.5, 1500.0, 16.0, 0.0, ECAL, 0),
        (0.7, 1600.0, 0.0, 0.0, ECAL, 20),
        (9.0, 2000.0, 0.0, 0.0, HCAL, 0),
        (3.0, 0.0, 2000.0, 0.0, HCAL, 0),
        (5.0, 0.0, 2000.0, 30.0, HCAL, 0),
        label=[0, 0, 0, 0, 0, 1, 1],
    )
    assert point(made, "peak", 0) == [1500.0, 0.0, 0.0]
    assert point(made, "peak", 1) == [0.0, 2000.0, 30.0]
    assert made["peak_energy"].tolist() == pytest.approx([3.7, 0.0])


@pytest.mark.parametrize(("tilt", "rise"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (-0.1, 0.4)])
def test_slopes_say_how_far_a_shower_points_away_from_the_origin(tilt: float, rise: float):
    steps = (-40.0, 0.0, 40.0)
    made = columns_of(*((1.0, 1600.0 + step, tilt * step, rise * step, ECAL, 0) for step in steps))
    assert made["slope_phi"].item() == pytest.approx(tilt, abs=1e-3)
    assert made["slope_theta"].item() == pytest.approx(-rise, abs=1e-3)  # the polar angle falls as z rises


@pytest.mark.parametrize("unclustered", [0, 2])
def test_without_clustered_hits_every_column_is_there_and_empty(unclustered: int):
    names = ("energy", "x", "y", "z", "time")
    given = {name: torch.ones(unclustered) for name in names}
    given |= {name: torch.zeros(unclustered, dtype=torch.int64) for name in ("subsystem", "layer")}
    label = torch.full((unclustered,), -1, dtype=torch.int64)
    made = cluster_columns(given, label, 0, FACE, LAYERS_IN_FRONT)
    assert {"energy", "eta", "num_hits", *FINE} <= set(made)
    assert {len(values) for values in made.values()} == {0}


@for_all(seed=st.integers(0, 2**32), angle=st.floats(-math.pi, math.pi))
def test_clusters_turn_with_their_hits_and_parts_make_the_whole(seed: int, angle: float):
    generator = torch.Generator().manual_seed(seed)
    count, clusters = 60, 4

    def uniform(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)

    radius, phi = uniform(1500.0, 2500.0), uniform(-0.2, 0.2)
    subsystem = torch.randint(0, 4, (count,), generator=generator)
    given = {"energy": uniform(0.01, 2.0), "z": uniform(-500.0, 500.0), "time": uniform(5.0, 9.0)}
    given |= {"subsystem": subsystem, "layer": torch.randint(0, 40, (count,), generator=generator)}
    label = torch.arange(count) % (clusters + 1) - 1

    def shapes(turn: float) -> dict[str, torch.Tensor]:
        place = {"x": radius * torch.cos(phi + turn), "y": radius * torch.sin(phi + turn)}
        return cluster_columns({**given, **place}, label, clusters, FACE, LAYERS_IN_FRONT)

    before, after = shapes(0.0), shapes(angle)
    for part in ("", "ecal_", "peak_"):
        x, y = before[f"{part}x"], before[f"{part}y"]
        torch.testing.assert_close(after[f"{part}x"], x * math.cos(angle) - y * math.sin(angle))
        torch.testing.assert_close(after[f"{part}y"], x * math.sin(angle) + y * math.cos(angle))
    for name in set(before) - {f"{part}{axis}" for part in ("", "ecal_", "peak_") for axis in "xy"} - {"phi"}:
        torch.testing.assert_close(after[name], before[name], rtol=1e-7, atol=1e-6)

    for name in ("front_energy", "peak_energy"):
        assert (before[name] >= 0).all()
        assert (before[name] <= before["ecal_energy"] * (1 + 1e-9)).all()
    spread = sum(before[f"{part}_energy"] * before[f"{part}_width"].square() for part in ("ecal", "hcal"))
    torch.testing.assert_close(spread, before["energy"] * before["width_across"].square())
