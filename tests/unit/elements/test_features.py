"""Features: finite, the same when the event is turned around the beam, and of known value for simple objects."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ringflow.elements.batch import from_block
from ringflow.elements.features import FEATURES, feature_names, features_of
from ringflow.event.block import Collection, EventBlock
from ringflow.event.particles import SPEED_OF_LIGHT
from ringflow.event.schema import COLLECTIONS


def turned(block: EventBlock, angle: float) -> EventBlock:
    """The block turned around the beam: azimuths, and every pair of columns that is a vector."""
    parts = {}
    for name, part in block.collections.items():
        columns = dict(part.columns)
        if "phi" in columns:
            turned_phi = (columns["phi"].astype(np.float64) + angle + np.pi) % (2 * np.pi) - np.pi
            columns["phi"] = turned_phi.astype(np.float32)
        for x in [column for column in part.columns if column.endswith("x") and f"{column[:-1]}y" in part.columns]:
            y = f"{x[:-1]}y"
            along, across = (part[axis].astype(np.float64) for axis in (x, y))
            columns[x] = (along * math.cos(angle) - across * math.sin(angle)).astype(np.float32)
            columns[y] = (along * math.sin(angle) + across * math.cos(angle)).astype(np.float32)
        parts[name] = Collection(part.counts, columns)
    return EventBlock(block.event_number, parts)


def columns_of(block: EventBlock, kind: str) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in block[kind].columns.items()}


def feature(kind: str, name: str, **columns: float) -> float:
    """A feature of one object that has these columns only."""
    made = features_of(kind, {column: torch.tensor([value]) for column, value in columns.items()})
    return float(made[0, [feature.name for feature in FEATURES[kind]].index(name)])


@pytest.mark.parametrize("kind", FEATURES)
def test_every_feature_of_simulated_events_is_finite_and_says_something(block: EventBlock, kind: str):
    made = features_of(kind, columns_of(block, kind))
    assert made.shape == (len(block[kind]), len(FEATURES[kind]))
    assert made.dtype == torch.float32
    assert made.isfinite().all()
    assert made.abs().max() < 50
    assert [name for name, spread in zip(feature_names([kind]), made.std(0), strict=True) if spread < 1e-4] == []


@pytest.mark.parametrize("kind", FEATURES)
def test_features_of_an_object_of_zeros_are_finite(kind: str):
    zeros = {column.name: torch.zeros(2, dtype=getattr(torch, column.dtype)) for column in COLLECTIONS[kind]}
    assert features_of(kind, zeros).isfinite().all()


@pytest.mark.parametrize("calorimeter", ["cluster", "hit"])
@settings(max_examples=20)
@given(angle=st.floats(-math.pi, math.pi))
@example(angle=0.5 * math.pi)
def test_no_feature_changes_when_the_event_is_turned(block: EventBlock, calorimeter: str, angle: float):
    before, after = from_block(block, calorimeter), from_block(turned(block, angle), calorimeter)
    torch.testing.assert_close(after.features_NF, before.features_NF, rtol=1e-4, atol=2e-3, equal_nan=True)
    torch.testing.assert_close(after.position_N2[:, 0], before.position_N2[:, 0], rtol=1e-4, atol=1e-4)
    change = after.position_N2[:, 1] - before.position_N2[:, 1] - angle
    assert torch.sin(0.5 * change).abs().max() < 1e-4


@pytest.mark.parametrize("kind", FEATURES)
def test_a_feature_looks_at_no_column_it_does_not_name(block: EventBlock, kind: str):
    columns = columns_of(block, kind)
    for feature in FEATURES[kind]:
        assert feature.of({name: columns[name] for name in feature.needs}).shape == (len(block[kind]),)


def test_simple_objects_have_the_features_one_expects():
    point = {"calo_x": 0.0, "calo_y": 1500.0, "calo_z": 2000.0}
    assert feature("track", "log_p", pt=2.0, eta=1.0) == pytest.approx(math.log(2.0 * math.cosh(1.0)))
    assert feature("track", "calo_radius", **point) == pytest.approx(1.5)
    assert feature("track", "calo_d_phi", phi=-3.0, **point) == pytest.approx(0.5 * math.pi + 3.0 - 2 * math.pi)
    assert feature("track", "lateness", time=2500.0 / SPEED_OF_LIGHT, **point) == pytest.approx(0.0, abs=1e-5)
    assert feature("track", "lateness", time=1.0 + 2500.0 / SPEED_OF_LIGHT, **point) == pytest.approx(math.asinh(1.0))
    flight = {"calo_x": 0.0, "calo_y": 1500.0, "calo_dx": -0.6, "calo_dy": 0.8}
    assert feature("track", "face_radial", **flight) == pytest.approx(0.8)
    assert feature("track", "face_azimuthal", **flight) == pytest.approx(0.6)
    assert feature("track", "log_chi2_ndf", chi2=20.0, ndf=10.0) == pytest.approx(math.log(2.0))


def test_simple_clusters_have_the_features_one_expects():
    assert feature("cluster", "ecal_share", energy=4.0, ecal_energy=1.0) == pytest.approx(0.25)
    assert feature("cluster", "log_hit_energy", energy=4.0, num_hits=8.0) == pytest.approx(math.log(0.5))
    near = {"ecal_x": -1000.0, "ecal_y": -1.0, "ecal_z": 10.0}
    assert feature("cluster", "ecal_d_phi", phi=math.pi, **near) == pytest.approx(math.asinh(0.1), rel=1e-3)
    assert feature("cluster", "ecal_d_eta", eta=0.0, **near) == pytest.approx(math.asinh(1.0), rel=1e-3)
    assert [feature("hit", "is_hcal", subsystem=float(code)) for code in range(6)] == [0, 0, 1, 1, 0, 0]
    assert [feature("hit", "is_yoke", subsystem=float(code)) for code in range(6)] == [0, 0, 0, 0, 1, 1]
    assert math.isnan(feature("hit", "is_hcal", subsystem=math.nan))  # a part that is not known is missing
