"""What every scheduler promises, whatever it decides. A new scheduler inherits `SchedulerContract`.

A study is played: trials are added, report, and are lost, in an order that Hypothesis chooses, until nothing runs any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
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


#: The same test serves several classes, which Hypothesis takes for a mistake.
MANY = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
LADDERS = st.builds(Ladder, st.integers(1, 5), st.integers(5, 100), st.integers(2, 4))


class SchedulerContract:
    """Inherit it and name the scheduler."""

    name: ClassVar[str]

    @classmethod
    def make(cls, ladder: Ladder, trials: int) -> Scheduler:
        return make_scheduler(cls.name, ladder, trials=trials, initial_workers=2, most_workers=64)

    @classmethod
    def may_pass(cls, passed: Pass, eta: int) -> bool:
        """One in `eta` of those that are at a rung, and at least one."""
        return passed.better < max(passed.came // eta, 1)

    @given(ladder=LADDERS, table=tables(), actions=actions_of())
    @MANY
    def test_every_trial_gets_its_end(self, ladder: Ladder, table: Table, actions: Actions) -> None:
        study = play(self.make(ladder, len(table)), table, actions)
        assert not study.until
        assert not study.paused
        assert study.over == set(study.resource)

    @given(ladder=LADDERS, table=tables(), actions=actions_of())
    @MANY
    def test_the_same_told_again_gives_the_same_decisions(self, ladder: Ladder, table: Table, actions: Actions) -> None:
        first, second = (play(self.make(ladder, len(table)), table, actions).told for _ in range(2))
        assert first == second

    @given(ladder=LADDERS, table=tables(), actions=actions_of())
    @MANY
    def test_few_pass_a_rung_and_none_without_a_value(self, ladder: Ladder, table: Table, actions: Actions) -> None:
        reports_only = [(action, number) for action, number in actions if action != "lose"]
        study = play(self.make(ladder, len(table)), table, reports_only)
        assert all(math.isfinite(passed.value) for passed in study.passed)
        assert all(self.may_pass(passed, ladder.eta) for passed in study.passed)

    @given(ladder=LADDERS, table=tables())
    @MANY
    def test_a_finite_value_comes_to_the_end(self, ladder: Ladder, table: Table) -> None:
        table = [[row[0]] * REPORTS for row in [*table, [0.5]]]
        study = play(self.make(ladder, len(table)), table, [("add", 0)] * len(table))
        assert any(math.isfinite(value) for value in study.came[ladder.most].values())

    @given(ladder=LADDERS, table=tables(), actions=actions_of())
    @MANY
    def test_a_report_that_comes_twice_changes_nothing(self, ladder: Ladder, table: Table, actions: Actions) -> None:
        once, stuttering = self.make(ladder, len(table)), self.make(ladder, len(table))
        say = stuttering.report

        def twice(report: Report) -> Decision:
            decision = say(report)
            again = say(report)
            assert (again.verdict in ("continue", "resize")) == (decision.verdict in ("continue", "resize"))
            assert (again.until, again.workers) == (decision.until, decision.workers)
            return decision

        stuttering.report = twice  # type: ignore[method-assign]
        assert play(once, table, actions).told == play(stuttering, table, actions).told

    def test_a_report_on_the_way_changes_nothing(self) -> None:
        scheduler = self.make(Ladder(10, 200, 4), 4)
        first = scheduler.add(0)
        early = scheduler.report(Report(0, first.until - 1, math.nan))
        assert (early.verdict, early.until, early.workers) == ("continue", first.until, first.workers)


class TestNone(SchedulerContract):
    name = "none"


class TestHalving(SchedulerContract):
    name = "halving"


class TestHyperband(SchedulerContract):
    name = "hyperband"

    @classmethod
    def may_pass(cls, passed: Pass, eta: int) -> bool:
        """Trials of several brackets meet at a resource; that each halves by itself is seen from its table."""
        return passed.better < passed.came


class TestAsha(SchedulerContract):
    name = "asha"


class TestAshaPromote(SchedulerContract):
    name = "asha-promote"

    @classmethod
    def may_pass(cls, passed: Pass, eta: int) -> bool:
        """Never fewer than `eta` before one goes on, but in the end somebody must come to the top."""
        return passed.closed or passed.better < passed.came // eta


class TestRasda(SchedulerContract):
    name = "rasda"


class TestRasdaIdle(SchedulerContract):
    name = "rasda-idle"

    @classmethod
    def may_pass(cls, passed: Pass, eta: int) -> bool:
        """At halts between rungs nobody is compared; that rungs are those of ASHA is seen from its table."""
        return passed.better < passed.came


def test_every_scheduler_keeps_the_contract() -> None:
    kinds = (TestNone, TestHalving, TestHyperband, TestAsha, TestAshaPromote, TestRasda, TestRasdaIdle)
    assert {kind.name for kind in kinds} == set(SCHEDULERS)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_ties_are_for_the_first_to_come(name: str) -> None:
    scheduler = make_scheduler(name, Ladder(10, 40, 4), trials=8)
    study = play(scheduler, [[1.0] * 8] * 8, [("add", 0)] * 8)
    assert 0 in study.came[40]
