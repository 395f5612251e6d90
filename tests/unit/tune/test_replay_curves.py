"""Learning curves, recorded and modelled, and what comparisons make of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from ringflow.base.errors import InputFileError, UsageError
from ringflow.tune import replay
from ringflow.tune.replay.comparison import compare
from ringflow.tune.replay.curves import Curve, PowerLaw, fit, model_of, read_curves
from ringflow.tune.replay.simulation import Setting
from ringflow.tune.schedulers import Ladder

RECORDED = [
    Curve(trial["events"], trial["value"])
    for trial in json.loads((Path(replay.__file__).parent / "recorded.json").read_text())["trials"]
]


class EvenCosts:
    """An event per second and device; a start takes as long as it is told."""

    def __init__(self, restart_seconds: float) -> None:
        self.restart_seconds = restart_seconds

    def throughput(self, devices: int) -> float:
        return float(devices)


def test_a_curve_is_straight_between_its_points_and_level_outside() -> None:
    curve = Curve([10.0, 20.0, 40.0], [4.0, 3.0, 1.0])
    assert [curve.value(events) for events in (0, 10, 15, 20, 30, 40, 99)] == [4.0, 4.0, 3.5, 3.0, 2.0, 1.0, 1.0]
    assert [curve.stretched(400.0).value(events) for events in (150, 400)] == [3.5, 1.0]


def test_curves_are_read_from_run_folders(tmp_path: Path) -> None:
    lines = [
        {"kind": "train", "events": 5, "loss": 9.0},
        {"kind": "validation", "events": 10, "loss": 4.0, "jet_iqr_over_median": None},
        {"kind": "validation", "events": 20, "loss": 3.0, "jet_iqr_over_median": 0.1},
    ]
    (tmp_path / "history.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert read_curves([tmp_path]) == [Curve([10.0, 20.0], [4.0, 3.0])]
    assert read_curves([tmp_path], "jet_iqr_over_median") == [Curve([20.0], [0.1])]
    with pytest.raises(InputFileError, match="no validation with the figure 'lost'"):
        read_curves([tmp_path], "lost")


@pytest.mark.parametrize("content", ["{", "[1]", '{"kind": "validation"}'])
def test_what_is_no_history(tmp_path: Path, content: str) -> None:
    (tmp_path / "history.jsonl").write_text(content)
    with pytest.raises(InputFileError, match="is not the history of a training"):
        read_curves([tmp_path])
    with pytest.raises(InputFileError, match=r"cannot read .*nothing.*No such file"):
        read_curves([tmp_path / "nothing"])


def test_a_fit_finds_the_power_law() -> None:
    shares = np.linspace(1 / 16, 1.0, 16)
    values = 2.0 + 1.5 * (shares**-0.5 - 1.0) / (16**0.5 - 1.0)
    law = fit(Curve((8000 * shares).tolist(), values.tolist()))
    assert (law.end, law.fall, law.slope, law.scatter) == pytest.approx((2.0, 1.5, 0.5, 0.0), abs=1e-6)


def test_a_rising_curve_is_level() -> None:
    assert fit(Curve([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])) == PowerLaw(2.5, 0.0, 1.0, math.sqrt(1.25))


def test_drawn_curves_are_like_the_recorded_ones() -> None:
    model = model_of(RECORDED)
    curves = model.draw(2000, seed=3)
    assert curves == model.draw(2000, seed=3)
    assert curves != model.draw(2000, seed=4)
    ends, recorded = np.array([curve.value(1.0) for curve in curves]), np.array([law.end for law in model.laws])
    assert abs(ends.mean() - recorded.mean()) < 3 * recorded.std() / len(recorded) ** 0.5
    assert ends.min() > 0.5 * recorded.min()
    early = np.array([curve.value(1 / 16) for curve in curves])
    assert (early > ends).mean() > 0.95
    assert np.corrcoef(early, ends)[0, 1] < 0.99
    smooth = np.array([curve.values for curve in model.draw(200, seed=3, scatter=0.0)])
    assert (np.diff(smooth, axis=1) <= 0.0).all()


def test_two_curves_are_needed_for_a_model() -> None:
    with pytest.raises(InputFileError, match="1 curves"):
        model_of([RECORDED[0], Curve([1.0, 2.0, 3.0, 4.0], [1.0, math.nan, 1.0, 1.0]), Curve([1.0], [1.0])])


LADDER = Ladder(600, 12_000, 4)


def test_rasda_is_faster_if_trials_are_long_against_a_restart_and_slower_if_not() -> None:
    curves = [curve.stretched(12_000.0) for curve in model_of(RECORDED).draw(200, seed=1)]
    long, short = (
        compare(curves, ["asha", "rasda"], [64], ladder=LADDER, costs=EvenCosts(restart), orders=2).speedup(
            "rasda", "asha"
        )
        for restart in (10.0, 10_000.0)
    )
    assert long[64].makespan > 1.5
    assert long[64].equal_quality > 1.5
    assert long[64].best == long[64].other_best  # an event is worth the same, whoever shows it
    assert short[64].makespan < 1.0


def test_rasda_finds_worse_networks_if_only_steps_count() -> None:
    curves = [curve.stretched(12_000.0) for curve in model_of(RECORDED).draw(200, seed=1, scatter=0.0)]
    compared = compare(
        curves, ["asha", "rasda"], [64], ladder=LADDER, costs=EvenCosts(10.0), setting=Setting(penalty=1.0), orders=2
    )
    assert compared.speedup("rasda", "asha")[64].best > compared.speedup("rasda", "asha")[64].other_best


def test_a_scheduler_is_as_fast_as_itself_and_scales() -> None:
    curves = [Curve([1.0], [value]) for value in (1.0, 2.0, 3.0)]
    compared = compare(curves, ["none"], [2, 4], ladder=LADDER, costs=EvenCosts(0.0), trials=8, orders=3)
    assert {devices: found[:2] for devices, found in compared.speedup("none", "none").items()} == {
        2: (1.0, 1.0),
        4: (1.0, 1.0),
    }
    assert compared.scaling("none") == {2: 1.0, 4: 1.0}
    assert [result.trials for result in compared.results["none", 4]] == [8, 8, 8]
    with pytest.raises(UsageError, match="no curves"):
        compare([], ["none"], [2], ladder=LADDER, costs=EvenCosts(0.0))


def test_without_a_number_of_trials_all_begin_at_once() -> None:
    compared = compare(
        RECORDED, ["none"], [6], ladder=LADDER, costs=EvenCosts(1.0), setting=Setting(initial_workers=2), orders=1
    )
    (result,) = compared.results["none", 6]
    assert result.trials == 3
    assert result.makespan == 1.0 + 12_000 / 2
