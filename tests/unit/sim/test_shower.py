"""Showers: what rare draws do to them, and where soft ones end."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor

from ringflow.sim import detector
from ringflow.sim.detector import Detector
from ringflow.sim.flight import Draw
from ringflow.sim.generator import Gun, GunGenerator
from ringflow.sim.geometry import DetectorGeometry, load_detector


class LeastDraw(Draw):
    """Draws the least exponential variate there is, every time: one in some ten million is exactly 0."""

    def exponential(self, like: Tensor) -> Tensor:
        return super().exponential(like) * 0.0


def test_a_shower_keeps_its_energy_if_the_shares_of_its_parts_come_out_as_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(detector, "Draw", LeastDraw)
    kaons = GunGenerator("kaons", Gun(description="", pdg=(130,), energy=(20.0, 20.0), cos_theta=(-0.5, 0.5)), 1)
    block = Detector(load_detector("clic")).simulate_block(kaons.generate(0, 20), 1)
    # The parts are short and lie upon each other, so that not all of it is seen; before, the energy was no number.
    assert 0.3 < block["hit"]["energy"].sum() / (20 * 20.0) < 1.0


def kaons_in(geometry: DetectorGeometry, energy: float, count: int = 200):
    """Hits of neutral kaons in the barrel, and how far each is from the line of its kaon (mm) and behind the face."""
    gun = Gun(description="", pdg=(130,), energy=(energy, energy), cos_theta=(-0.4, 0.4))
    block = Detector(geometry).simulate_block(GunGenerator("kaons", gun, 1).generate(0, count), 1)
    hits, particles = block["hit"], block["particle"]
    of = np.repeat(np.arange(count), hits.counts)
    line = np.stack([particles[f"p{axis}"] for axis in "xyz"], 1).astype(np.float64)
    line /= np.linalg.norm(line, axis=1, keepdims=True)
    place = np.stack([hits[axis] for axis in "xyz"], 1).astype(np.float64)
    away = np.linalg.norm(np.cross(place, line[of]), axis=1)
    return hits["energy"].astype(np.float64), away, (place * line[of]).sum(1)


def bare(**shower: float) -> DetectorGeometry:
    """The simplest of `clic`, with some of its showers changed."""
    geometry = load_detector("clic").without()
    return geometry.model_copy(update={"shower": geometry.shower.model_copy(update=shower)})


def test_what_is_not_asked_for_changes_nothing():
    before, after = kaons_in(bare(), 3.0), kaons_in(bare(stray_reach=700.0, stray_energy=3.0), 3.0)
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_strays_lie_elsewhere_and_keep_their_energy():
    (energy, away, _), (own, own_away, _) = (
        kaons_in(bare(stray_fraction=share, stray_energy=100.0, stray_reach=500.0), 5.0) for share in (0.2, 0.0)
    )
    assert energy.sum() == pytest.approx(own.sum(), rel=0.04)
    far, own_far = energy[away > 300.0].sum() / energy.sum(), own[own_away > 300.0].sum() / own.sum()
    # Of the fifth a bit more than half, exp(-300 / 500), is so far away, less what is then beyond the side.
    assert 0.06 < far - own_far < 0.13


def test_only_soft_showers_stray():
    hard, soft = (kaons_in(bare(stray_fraction=0.3, stray_energy=0.5, stray_reach=500.0), of) for of in (60.0, 2.0))
    shares = [energy[away > 300.0].sum() / energy.sum() for energy, away, _ in (hard, soft)]
    assert shares[0] < 0.3 * shares[1]


def test_soft_showers_are_shorter_and_hard_ones_hardly():
    def depth(energy: float, **shower: float) -> float:
        of_hits, _, along = kaons_in(bare(**shower), energy)
        return float((of_hits * along).sum() / of_hits.sum())

    soft = depth(2.0) - depth(2.0, soft_energy=2.0)
    hard = depth(60.0) - depth(60.0, soft_energy=2.0)
    assert soft > 40.0
    assert 0.0 < hard < 0.6 * soft
