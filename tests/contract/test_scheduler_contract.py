"""What every scheduler promises, whatever it decides.

A study is played: trials are added, report, and are lost, in an order that Hypothesis chooses, until nothing runs any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringflow.tune.schedulers import SCHEDULERS, Decision, Ladder, Report, Scheduler, make_scheduler

#: Few different values, so that ties are frequent, and what is no value at all.
VALUES = (0.0, 1.0, 1.0, 2.0, 3.0, -1e300, math.nan, math.inf, -math.inf)
#: Mostly reports, seldom a loss.
ACTIONS = ("add", "report", "report", "report", "lose")

#: A trial reports at most so often, at rungs and at halts between them.
REPORTS = 12

Table = list[list[float]]
Actions = list[tuple[str, int]]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Values of some trials at their rungs."""
    random, trials = Random(draw(st.integers(0, 10**6))), draw(st.integers(1, 40))
    return [[random.choice([random.random(), random.choice(VALUES)]) for _ in range(REPORTS)] for _ in range(trials)]


@st.composite
def actions_of(draw: st.DrawFn) -> Actions:
    """What happens one after the other, and to which of the running trials."""
    random, count = Random(draw(st.integers(0, 10**6))), draw(st.integers(0, 120))
    return [(random.choice(ACTIONS), random.randrange(100)) for _ in range(count)]


class Pass(NamedTuple):
    """A trial went on from a rung, when so many had come there and so many were better."""

    value: float
    better: int
    came: int
    #: Whether no trials were to come any more.
    closed: bool


@dataclass
class Play:
    """A study of trials whose values are known beforehand; checks what holds at every moment."""

    scheduler: Scheduler
    values: Sequence[Sequence[float]]
    until: dict[int, int] = field(default_factory=dict)  # of the trials that run
    paused: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)
    resource: dict[int, int] = field(default_factory=dict)
    told: list[tuple[object, ...]] = field(default_factory=list)
    #: By resource: values of those that came there.
    came: dict[int, dict[int, float]] = field(default_factory=dict)
    passed: list[Pass] = field(default_factory=list)
    closed: bool = False

    def add(self) -> None:
        trial = len(self.resource)
        if trial < len(self.values):
            self.resource[trial] = 0
            self._obey(trial, self.scheduler.add(trial), "continue")

    def report(self, trial: int) -> None:
        reached = self.until.pop(trial)
        value = self.values[trial][len([rung for rung in self.came.values() if trial in rung])]
        self.resource[trial] = reached
        self.came.setdefault(reached, {})[trial] = value
        self._obey(trial, self.scheduler.report(Report(trial, reached, value)), "continue", "stop", "pause", "resize")
        self._ask_for_promotions()

    def lose(self, trial: int) -> None:
        del self.until[trial]
        self.over.add(trial)
        self.scheduler.gone(trial)
        self._ask_for_promotions()

    def act(self, action: str, number: int) -> None:
        if action == "add" or not self.until:
            self.add()
        else:
            trial = sorted(self.until)[number % len(self.until)]
            self.report(trial) if action == "report" else self.lose(trial)

    def finish(self) -> None:
        """No new trials; all that run come to their ends."""
        self.closed = True
        self.scheduler.close()
        self._ask_for_promotions()
        while self.until:
            self.report(min(self.until))

    def _ask_for_promotions(self) -> None:
        for trial, decision in self.scheduler.promoted():
            assert trial in self.paused, "only paused trials are decided about, and only once"
            self.paused.remove(trial)
            self._obey(trial, decision, "continue", "resize", "stop")

    def _obey(self, trial: int, decision: Decision, *allowed: str) -> None:
        self.told.append((trial, self.resource[trial], decision))
        assert trial not in self.over, "who was told to stop never goes on"
        assert decision.verdict in allowed
        if decision.verdict == "stop":
            self.over.add(trial)
        elif decision.verdict == "pause":
            self.paused.add(trial)
        else:
            assert self.resource[trial] < decision.until <= self.scheduler.most
            assert decision.workers >= 1
            self.until[trial] = decision.until
            if self.resource[trial]:
                came = self.came[self.resource[trial]]
                better = sum(math.isfinite(other) and other < came[trial] for other in came.values())
                self.passed.append(Pass(came[trial], better, len(came), self.closed))


