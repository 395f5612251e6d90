"""Events made and reconstructed by rules: what their benchmarks report, not how fast they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ringflow.base.errors import UsageError
from ringflow.bench import write_record
from ringflow.bench.events import PIONS, baseline, many_pions, simulate


def test_a_production_is_timed_and_the_machine_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ringflow.bench.events._BLOCKS", 1)
    result = simulate(events=20, workers=1, detector="clic", device="cpu")
    assert result["events_per_second_per_core"] == pytest.approx(result["events_per_second"], abs=0.01)
    assert result["events_per_second"] > 0
    assert result["kilobytes_per_event"] > 10
    assert set(result["milliseconds_per_event"]) == {"generate", "detector"}
    assert result["cores"] >= 1
    assert json.loads(write_record(result, tmp_path / "record.json").read_text(encoding="utf-8")) == result
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="device 'cuda' cannot be used here"):
            simulate(events=10, workers=1, detector="clic", device="cuda")


def test_the_rules_report_speed_and_growth():
    result = baseline(events=12, detector="clic")
    assert result["events_per_second_per_core"] > 0
    assert [row["pions"] for row in result["pions"]] == list(PIONS)
    assert result["pions"][-1]["milliseconds_per_event"] > result["pions"][0]["milliseconds_per_event"]
    assert 0.5 < result["exponent"] < 3.0


def test_pions_are_on_their_mass_shell_and_in_the_barrel():
    events = many_pions(25, 8)
    assert events.counts.tolist() == [25] * 8
    p2 = events.px**2 + events.py**2 + events.pz**2
    assert np.sqrt(events.energy**2 - p2) == pytest.approx(0.13957, rel=1e-3)
    assert (np.abs(events.pz) < 0.7 * np.sqrt(p2)).all()
