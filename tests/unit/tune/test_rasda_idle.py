"""RASDA that grows on idle processes only: decisions worked out by hand, and that it is not slower than ASHA."""

from __future__ import annotations

import math

import pytest

from fixtures.even_costs import even_costs
from ringflow.tune.replay import Allocation, LearningCurve, Replay, Setting, recorded_curves, speedup
from ringflow.tune.replay.campaign import plan_campaign
from ringflow.tune.schedulers import Decision, Ladder, RasdaIdle, Report

LADDER = Ladder(10, 160, 4)  # rungs at 10, 40 and 160, halts between them at 20 and 80


def said(trial: int, resource: int, value: float, restart: float = 0.0) -> Report:
    return Report(trial, resource, value, restart=restart)


def made(trials: int, processes: int, most_workers: int = 1024) -> RasdaIdle:
    scheduler = RasdaIdle(LADDER.rungs, LADDER.eta, trials=trials, processes=processes, most_workers=most_workers)
    for trial in range(trials):
        assert scheduler.add(trial) == Decision("continue", 10, 1)
    return scheduler


def test_a_trial_grows_when_others_have_stopped() -> None:
    scheduler = made(4, 4)
    assert scheduler.report(said(0, 10, 1.0)) == Decision("continue", 20, 1)  # all processes are used
    assert scheduler.report(said(1, 10, 2.0)).verdict == "stop"
    assert scheduler.report(said(2, 10, 3.0)).verdict == "stop"
    assert scheduler.report(said(0, 20, 1.0)) == Decision("resize", 40, 2)  # two are idle, and three are no double
    assert scheduler.report(said(3, 10, 4.0)).verdict == "stop"
    assert scheduler.report(said(0, 40, 1.0)) == Decision("resize", 160, 4)
    assert scheduler.report(said(0, 160, 1.0)).verdict == "stop"


def test_a_trial_at_its_size_goes_to_the_next_rung_at_once() -> None:
    scheduler = made(1, 64)
    assert scheduler.report(said(0, 10, 1.0)) == Decision("resize", 40, 4)  # its size by RASDA, though 64 are there
    assert scheduler.report(said(0, 40, 1.0)) == Decision("resize", 160, 16)


def test_processes_are_kept_for_those_to_come() -> None:
    scheduler = RasdaIdle(LADDER.rungs, LADDER.eta, trials=4, processes=4)
    scheduler.add(0)
    assert scheduler.report(said(0, 10, 1.0)) == Decision("continue", 20, 1)  # three more will come
    scheduler.close()  # but they do not
    assert scheduler.report(said(0, 20, 1.0)) == Decision("resize", 40, 4)


def test_who_is_lost_leaves_processes_to_others() -> None:
    scheduler = made(2, 2)
    scheduler.gone(1)
    assert scheduler.report(said(0, 10, 1.0)) == Decision("resize", 40, 2)
    scheduler.gone(0)
    assert scheduler.report(said(0, 40, 1.0)).verdict == "stop"


def test_a_new_start_must_pay() -> None:
    # From 10 to 40 on four processes saves 30 - 30 / 4 = 22.5 events.
    assert made(1, 4).report(said(0, 10, 1.0, restart=22)).workers == 4
    assert made(1, 4).report(said(0, 10, 1.0, restart=23)) == Decision("continue", 20, 1)


def test_nobody_grows_before_it_is_known_what_a_start_costs() -> None:
    scheduler = made(1, 4)
    assert scheduler.report(Report(0, 10, 1.0)) == Decision("continue", 20, 1)
    assert scheduler.report(Report(0, 20, 1.0, restart=5.0)) == Decision("resize", 40, 4)


def test_a_trial_has_a_limit_and_the_cluster_another() -> None:
    scheduler = made(2, 4, most_workers=2)
    assert scheduler.report(said(0, 10, 1.0)) == Decision("resize", 40, 2)  # of the four two are idle
    assert scheduler.report(said(0, 40, 1.0)) == Decision("continue", 160, 2)  # and more a trial may not have


def test_who_diverges_at_a_halt_counts_at_the_next_rung() -> None:
    scheduler = made(9, 9)
    for trial in range(9):
        assert scheduler.report(said(trial, 10, 9.0 - trial)).verdict == "continue"  # every one the best so far
    for trial in range(1, 8):
        assert scheduler.report(said(trial, 20, math.nan)).verdict == "stop"
    # Of nine that set out for the rung at 40 seven diverged before it, so the second of nine may go on.
    assert scheduler.report(said(0, 40, 1.0)).verdict != "stop"
    assert scheduler.report(said(8, 40, 2.0)).verdict != "stop"


def test_who_diverges_between_rungs_stops() -> None:
    scheduler = made(2, 2)
    scheduler.report(Report(0, 10, 1.0))
    assert scheduler.report(Report(0, 20, math.nan)).verdict == "stop"
    assert scheduler.report(Report(1, 10, 2.0)).verdict == "stop"  # the first one was better at the rung


def test_in_a_replay_nobody_waits() -> None:
    curves = [LearningCurve([1.0], [value]) for value in (1.0, 2.0, 3.0, 4.0)]
    result = Replay(curves, "rasda-idle", devices=4, ladder=Ladder(100, 1600, 4), costs=even_costs())
    # The first one comes to 100 when all devices are used, finds them idle at 200, and stays on four, its most, to the end.
    assert [segment for segment in result.segments if segment.trial == 0] == [
        Allocation(0, 0.0, 210.0, 1, 0, 200),
        Allocation(0, 210.0, 210.0 + 10.0 + 1400 / 4, 4, 200, 1600),
    ]


@pytest.mark.parametrize("hours", [1 / 12, 2.0])
@pytest.mark.parametrize("per_device", [1, 4])
@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_it_is_not_slower_than_asha_where_rasda_may_be(hours: float, per_device: int, penalty: float) -> None:
    compared = plan_campaign(recorded_curves(None), trials=256, hours=hours).compare(
        ["asha", "rasda-idle"],
        [64],
        setting=Setting(reload_seconds=10.0, penalty=penalty, lengthen=True),
        trials=64 * per_device,
        orders=3,
    )
    found = speedup(compared, "rasda-idle", "asha", 64)
    assert found.makespan > (0.95 if penalty else 0.99)  # it does not know what large batches cost
    assert found.equal_quality > 0.95