def play(scheduler: Scheduler, values: Sequence[Sequence[float]], actions: Sequence[tuple[str, int]]) -> Play:
    study = Play(scheduler, values)
    for action, number in actions:
        study.act(action, number)
    study.finish()
    return study


MANY = settings(max_examples=50, deadline=None)
LADDERS = st.builds(Ladder, st.integers(1, 5), st.integers(5, 100), st.integers(2, 4))


EVERY = pytest.mark.parametrize("name", SCHEDULERS)


def make(name: str, ladder: Ladder, trials: int) -> Scheduler:
    return make_scheduler(name, ladder, trials=trials, initial_workers=2, most_workers=64)


def may_pass(name: str, passed: Pass, eta: int) -> bool:
    """One in `eta` of those that are at a rung, and at least one."""
    match name:
        case (
            "hyperband" | "rasda-idle"
        ):  # brackets meet at a resource, nobody is compared between rungs: see their tables
            return passed.better < passed.came
        case "asha-promote":  # never fewer than `eta` before one goes on, but in the end somebody must come to the top
            return passed.closed or passed.better < passed.came // eta
    return passed.better < max(passed.came // eta, 1)


@EVERY
@given(ladder=LADDERS, table=tables(), actions=actions_of())
@MANY
def test_every_trial_gets_its_end_and_the_same_told_again_the_same(
    name: str, ladder: Ladder, table: Table, actions: Actions
) -> None:
    study, again = (play(make(name, ladder, len(table)), table, actions) for _ in range(2))
    assert not study.until
    assert not study.paused
    assert study.over == set(study.resource)
    assert study.told == again.told


@EVERY
@given(ladder=LADDERS, table=tables(), actions=actions_of())
@MANY
def test_few_pass_a_rung_and_none_without_a_value(name: str, ladder: Ladder, table: Table, actions: Actions) -> None:
    reports_only = [(action, number) for action, number in actions if action != "lose"]
    study = play(make(name, ladder, len(table)), table, reports_only)
    assert all(math.isfinite(passed.value) for passed in study.passed)
    assert all(may_pass(name, passed, ladder.eta) for passed in study.passed)


@EVERY
@given(ladder=LADDERS, table=tables())
@MANY
def test_a_finite_value_comes_to_the_end(name: str, ladder: Ladder, table: Table) -> None:
    table = [[row[0]] * REPORTS for row in [*table, [0.5]]]
    study = play(make(name, ladder, len(table)), table, [("add", 0)] * len(table))
    assert any(math.isfinite(value) for value in study.came[ladder.most].values())


@EVERY
@given(ladder=LADDERS, table=tables(), actions=actions_of())
@MANY
def test_a_report_that_comes_twice_changes_nothing(name: str, ladder: Ladder, table: Table, actions: Actions) -> None:
    once, stuttering = make(name, ladder, len(table)), make(name, ladder, len(table))
    say = stuttering.report

    def twice(report: Report) -> Decision:
        decision = say(report)
        again = say(report)
        assert (again.verdict in ("continue", "resize")) == (decision.verdict in ("continue", "resize"))
        assert (again.until, again.workers) == (decision.until, decision.workers)
        return decision

    stuttering.report = twice  # type: ignore[method-assign]
    assert play(once, table, actions).told == play(stuttering, table, actions).told


@EVERY
def test_a_report_on_the_way_changes_nothing(name: str) -> None:
    scheduler = make(name, Ladder(10, 200, 4), 4)
    first = scheduler.add(0)
    early = scheduler.report(Report(0, first.until - 1, math.nan))
    assert (early.verdict, early.until, early.workers) == ("continue", first.until, first.workers)


@EVERY
def test_ties_are_for_the_first_to_come(name: str) -> None:
    scheduler = make_scheduler(name, Ladder(10, 40, 4), trials=8)
    study = play(scheduler, [[1.0] * 8] * 8, [("add", 0)] * 8)
    assert 0 in study.came[40]
