"""Studies on simulated clusters, worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringflow.base.errors import UsageError
from ringflow.launch.scaling import Cluster, CostModel, Link, Upkeep, Work
from ringflow.tune.replay.curves import Curve
from ringflow.tune.replay.simulation import ReplayResult, RungRow, Segment, Setting, replay
from ringflow.tune.schedulers import SCHEDULERS, Ladder

LADDER = Ladder(10, 40, 4)


class EvenCosts:
    """An event per second and device, ten seconds to start."""

    restart_seconds = 10.0

    def throughput(self, devices: int) -> float:
        return float(devices)


def level(*values: float) -> list[Curve]:
    """Trials that have one value from their beginning to their end."""
    return [Curve([1.0], [value]) for value in values]


def run(curves: list[Curve], scheduler: str, devices: int, **setting: object) -> ReplayResult:
    return replay(
        curves,
        scheduler,
        devices=devices,
        ladder=LADDER,
        costs=EvenCosts(),
        setting=Setting(**setting),  # type: ignore[arg-type]
    )


def test_a_trial_alone() -> None:
    result = run([Curve([10.0, 40.0], [3.0, 1.0])], "none", 2)
    assert (result.makespan, result.device_seconds, result.utilisation) == (50.0, 50.0, 0.5)
    assert result.segments == [Segment(0, 0.0, 50.0, 1, 0, 40)]
    assert result.best_over_time == [(50.0, 1.0)]
    assert result.rungs == [RungRow(40, 1, 0, 1.0)]
    assert (result.trials, result.complete, result.reloads) == (1, 1, 0)


def test_trials_wait_for_devices() -> None:
    result = run(level(1.0, 2.0, 3.0), "none", 2)
    assert result.makespan == 100.0
    assert result.utilisation == 0.75
    assert run(level(1.0, 2.0, 3.0), "none", 2, initial_workers=2).makespan == 3 * (10.0 + 40 / 2)


def test_asha_stops_and_goes_on_without_a_new_start() -> None:
    result = run(level(1.0, 2.0), "asha", 2)
    assert sorted(result.segments) == [Segment(0, 0.0, 50.0, 1, 0, 40), Segment(1, 0.0, 20.0, 1, 0, 10)]
    assert result.rungs == [RungRow(10, 2, 1, 1.0), RungRow(40, 1, 0, 1.0)]
    assert result.best_over_time == [(20.0, 1.0)]


def test_rasda_waits_for_its_devices_and_starts_anew() -> None:
    result = run(level(1.0, 2.0, 3.0, 4.0), "rasda", 4)
    assert result.segments[-1] == Segment(0, 20.0, 20.0 + 10.0 + 30 / 4, 4, 10, 40)
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
    assert run(level(1.0), "rasda", 3, growth="take").segments[-1] == Segment(0, 20.0, 40.0, 3, 10, 40)
    full = run(level(2.0, 1.0), "rasda", 2, growth="take")  # no device is free: no new start
    assert full.segments == [Segment(0, 0.0, 50.0, 1, 0, 40), Segment(1, 0.0, 50.0, 1, 0, 40)]


def test_a_trial_that_was_put_aside_is_started_again_as_by_the_driver_of_a_study() -> None:
    values = level(1.0, 2.0, 3.0, 4.0)
    roomy = run(values, "asha-promote", 4, reload_seconds=5.0)
    assert (roomy.makespan, roomy.reloads) == (20.0 + 10.0 + 5.0 + 30.0, 1)
    at_once = run(values[::-1], "asha-promote", 2, reload_seconds=5.0)  # the last one is the best, and goes on at once
    assert (at_once.makespan, at_once.reloads) == (40.0 + 10.0 + 5.0 + 30.0, 1)


def test_larger_batches_may_be_worth_less() -> None:
    falling = [Curve([0.0, 40.0], [40.0, 0.0])]
    assert run(falling, "rasda", 4).best == 0.0
    assert run(falling, "rasda", 4, penalty=1.0).best == 40.0 - (10 + 30 / 4)
    assert run(falling, "rasda", 4, penalty=0.5).best == 40.0 - (10 + 30 / 2)


def test_a_longer_training_makes_up_for_larger_batches() -> None:
    falling = [Curve([0.0, 40.0], [40.0, 0.0])]
    even = run(falling, "rasda", 4, penalty=0.5, lengthen=True)
    assert even.best == 0.0
    assert even.makespan == 20.0 + 10.0 + 30 / (4 * 0.5)  # an event on four devices is worth half of one
    assert run(falling, "rasda", 4, penalty=1.0, lengthen=True).makespan == 20.0 + 10.0 + 30


def test_trials_that_take_turns_start_again_every_time() -> None:
    result = run(level(1.0, 2.0), "none", 1, turn=20, reload_seconds=5.0)
    assert result.segments == [
        Segment(0, 0.0, 30.0, 1, 0, 20), Segment(1, 30.0, 60.0, 1, 0, 20),
        Segment(0, 60.0, 95.0, 1, 20, 40), Segment(1, 95.0, 130.0, 1, 20, 40),
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


def test_the_cost_model_of_trainings_is_taken() -> None:
    network = Link(1e11, 1e-6)
    costs = CostModel(Cluster(8, network, network), Work(1_000_000, 1e-3, 100), Upkeep(restart_seconds=7.0))
    result = replay(level(1.0), "none", devices=1, ladder=LADDER, costs=costs)
    assert result.makespan == pytest.approx(7.0 + 40 / costs.throughput(1))


def test_what_cannot_be_replayed() -> None:
    with pytest.raises(UsageError, match="3 workers per trial do not fit on 2 devices"):
        run(level(1.0), "none", 2, initial_workers=3)
    with pytest.raises(UsageError, match="no curves"):
        run([], "none", 2)
    with pytest.raises(UsageError, match="no scheduler is called 'best'"):
        run(level(1.0), "best", 2)
