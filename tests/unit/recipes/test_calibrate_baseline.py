"""The constants of the rules come from guns, and the shipped ones are what the command gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringflow.baseline.constants import load_constants
from ringflow.recipes.calibrate import calibrate_rules


def test_the_shipped_constants_are_reproduced(tmp_path: Path):
    out = tmp_path / "mine.toml"
    found = calibrate_rules("clic", events=250, workers=1, seed=8, out=out)
    again = load_constants(str(out))
    assert again.model_dump(mode="json") == found
    shipped = load_constants("clic")
    assert again.detector == "clic"
    assert again.field == shipped.field
    assert again.link.ecal_distance == pytest.approx(shipped.link.ecal_distance, rel=0.1)
    assert again.link.hcal_distance == pytest.approx(shipped.link.hcal_distance, rel=0.1)
    assert again.link.fragment_distance == pytest.approx(shipped.link.fragment_distance, rel=0.25)
    assert again.photon.width == pytest.approx(shipped.photon.width, rel=0.25)
    assert again.photon.depth == pytest.approx(shipped.photon.depth, rel=0.25)
    assert again.hadron.stochastic == pytest.approx(shipped.hadron.stochastic, rel=0.4)
    assert again.lepton.electron_ratio == pytest.approx(shipped.lepton.electron_ratio, rel=0.15)
    assert again.hadron.factor == shipped.hadron.factor
