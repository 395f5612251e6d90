"""Studies on simulated clusters, worked out by hand; learning curves, recorded and modelled."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.even_costs import even_costs
from ringflow.base.errors import InputFileError, UsageError
from ringflow.tune.replay.curves import LearningCurve, PowerLaw, fit, model_of, read_curve, recorded_curves
from ringflow.tune.replay.engine import Allocation, ReplayResult, Setting, compare, replay, speedup
from ringflow.tune.schedulers import SCHEDULERS, Ladder

RECORDED = recorded_curves(None).curves
LADDER = Ladder(10, 40, 4)


def level(*values: float) -> list[LearningCurve]:
    """Trials that have one value from their beginning to their end."""
    return [LearningCurve([1.0], [value]) for value in values]


def run(curves: list[LearningCurve], scheduler: str, devices: int, **setting: object) -> ReplayResult:
    return replay(
        curves,
        scheduler,
        devices=devices,
        ladder=LADDER,
        costs=even_costs(),
        setting=Setting(**setting),  # type: ignore[arg-type]
    )


def test_a_trial_alone() -> None:
    result = run([LearningCurve([10.0, 40.0], [3.0, 1.0])], "none", 2)
    assert (result.makespan, result.device_seconds, result.utilisation) == (50.0, 50.0, 0.5)
    assert result.segments == [Allocation(0, 0.0, 50.0, 1, 0, 40)]
    assert result.best_over_time == [(50.0, 1.0)]
    assert (result.trials, result.complete, result.reloads) == (1, 1, 0)


def test_trials_wait_for_devices() -> None:
    result = run(level(1.0, 2.0, 3.0), "none", 2)
    assert result.makespan == 100.0
    assert result.utilisation == 0.75
    assert run(level(1.0, 2.0, 3.0), "none", 2, initial_workers=2).makespan == 3 * (10.0 + 40 / 2)


def test_asha_stops_and_goes_on_without_a_new_start() -> None:
    result = run(level(1.0, 2.0), "asha", 2)
    assert sorted(result.segments) == [Allocation(0, 0.0, 50.0, 1, 0, 40), Allocation(1, 0.0, 20.0, 1, 0, 10)]
    assert result.complete == 1
    assert result.best_over_time == [(20.0, 1.0)]


def test_rasda_waits_for_its_devices_and_starts_anew() -> None:
    result = run(level(1.0, 2.0, 3.0, 4.0), "rasda", 4)
    assert result.segments[-1] == Allocation(0, 20.0, 20.0 + 10.0 + 30 / 4, 4, 10, 40)
    assert result.makespan == 37.5
    assert result.reloads == 1
    assert run(level(1.0, 2.0, 3.0, 4.0), "rasda", 4, reload_seconds=5.0).makespan == 42.5


def test_who_waits_for_devices_is_not_overtaken() -> None:
    # At 20 s trial 0 wants both devices, but trial 1 (the best so far, too) wants them as well: one after the other.
    result = run(level(2.0, 1.0, 3.0), "rasda", 2)
    assert [(segment.trial, segment.start, segment.workers) for segment in result.segments] == [
        (0, 0.0, 1), (1, 0.0, 1), (0, 20.0, 2), (1, 45.0, 2), (2, 70.0, 1),
    ]  # fmt: skip


def test_with_take_a_trial_goes_on_with_what_is_free() -> None:
    assert run(level(1.0), "rasda", 3, growth="take").segments[-1] == Allocation(0, 20.0, 40.0, 3, 10, 40)
    full = run(level(2.0, 1.0), "rasda", 2, growth="take")  # no device is free: no new start
    assert full.segments == [Allocation(0, 0.0, 50.0, 1, 0, 40), Allocation(1, 0.0, 50.0, 1, 0, 40)]


def test_a_trial_that_was_put_aside_is_started_again_as_by_the_driver_of_a_study() -> None:
    values = level(1.0, 2.0, 3.0, 4.0)
    roomy = run(values, "asha-promote", 4, reload_seconds=5.0)
    assert (roomy.makespan, roomy.reloads) == (20.0 + 10.0 + 5.0 + 30.0, 1)
    at_once = run(values[::-1], "asha-promote", 2, reload_seconds=5.0)  # the last one is the best, and goes on at once
    assert (at_once.makespan, at_once.reloads) == (40.0 + 10.0 + 5.0 + 30.0, 1)


def test_larger_batches_may_be_worth_less() -> None:
    falling = [LearningCurve([0.0, 40.0], [40.0, 0.0])]
    assert run(falling, "rasda", 4).best == 0.0
    assert run(falling, "rasda", 4, penalty=1.0).best == 40.0 - (10 + 30 / 4)
    assert run(falling, "rasda", 4, penalty=0.5).best == 40.0 - (10 + 30 / 2)


def test_a_longer_training_makes_up_for_larger_batches() -> None:
    falling = [LearningCurve([0.0, 40.0], [40.0, 0.0])]
    even = run(falling, "rasda", 4, penalty=0.5, lengthen=True)
    assert even.best == 0.0
    assert even.makespan == 20.0 + 10.0 + 30 / (4 * 0.5)  # an event on four devices is worth half of one
    assert run(falling, "rasda", 4, penalty=1.0, lengthen=True).makespan == 20.0 + 10.0 + 30


def test_trials_that_take_turns_start_again_every_time() -> None:
    result = run(level(1.0, 2.0), "none", 1, turn=20, reload_seconds=5.0)
    assert result.segments == [
        Allocation(0, 0.0, 30.0, 1, 0, 20), Allocation(1, 30.0, 60.0, 1, 0, 20),
        Allocation(0, 60.0, 95.0, 1, 20, 40), Allocation(1, 95.0, 130.0, 1, 20, 40),
    ]  # fmt: skip
    assert result.reloads == 2
    alone = run(level(1.0, 2.0), "none", 2, turn=20, reload_seconds=5.0)  # nobody waits for their devices
    assert (alone.makespan, alone.reloads) == (50.0, 0)


def test_a_failure_costs_what_was_done_since_the_last_rung() -> None:
    result = run(level(1.0), "asha", 1, failures_per_second=0.01, seed=1, retries=99)
    assert result.failures > 0
    assert result.complete == 1
    assert result.reloads == result.failures
    lost = [segment for segment in result.segments if segment.last < 40]
    assert len(lost) == result.failures
    assert result.makespan == pytest.approx(sum(segment.end - segment.start for segment in result.segments))


def test_who_failed_is_the_first_to_start_again() -> None:
    result = run(level(1.0, 2.0, 3.0), "none", 1, failures_per_second=0.02, seed=2)
    order = [segment.trial for segment in result.segments]
    assert result.failures > 0
    assert order == sorted(order)


def test_more_devices_fail_more_often() -> None:
    one, eight = (
        run(level(*range(1, 201)), "none", 8, initial_workers=workers, failures_per_second=0.002) for workers in (1, 8)
    )
    # 50 s on one device against 15 s on eight: 2.4 times the chance
    assert 1.6 < eight.failures / one.failures < 3.2


def test_those_that_are_given_up_do_not_keep_the_others_waiting() -> None:
    for scheduler in ("halving", "hyperband", "asha-promote"):
        result = run(level(*range(1, 17)), scheduler, 16, failures_per_second=0.01, retries=0, seed=1)
        assert 0 < result.failures < 16
        assert result.complete > 0


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_study_of_failures_ends(scheduler: str) -> None:
    result = run(level(*range(1, 9)), scheduler, 4, failures_per_second=1e9, retries=2)
    assert (result.trials, result.failures, result.complete) == (8, 24, 0)


@given(
    scheduler=st.sampled_from(SCHEDULERS), devices=st.integers(1, 20), workers=st.integers(1, 4), seed=st.integers(0, 99),
    trials=st.integers(1, 40), growth=st.sampled_from(["wait", "take"]), failures=st.sampled_from([0.0, 0.002]),
    turn=st.sampled_from([0, 3, 25]),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_devices_are_never_had_twice(
    scheduler: str, devices: int, workers: int, seed: int, trials: int, growth: str, failures: float, turn: int
) -> None:
    curves = level(*[float(1 + number * (seed + 1) % 17) for number in range(trials)])
    result = run(
        curves, scheduler, devices, initial_workers=min(workers, devices), growth=growth, seed=seed,
        failures_per_second=failures, turn=turn,
    )  # fmt: skip
    changes = [(segment.end, -segment.workers) for segment in result.segments]
    changes += [(segment.start, segment.workers) for segment in result.segments]
    used = 0
    for _, change in sorted(changes):  # at the same time devices are given back first
        used += change
        assert 0 <= used <= devices
    for trial in range(trials):
        own = sorted(segment for segment in result.segments if segment.trial == trial)
        assert own[0].first == 0
        assert all(before.end <= after.start and before.last == after.first for before, after in pairwise(own))
    assert result.device_seconds == pytest.approx(sum(s.workers * (s.end - s.start) for s in result.segments))
    assert result.makespan == max(segment.end for segment in result.segments)
    assert 0.0 < result.utilisation <= 1.0 + 1e-12


def test_what_cannot_be_replayed() -> None:
    with pytest.raises(UsageError, match="3 workers per trial do not fit on 2 devices"):
        run(level(1.0), "none", 2, initial_workers=3)
    with pytest.raises(UsageError, match="no curves"):
        run([], "none", 2)
    with pytest.raises(UsageError, match="no curves"):
        compare([], ["none"], [2], ladder=LADDER, costs=even_costs())
    with pytest.raises(UsageError, match="no scheduler is called 'best'"):
        run(level(1.0), "best", 2)


def test_a_curve_is_straight_between_its_points_and_level_outside() -> None:
    curve = LearningCurve([10.0, 20.0, 40.0], [4.0, 3.0, 1.0])
    assert [curve.value(events) for events in (0, 10, 15, 20, 30, 40, 99)] == [4.0, 4.0, 3.5, 3.0, 2.0, 1.0, 1.0]
    assert [curve.scaled(10.0).value(events) for events in (150, 400)] == [3.5, 1.0]


def test_curves_are_read_from_run_folders(tmp_path: Path) -> None:
    lines = [
        {"kind": "train", "events": 5, "loss": 9.0},
        {"kind": "validation", "events": 10, "loss": 4.0, "jet_iqr_over_median": None},
        {"kind": "validation", "events": 20, "loss": 3.0, "jet_iqr_over_median": 0.1},
    ]
    (tmp_path / "history.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert read_curve(tmp_path) == LearningCurve([10.0, 20.0], [4.0, 3.0])
    assert read_curve(tmp_path, "jet_iqr_over_median") == LearningCurve([20.0], [0.1])
    with pytest.raises(InputFileError, match="no validation with the figure 'lost'"):
        read_curve(tmp_path, "lost")


@pytest.mark.parametrize("content", ["{", "[1]", '{"kind": "validation"}'])
def test_what_is_no_history(tmp_path: Path, content: str) -> None:
    (tmp_path / "history.jsonl").write_text(content)
    with pytest.raises(InputFileError, match="is not the history of a training"):
        read_curve(tmp_path)
    with pytest.raises(InputFileError, match=r"cannot read .*nothing.*No such file"):
        read_curve(tmp_path / "nothing")


def test_a_fit_finds_the_power_law() -> None:
    shares = np.linspace(1 / 16, 1.0, 16)
    values = 2.0 + 1.5 * (shares**-0.5 - 1.0) / (16**0.5 - 1.0)
    law = fit(LearningCurve((8000 * shares).tolist(), values.tolist()))
    assert (law.end, law.fall, law.slope, law.scatter) == pytest.approx((2.0, 1.5, 0.5, 0.0), abs=1e-6)


def test_a_rising_curve_is_level() -> None:
    assert fit(LearningCurve([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])) == PowerLaw(2.5, 0.0, 1.0, math.sqrt(1.25))


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
        model_of(
            [RECORDED[0], LearningCurve([1.0, 2.0, 3.0, 4.0], [1.0, math.nan, 1.0, 1.0]), LearningCurve([1.0], [1.0])]
        )


LONG = Ladder(600, 12_000, 4)


def test_rasda_is_faster_if_trials_are_long_against_a_restart_and_slower_if_not() -> None:
    curves = [curve.scaled(12_000.0) for curve in model_of(RECORDED).draw(200, seed=1)]
    long, short = (
        speedup(
            compare(curves, ["asha", "rasda"], [64], ladder=LONG, costs=even_costs(restart), orders=2),
            "rasda",
            "asha",
            64,
        )
        for restart in (10.0, 10_000.0)
    )
    assert min(long.makespan, long.equal_quality) > 1.5
    assert long.best == long.other_best  # an event is worth the same, whoever shows it
    assert short.makespan < 1.0


def test_rasda_finds_worse_networks_if_only_steps_count() -> None:
    curves = [curve.scaled(12_000.0) for curve in model_of(RECORDED).draw(200, seed=1, scatter=0.0)]
    steps = Setting(penalty=1.0)
    results = compare(curves, ["asha", "rasda"], [64], ladder=LONG, costs=even_costs(), setting=steps, orders=2)
    found = speedup(results, "rasda", "asha", 64)
    assert found.best > found.other_best


def test_a_scheduler_is_as_fast_as_itself() -> None:
    results = compare(level(1.0, 2.0, 3.0), ["none"], [2, 4], ladder=LONG, costs=even_costs(0.0), trials=8, orders=3)
    assert [speedup(results, "none", "none", devices)[:2] for devices in (2, 4)] == [(1.0, 1.0)] * 2
    assert [result.trials for result in results["none", 4]] == [8, 8, 8]


def test_without_a_number_of_trials_all_begin_at_once() -> None:
    two = Setting(initial_workers=2)
    (result,) = compare(RECORDED, ["none"], [6], ladder=LONG, costs=even_costs(1.0), setting=two, orders=1)["none", 6]
    assert (result.trials, result.makespan) == (3, 1.0 + 12_000 / 2)
