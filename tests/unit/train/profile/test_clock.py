"""A clock writes down what a process does, step after step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from ringflow.train.profile.clock import STEPS_HELD, Clock
from ringflow.train.profile.records import Circumstances, RankLog
from ringflow.train.profile.watches import Watch
from ringflow.train.team import ALONE

CPU = torch.device("cpu")


class HandWatch(Watch):
    """A clock that somebody sets."""

    def __init__(self) -> None:
        self.time = 0

    def now(self) -> int:
        return self.time


class Log:
    """What was handed in."""

    def __init__(self) -> None:
        self.said: list[tuple[Circumstances, Sequence[RankLog]]] = []

    def __call__(self, circumstances: Circumstances, logs: Sequence[RankLog]) -> None:
        self.said.append((circumstances, logs))


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> HandWatch:
    made = HandWatch()
    monkeypatch.setattr("ringflow.train.profile.clock.watch_for", lambda device: made)
    return made


def test_a_phase_does_not_have_the_time_of_those_within(watch: HandWatch):
    log = Log()
    clock = Clock(ALONE, CPU, "replicate", log)
    watch.time = 100
    with clock("data"):
        watch.time = 110
    watch.time = 115
    with clock("forward"):
        watch.time = 120
        with clock("communication"):
            watch.time = 128
        watch.time = 130
    clock.end_step(1, 7)
    clock.hand_in()
    ((circumstances, (rank_log,)),) = log.said
    (step,) = rank_log.steps
    assert (step.step, step.events, step.start, step.end) == (1, 7, 100, 130)
    assert step.spans == (("data", 100, 110, 10), ("communication", 120, 128, 8), ("forward", 115, 130, 7))
    assert (step.sent, step.received) == (None, None)
    assert circumstances == (1, "replicate", "cpu", None, "a process alone sends nothing")


def test_what_is_done_between_steps_is_in_none(watch: HandWatch):
    log = Log()
    clock = Clock(ALONE, CPU, "replicate", log)
    for start in (0, 1000):
        watch.time = start
        with clock("idle"):  # a validation
            watch.time = start + 500
        with clock("data"):
            watch.time = start + 510
        clock.end_step(1 + start // 1000, 1)
    clock.hand_in()
    steps = log.said[0][1][0].steps
    assert [(step.start, step.end, len(step.spans)) for step in steps] == [(500, 510, 1), (1500, 1510, 1)]


def test_steps_are_handed_in_now_and_then(watch: HandWatch):
    log = Log()
    clock = Clock(ALONE, CPU, "replicate", log)
    for step in range(2 * STEPS_HELD + 3):
        with clock("data"):
            watch.time += 1
        clock.end_step(step, 1)
    assert [len(logs[0].steps) for _, logs in log.said] == [STEPS_HELD, STEPS_HELD]
    clock.hand_in()
    assert [len(logs[0].steps) for _, logs in log.said] == [STEPS_HELD, STEPS_HELD, 3]
    clock.hand_in()
    assert len(log.said) == 3


def test_a_phase_that_fails_is_over(watch: HandWatch):
    clock = Clock(ALONE, CPU, "replicate", Log())
    with pytest.raises(ZeroDivisionError), clock("data"), clock("forward"):
        _ = 1 / 0
    with clock("data"):
        watch.time += 5
    clock.end_step(1, 1)
