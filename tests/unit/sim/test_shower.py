"""Showers: what rare draws do to them."""

from __future__ import annotations

import pytest
from torch import Tensor

from ringflow.sim import detector
from ringflow.sim.detector import Detector
from ringflow.sim.flight import Draw
from ringflow.sim.generator import Gun, GunGenerator
from ringflow.sim.geometry import load_detector


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
