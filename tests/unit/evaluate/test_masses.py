"""Masses and the jet energy resolution, on decays made at rest by hand and on numbers with a known answer."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.hand_made import momenta_of
from ringflow.evaluate.bootstrap import Entries
from ringflow.evaluate.jets import (
    in_barrel,
    invariant_mass,
    jet_energy_resolution,
    masses_of,
    measure_masses,
    thrust_axis,
)
from ringflow.evaluate.momenta import Floats, Momenta


def boost(vectors: Floats, velocity: Floats) -> Floats:
    """Four-momenta [px, py, pz, E] seen from a frame that moves with minus the velocity."""
    square = velocity @ velocity
    gamma = 1 / np.sqrt(1 - square)
    along = vectors[:, :3] @ velocity
    space = vectors[:, :3] + np.outer((gamma - 1) * along / square + gamma * vectors[:, 3], velocity)
    return np.column_stack([space, gamma * (vectors[:, 3] + along)])


def two_body(mass: float, direction: Floats, velocity: Floats) -> Floats:
    unit = direction / np.linalg.norm(direction)
    rest = mass / 2 * np.array([[*unit, 1.0], [*-unit, 1.0]])
    return boost(rest, velocity)


def event_of(vectors: Floats) -> Momenta:
    return Momenta(np.array([len(vectors)]), *vectors.T, np.ones(len(vectors), np.int64))


def measured(sample: str, event: Momenta, invisible: Floats) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name, (_, values) in measure_masses(masses_of(sample, True), invisible, event):
        found.setdefault(name, []).extend(values.tolist())
    return found


def test_bosons_of_four_jets_or_of_everything_visible() -> None:
    first, second = np.array([0.2, 1, 0]), np.array([1, 0.3, 0])
    ws = [two_body(80.4, first, np.array([0, 0, 0.8])), two_body(80.4, second, np.array([0, 0, -0.8]))]
    assert measured("ww", event_of(np.concatenate(ws)), np.zeros((1, 4)))["W"] == pytest.approx([80.4, 80.4])
    z, higgs = two_body(91.2, first, np.array([0, 0, 0.7])), two_body(125.0, second, np.array([0, 0, -0.6]))
    found = measured("zh", event_of(np.concatenate([z, higgs])), np.zeros((1, 4)))
    assert (found["Z"], found["H"]) == (pytest.approx([91.2]), pytest.approx([125.0]))
    assert found["H, Z to neutrinos"] == []
    alone = measured("zh", event_of(higgs), z.sum(axis=0)[np.newaxis])
    assert (alone["H, Z to neutrinos"], alone["H"]) == (pytest.approx([125.0]), [])


def test_two_tops_of_six_jets() -> None:
    tops = []
    for axis, sign in ((np.array([0.3, 1, 0.1]), 1), (np.array([1, -0.2, 0.4]), -1)):
        p = (172.5**2 - 80.4**2) / (2 * 172.5)
        unit = axis / np.linalg.norm(axis)
        b = p * np.array([[*unit, 1.0]])
        w = two_body(80.4, np.cross(unit, [0.1, 0.2, 1]), -unit * p / np.hypot(p, 80.4))
        tops.append(boost(np.concatenate([w, b]), np.array([0, 0, 0.4 * sign])))
    found = measured("ttbar_pu10", event_of(np.concatenate(tops)), np.zeros((1, 4)))
    assert found["W"] == pytest.approx([80.4, 80.4])
    assert found["top"] == pytest.approx([172.5, 172.5])
    assert measured("ttbar", event_of(np.concatenate(tops)), np.array([[0.0, 0, 50, 50]]))["top"] == []
    assert measured("ttbar@500", event_of(np.concatenate(tops)), np.zeros((1, 4))) == found


def test_the_thrust_axis_is_the_longest_sum_and_that_of_its_own_hemisphere() -> None:
    rng = np.random.default_rng(3)
    axis = np.array([0.6, 0.0, 0.8])
    momentum = np.outer(rng.choice([-1, 1], 40) * rng.uniform(1, 10, 40), axis) + rng.normal(0, 0.3, (40, 3))
    event = Momenta(np.array([40, 0]), *momentum.T, np.linalg.norm(momentum, axis=1), np.ones(40, np.int64))
    found = thrust_axis(event)
    assert abs(found[0] @ axis) > 0.998
    grid = rng.normal(size=(20000, 3))
    grid /= np.linalg.norm(grid, axis=1, keepdims=True)
    assert np.abs(momentum @ found[0]).sum() >= np.abs(momentum @ grid.T).sum(axis=0).max() - 1e-9
    hemisphere = (np.sign(momentum @ found[0])[:, np.newaxis] * momentum).sum(axis=0)
    assert abs(hemisphere @ found[0]) == pytest.approx(np.linalg.norm(hemisphere), rel=1e-9)
    assert in_barrel(event).tolist() == [False, False]
    assert in_barrel(momenta_of([[(1.0, 0.3, 0.0, 1)]])).tolist() == [True]


def test_a_mass_never_comes_from_rounding() -> None:
    assert invariant_mass(np.array([[3.0, 0.0, 4.0, 5.0 - 1e-12], [0.0, 0.0, 3.0, 5.0]])).tolist() == [0.0, 4.0]


def test_rms90_is_the_spread_of_the_narrowest_window() -> None:
    rng = np.random.default_rng(1)
    energy = np.concatenate([rng.normal(91.0, 3.0, 9500), rng.uniform(20, 91, 500)])
    entries = Entries()
    entries.fill(np.arange(10000), energy)
    ordered = np.sort(energy)
    widths = ordered[8999:] - ordered[: len(ordered) - 8999]
    window = ordered[widths.argmin() : widths.argmin() + 9000]
    found = jet_energy_resolution(entries)
    assert found[0] == pytest.approx(np.sqrt(2) * window.std() / window.mean(), rel=1e-5)
    assert np.abs(found[1:] / found[0] - 1).max() < 0.1
    assert np.isnan(jet_energy_resolution(Entries())).all()
