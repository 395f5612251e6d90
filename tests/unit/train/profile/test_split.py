"""Waiting and communicating, told apart by what all ranks saw."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringflow.train.phases import PHASES
from ringflow.train.profile.records import StepRecord
from ringflow.train.profile.split import RankStep, split

MS = 1_000_000
MakeStep = Callable[..., StepRecord]


def milliseconds(done: RankStep) -> dict[str, float]:
    return {phase: done.time(phase) / MS for phase in PHASES if done.time(phase)}


def test_who_comes_early_waits_and_then_all_communicate(make_step: MakeStep):
    early, late = split([make_step(ready=4), make_step(ready=20)])
    assert milliseconds(early) == {
        "data": 4,
        "idle": 16,
        "communication": 2,
        "forward": 18,
        "backward": 50,
        "optimizer": 5,
    }
    assert milliseconds(late) == {"data": 20, "communication": 2, "forward": 18, "backward": 50, "optimizer": 5}
    assert [(segment.phase, segment.waits_for) for segment in early.segments[1:3]] == [
        ("idle", 1),
        ("communication", None),
    ]
    assert (early.late, late.late) == (0, 16 * MS)
    assert early.other == late.other == 3 * MS


def test_only_what_is_left_after_the_last_gradient_holds_a_step_up(make_step: MakeStep):
    fast = make_step(ready=20, handed=(50, 60), there=(75, 88))
    slow = make_step(ready=20, handed=(55, 80), there=(75, 88))
    first, second = split([fast, slow])
    # The last bucket is handed over at 60 and at 80, and the backward ends at 90.
    assert milliseconds(first) | {"data": 0} == {
        "data": 0, "communication": 12, "forward": 18, "backward": 20, "idle": 20, "optimizer": 5,
    }  # fmt: skip
    assert milliseconds(second)["backward"] == 40
    assert milliseconds(second)["communication"] == 12
    assert "idle" not in milliseconds(second)
    assert (first.late, second.late) == (0, 20 * MS)
    # The first bucket travels from 55, when both have handed it over: 5 ms until 60 are hidden in one, 20 ms in the other.
    assert (first.hidden, second.hidden) == (5 * MS, 20 * MS)


def test_buckets_that_travel_together_are_not_counted_twice(make_step: MakeStep):
    step = make_step(ready=20, handed=(45, 50, 80), there=(70, 72, 88))
    (alone,) = split([step])
    assert alone.hidden == 27 * MS


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_the_parts_of_a_step_are_the_step(make_step: MakeStep, ranks: int):
    steps = split([make_step(ready=2 * rank, handed=(70 + rank,), there=(86,)) for rank in range(ranks)])
    for done in steps:
        assert sum(done.time(phase) for phase in PHASES) + done.other == done.record.end - done.record.start
        assert all(segment.own >= 0 for segment in done.segments)


def test_lateness_is_against_the_middle_one_of_the_others(make_step: MakeStep):
    steps = split([make_step(ready=ready) for ready in (1, 2, 3, 21)])
    assert [done.late / MS for done in steps] == [0, 0, 1, 19]


def test_a_clock_that_shows_more_is_set_back(make_step: MakeStep):
    step = make_step(ready=4, handed=(50,), there=(75,))
    moved = step.shifted(-7)
    assert (moved.start, moved.end) == (7, step.end + 7)
    assert (moved.spans[1].start, moved.buckets[0].handed) == (4 * MS + 7, 50 * MS + 7)
    assert moved.shifted(7) == step
