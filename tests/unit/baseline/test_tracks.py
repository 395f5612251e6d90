"""Which tracks are the same particle: duplicates, and what a particle became."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ringflow.baseline.tracks import COLUMNS, fits_of, owners
from ringflow.elements.helix import Helix
from ringflow.event.block import Collection
from ringflow.event.particles import BENDING

FIELD = 4.0


def track(
    pt: float, phi: float, *, at: tuple[float, float] = (0.0, 0.0), last: float = 1480.0, charge: int = 1
) -> dict:
    """Fit of a track that is at a point (x, y) in a direction, and followed to a radius."""
    turn = -BENDING * FIELD * charge / pt
    start = Helix(*(torch.tensor([value], dtype=torch.float64) for value in (*at, 0.0, phi, 0.3, turn)))
    d0, z0, azimuth = (float(value) for value in start.perigee())
    x, y, z = (float(value) for value in start.position(start.to_cylinder(last)))
    fit = {"pt": pt, "eta": np.arcsinh(0.3), "phi": azimuth, "charge": charge, "d0": d0, "z0": z0, "num_hits": 10}
    fit |= {"sigma_pt": 0.003, "sigma_phi": 3e-4, "sigma_theta": 3e-4, "sigma_d0": 0.02}
    return fit | {"last_x": x, "last_y": y, "last_z": z}


def found(*tracks: dict) -> list[int]:
    return owners(np.array([[fit[name] for name in COLUMNS] for fit in tracks], dtype=np.float64), FIELD).tolist()


def end(fit: dict) -> tuple[float, float]:
    return fit["last_x"], fit["last_y"]


def test_fits_that_agree_within_their_errors_are_one_particle_and_the_better_counts():
    one = track(5.0, 0.4)
    worse = {**track(5.05, 0.4005), "sigma_pt": 0.006}
    assert found(worse, one) == [1, 1]
    assert found(one, worse) == [0, 0]
    assert found(one, {**worse, "charge": -1}) == [0, 1]
    assert found(one, track(5.5, 0.4)) == [0, 1]
    assert found(one, track(5.0, 0.41)) == [0, 1]
    assert found(one, {**worse, "eta": one["eta"] + 0.02}) == [0, 1]


def test_azimuths_are_compared_across_their_cut():
    assert found(track(5.0, np.pi - 1e-4), {**track(5.0, -np.pi + 1e-4), "sigma_pt": 0.006}) == [0, 0]


@pytest.mark.parametrize("charge", [1, -1])
def test_a_track_that_begins_where_a_stiffer_one_ends_is_what_that_became(charge: int):
    before = track(8.0, 1.0, last=820.0, charge=charge)
    x, y = end(before)
    # Its height is what the fit of the first says there.
    after = {**track(3.0, 1.3, at=(x, y), charge=charge)}
    after["z0"] += before["last_z"]
    assert found(before, after) == [0, 0]
    assert found(after, before) == [1, 1]
    # Not if it begins elsewhere, has more momentum, or comes from the beam line.
    assert found(before, {**after, "z0": after["z0"] + 60.0}) == [0, 1]
    assert found(before, {**after, "pt": 20.0}) == [0, 1]
    assert found(before, {**after, "sigma_d0": 1e3}) == [0, 1]


def test_what_it_became_may_become_something_else():
    first = track(8.0, 1.0, last=600.0)
    second = track(5.0, 1.2, at=end(first), last=1000.0)
    second["z0"] += first["last_z"]
    second["last_z"] += first["last_z"]
    third = track(2.0, 1.5, at=end(second))
    third["z0"] += second["last_z"]
    assert found(third, second, first) == [2, 2, 2]


def test_data_that_lack_a_column_tell_nothing():
    columns = {name: np.ones(2) for name in COLUMNS}
    assert fits_of(Collection(np.array([2]), columns)) is not None
    del columns["last_z"]
    assert fits_of(Collection(np.array([2]), columns)) is None
