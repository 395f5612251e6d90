"""The benchmark of the rules: what it reports, not how fast they are."""

from __future__ import annotations

import numpy as np
import pytest

from ringflow.bench.baseline import PIONS, many_pions, run


def test_it_reports_speed_and_growth():
    result = run(events=12, detector="clic")
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
