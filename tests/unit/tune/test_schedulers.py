"""The rules of the schedulers, by examples that can be worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from ringflow.base.errors import UsageError
from ringflow.tune.schedulers import Decision, Hyperband, Ladder, Report, Scheduler, make_scheduler

#: The ladder that was published for MLPF.
PUBLISHED = Ladder(10, 200, 4)


def made(name: str, ladder: Ladder = PUBLISHED, trials: int = 100, **sizes: int) -> Scheduler:
    return make_scheduler(name, ladder, trials=trials, **sizes)


def report(scheduler: Scheduler, trial: int, resource: int, value: float) -> str:
    return scheduler.report(Report(trial, resource, value)).verdict


def arrive(scheduler: Scheduler, resource: int, values: Sequence[float]) -> list[str]:
    """New trials come to the first rung, one after the other."""
    for trial in range(len(values)):
        scheduler.add(trial)
    return [report(scheduler, trial, resource, value) for trial, value in enumerate(values)]


def climb(scheduler: Scheduler, trials: int) -> dict[int, int]:
    """Play trials whose value is their number; by resource, how many came there."""
    until, came = {trial: scheduler.add(trial).until for trial in range(trials)}, dict[int, int]()
    scheduler.close()
    while until:
        for trial, resource in sorted(until.items()):
            came[resource] = came.get(resource, 0) + 1
            decision = scheduler.report(Report(trial, resource, float(trial)))
            if decision.verdict in ("stop", "pause"):
                del until[trial]
            else:
                until[trial] = decision.until
        until |= {trial: told.until for trial, told in scheduler.promoted() if told.verdict != "stop"}
    return came


@pytest.mark.parametrize(
    ("ladder", "rungs", "from_the_end"),
    [
        (PUBLISHED, (10, 40, 160, 200), (12, 50, 200)),
        (Ladder(1, 81, 3), (1, 3, 9, 27, 81), (1, 3, 9, 27, 81)),
        (Ladder(3, 3**20, 3), tuple(3**i for i in range(1, 21)), tuple(3**i for i in range(1, 21))),
        (Ladder(7, 7), (7,), (7,)),
        (Ladder(7, 8, 2), (7, 8), (8,)),
        (Ladder(1777, 16_000, 3), (1777, 5331, 16_000), (1777, 5333, 16_000)),
        (
            Ladder(46_875, 12_000_000, 4),
            (46875, 187500, 750000, 3000000, 12000000),
            (46875, 187500, 750000, 3000000, 12000000),
        ),
    ],
)
def test_rungs(ladder: Ladder, rungs: tuple[int, ...], from_the_end: tuple[int, ...]) -> None:
    assert ladder.rungs == rungs
    assert ladder.from_the_end == from_the_end


@pytest.mark.parametrize("ladder", [(0, 10, 4), (20, 10, 4), (1, 10, 1)])
def test_a_ladder_that_cannot_be_climbed(ladder: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="give"):
        Ladder(*ladder)


def test_none_stops_at_the_end_only() -> None:
    scheduler = made("none", initial_workers=2)
    assert scheduler.add(0) == Decision("continue", 200, 2)
    assert report(scheduler, 0, 199, 1.0) == "continue"
    assert report(scheduler, 0, 200, 1.0) == "stop"


def test_asha_goes_on_with_the_best_one_in_four_of_those_so_far() -> None:
    scheduler = made("asha")
    # best of 1; not of 2; best of 3; not of 4; second of 5: one in 4 is 1; best of 6 and 7; second of 8: one in 4 is 2
    verdicts = arrive(scheduler, 10, [5.0, 6.0, 4.0, 7.0, 4.5, 3.0, 2.0, 2.5])
    assert verdicts == ["continue", "stop", "continue", "stop", "stop", "continue", "continue", "continue"]
    assert scheduler.report(Report(7, 40, 9.0)) == Decision("continue", 160, 1)  # the first one there
    assert report(scheduler, 0, 40, 9.5) == "stop"
    assert scheduler.report(Report(7, 160, 9.0)) == Decision("continue", 200, 1)
    assert report(scheduler, 7, 200, 9.0) == "stop"


def test_asha_does_not_go_on_with_what_is_no_number() -> None:
    assert arrive(made("asha"), 10, [math.nan, math.inf, 3.0]) == ["stop", "stop", "continue"]
    assert arrive(made("asha"), 10, [1.0, *[math.nan] * 6, 2.0])[-1] == "continue"  # the second of 8 that came


def test_a_report_that_comes_late_counts_at_every_rung_it_passed() -> None:
    scheduler = made("asha")
    scheduler.add(0)
    assert scheduler.report(Report(0, 170, 1.0)) == Decision("continue", 200, 1)
    scheduler.add(1)
    assert report(scheduler, 1, 10, 2.0) == "stop"


def test_asha_promotes_when_enough_are_there() -> None:
    scheduler = made("asha-promote")
    assert arrive(scheduler, 10, [5.0, 6.0, 4.0]) == ["pause"] * 3
    assert scheduler.promoted() == []
    scheduler.add(3)
    assert report(scheduler, 3, 10, 7.0) == "pause"
    assert scheduler.promoted() == [(2, Decision("continue", 40, 1))]
    assert scheduler.promoted() == []
    for trial in range(4, 8):
        scheduler.add(trial)
        report(scheduler, trial, 10, 8.0)
    assert scheduler.promoted() == [(0, Decision("continue", 40, 1))]  # the second of 8
    next_one = made("asha-promote")
    arrive(next_one, 10, [5.0, 6.0, 4.0, 7.0])
    next_one.gone(2)
    assert [trial for trial, _ in next_one.promoted()] == [0]


def test_asha_promotes_one_to_the_end_however_few_there_are() -> None:
    assert climb(made("asha-promote"), 3) == {10: 3, 40: 1, 160: 1, 200: 1}
    assert climb(made("asha-promote"), 24) == {10: 24, 40: 6, 160: 1, 200: 1}


def test_rasda_gives_survivors_of_rung_i_eta_to_the_i_plus_1_times_the_workers() -> None:
    scheduler = made("rasda", initial_workers=2)
    assert scheduler.add(0) == Decision("continue", 10, 2)
    assert scheduler.report(Report(0, 10, 1.0)) == Decision("resize", 40, 2 * 4)
    assert scheduler.report(Report(0, 11, 1.0)) == Decision("continue", 40, 2 * 4)  # it has them now
    assert scheduler.report(Report(0, 40, 1.0)) == Decision("resize", 160, 2 * 4**2)
    assert scheduler.report(Report(0, 160, 1.0)) == Decision("resize", 200, 2 * 4**3)
    assert report(scheduler, 0, 200, 1.0) == "stop"


def test_rasda_has_only_so_many_workers() -> None:
    scheduler = made("rasda", initial_workers=2, most_workers=8)
    scheduler.add(0)
    assert scheduler.report(Report(0, 10, 1.0)) == Decision("resize", 40, 8)
    assert scheduler.report(Report(0, 40, 1.0)) == Decision("continue", 160, 8)
    with pytest.raises(UsageError, match="from 9 to 8"):
        made("rasda", initial_workers=9, most_workers=8)


def test_halving_waits_for_all_and_keeps_one_in_eta() -> None:
    scheduler = made("halving", trials=9)
    assert (
        arrive(scheduler, 10, [5.0, 6.0, 4.0, 7.0, math.nan, 8.0, 8.0, 8.0]) == ["pause"] * 4 + ["stop"] + ["pause"] * 3
    )
    assert scheduler.promoted() == ()
    scheduler.add(8)
    assert scheduler.promoted() == ()
    assert report(scheduler, 8, 10, 3.0) == "pause"
    decisions = dict(scheduler.promoted())
    assert {trial for trial, told in decisions.items() if told.verdict == "continue"} == {8, 2}
    assert set(decisions) == {0, 1, 2, 3, 5, 6, 7, 8}
    with pytest.raises(UsageError, match="trial 9 is one too many"):
        scheduler.add(9)


def test_halving_does_not_wait_for_those_that_are_gone_or_never_come() -> None:
    scheduler = made("halving", trials=6)
    assert arrive(scheduler, 10, [5.0, 6.0, 4.0, 7.0]) == ["pause"] * 4
    scheduler.add(4)
    scheduler.close()
    assert scheduler.promoted() == ()
    scheduler.gone(2)
    scheduler.gone(4)
    scheduler.gone(4)  # a second time changes nothing
    assert dict(scheduler.promoted()) == {0: Decision("continue", 40), **dict.fromkeys((1, 3), Decision("stop"))}


def test_hyperband_has_the_brackets_of_its_paper() -> None:
    """R = 81, eta = 3: table 1 of L. Li et al., JMLR 18 (2018) 185."""
    brackets = [
        {1: 81, 3: 27, 9: 9, 27: 3, 81: 1},
        {3: 34, 9: 11, 27: 3, 81: 1},
        {9: 15, 27: 5, 81: 1},
        {27: 8, 81: 2},
        {81: 5},
    ]
    sizes = [Hyperband(Ladder(1, 81, 3).from_the_end, 3).bracket_trials(bracket) for bracket in range(5)]
    assert sizes == [81, 34, 15, 8, 5]
    so_far = dict.fromkeys((1, 3, 9, 27, 81), 0)
    for number in range(5):
        so_far = {resource: count + brackets[number].get(resource, 0) for resource, count in so_far.items()}
        came = climb(made("hyperband", Ladder(1, 81, 3)), sum(sizes[: number + 1]))
        assert came == {resource: count for resource, count in so_far.items() if count}


def test_hyperband_begins_again_after_its_last_bracket() -> None:
    scheduler = made("hyperband", Ladder(1, 9, 3))
    firsts = [scheduler.add(trial).until for trial in range(20)]
    assert firsts == [1] * 9 + [3] * 5 + [9] * 3 + [1] * 3


def test_an_unknown_scheduler_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'hasha'; choose from none, halving, hyperband, asha, asha-promote, rasda"):
        make_scheduler("hasha", PUBLISHED, trials=4)
