"""A study on a simulated cluster: recorded or modelled learning curves, a cost model, and the schedulers as they are.

    result = replay(curves, "rasda", devices=256, ladder=Ladder(46_875, 12_000_000), costs=costs)
    result.makespan, result.utilisation, result.best

What is assumed:

- Trials that go on come first, then new ones; each waits until it has all its devices, and nobody overtakes. A trial that is to
  have more devices gives its own back and waits, as in the published RASDA, which asks its cluster for the new size without
  regard to what is free (`growth="wait"`). With "take" it goes on at once with what is free, up to what it was to have.
- Every start costs `costs.restart_seconds`, whether it is the first, after a pause or on other devices; `reload_seconds` come
  on top if there is something to load. A trial that was put aside gives its devices back and is started again, as by the
  driver of a study, also if it goes on at once.
- The batch of a worker stays as it is, so that the global batch grows with the workers. The value is a function of the events
  shown, however many workers showed them: the rate is rescaled. With `penalty` p an event that W instead of W0 workers show is
  only worth (W0/W)**p events: 0 is no loss by larger batches, 1 that only the number of steps counts. With `lengthen` a trial
  is shown as many more events as it takes to make up for that, so that it ends as well as on W0 workers, later.
- With `turn` all trials begin together, whatever the devices, and take turns of so many events: who had its turn makes room for
  those that wait, and starts again when it is its turn again.
- Deciding takes no time. Failures come at random with `failures_per_second` of a device; a trial goes on from the last rung.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from ringflow.base.errors import UsageError
from ringflow.tune.replay.curves import Curve
from ringflow.tune.replay.result import Costs, ReplayResult, RungRow, Segment, Setting
from ringflow.tune.schedulers import Decision, Ladder, Report, Scheduler, make_scheduler

__all__ = ["Costs", "ReplayResult", "RungRow", "Segment", "Setting", "replay"]


@dataclass
class _Trial:
    """A trial in the simulation."""

    curve: Curve
    resource: int = 0
    #: Events on the learning curve; fewer than the resource if larger batches are worth less.
    learned: float = 0.0
    until: int = 0
    stop: int = 0  # where it is heard of again: `until`, or the end of its turn
    workers: int = 0  # that it has
    wanted: int = 1
    since: float = 0.0
    first: int = 0  # its resource when this segment began
    fails: bool = False  # before it gets to `stop`
    failed: int = 0
    loaded: bool = False  # was started before: there is something to load


def replay(
    curves: Sequence[Curve],
    scheduler: str,
    *,
    devices: int,
    ladder: Ladder,
    costs: Costs,
    setting: Setting | None = None,
) -> ReplayResult:
    """Run a trial per curve, in this order, and tell what it took."""
    setting = setting or Setting()
    if not 1 <= setting.initial_workers <= devices:
        raise UsageError(f"{setting.initial_workers} workers per trial do not fit on {devices} devices; give fewer")
    if not curves:
        raise UsageError("no curves to replay; give at least one")
    made = make_scheduler(
        scheduler,
        ladder,
        trials=len(curves),
        initial_workers=setting.initial_workers,
        most_workers=devices,
    )
    return _Study(curves, made, devices, costs, setting, ReplayResult(scheduler, devices)).run()


class _Study:
    """The simulation: a clock, devices, and a queue."""

    def __init__(
        self,
        curves: Sequence[Curve],
        scheduler: Scheduler,
        devices: int,
        costs: Costs,
        setting: Setting,
        result: ReplayResult,
    ) -> None:
        self._curves, self._scheduler, self._costs, self._setting = curves, scheduler, costs, setting
        self._result, self._random = result, Random(setting.seed)
        self._trials: list[_Trial] = []
        self._free = devices
        self._going_on: deque[int] = deque()
        self._events: list[tuple[float, int]] = []
        self._now = 0.0
        self._values: dict[int, list[float]] = {}
        self._passed: dict[int, int] = {}

    def run(self) -> ReplayResult:
        """To the end."""
        if self._setting.turn:
            self._going_on.extend(self._admit() for _ in self._curves)
        self._fill()
        while self._events:
            self._now, number = heappop(self._events)
            self._arrive(number)
            self._fill()
        assert not self._going_on
        result = self._result
        result.makespan = self._now
        result.trials = len(self._trials)
        result.complete = len(self._values.get(self._scheduler.most, ()))
        result.rungs = [
            RungRow(
                resource,
                len(values),
                self._passed.get(resource, 0),
                min(filter(math.isfinite, values), default=math.inf),
            )
            for resource, values in sorted(self._values.items())
        ]
        return result

    def _fill(self) -> None:
        """Start what fits: first those that go on, then new ones; nobody overtakes."""
        while self._going_on and self._trials[self._going_on[0]].wanted <= self._free:
            self._start(self._going_on.popleft())
        while (
            not self._going_on and len(self._trials) < len(self._curves) and self._setting.initial_workers <= self._free
        ):
            self._start(self._admit())

    def _admit(self) -> int:
        """A new trial: its number."""
        number = len(self._trials)
        self._trials.append(_Trial(self._curves[number]))
        self._want(number, self._scheduler.add(number))
        if len(self._trials) == len(self._curves):
            self._scheduler.close()
        return number

    def _want(self, number: int, decision: Decision) -> None:
        trial = self._trials[number]
        trial.until, trial.wanted = decision.until, decision.workers

    def _start(self, number: int) -> None:
        """A trial gets its devices."""
        trial, setting = self._trials[number], self._setting
        trial.workers = trial.wanted
        self._free -= trial.workers
        trial.since, trial.first = self._now, trial.resource
        cost = self._costs.restart_seconds + setting.reload_seconds * trial.loaded
        self._result.reloads += trial.loaded
        trial.loaded = True
        self._go(number, cost)

    def _go(self, number: int, delay: float) -> None:
        """On to the next rung, or to the end of its turn, on the devices that it has."""
        trial, setting = self._trials[number], self._setting
        trial.stop = min(trial.until, trial.resource + setting.turn) if setting.turn else trial.until
        speed = self._costs.throughput(trial.workers) * (self._worth(trial) if setting.lengthen else 1.0)
        seconds = delay + (trial.stop - trial.resource) / speed
        rate = setting.failures_per_second
        if rate:
            alive = self._random.expovariate(rate * trial.workers)
            trial.fails = alive < seconds
            seconds = min(seconds, alive)
        heappush(self._events, (self._now + seconds, number))

    def _arrive(self, number: int) -> None:
        """A trial came to the resource it was to go on to, or to the end of its turn, or failed on its way."""
        trial = self._trials[number]
        if trial.fails:
            self._fail(number)
            self._decide_about_others()
            return
        trial.learned += (1.0 if self._setting.lengthen else self._worth(trial)) * (trial.stop - trial.resource)
        trial.resource = trial.stop
        if trial.resource < trial.until:
            self._make_room(number)
            return
        self._report(number)
        self._decide_about_others()

    def _worth(self, trial: _Trial) -> float:
        """Of an event, as larger batches learn less from it."""
        return float((self._setting.initial_workers / trial.workers) ** self._setting.penalty)

    def _make_room(self, number: int) -> None:
        """A trial had its turn."""
        if self._going_on:
            self._release(number)
            self._going_on.append(number)
        else:
            self._go(number, 0.0)

    def _decide_about_others(self) -> None:
        for other, decision in self._scheduler.promoted():
            if decision.verdict != "stop":
                self._count_pass(self._trials[other].resource)
                self._want(other, decision)
                self._going_on.append(other)

    def _report(self, number: int) -> None:
        trial = self._trials[number]
        value = trial.curve.value(trial.learned)
        self._values.setdefault(trial.resource, []).append(value)
        if value < self._result.best:
            self._result.best_over_time.append((self._now, value))
        restart = (self._costs.restart_seconds + self._setting.reload_seconds) * self._costs.throughput(1)
        decision = self._scheduler.report(Report(number, trial.resource, value, restart=restart))
        if decision.verdict in ("stop", "pause"):
            self._release(number)
            return
        self._count_pass(trial.resource)
        self._want(number, decision)
        if self._setting.growth == "take":
            trial.wanted = min(trial.wanted, trial.workers + self._free)
        if trial.wanted == trial.workers:
            self._go(number, 0.0)
        else:
            self._release(number)
            self._going_on.append(number)

    def _fail(self, number: int) -> None:
        trial = self._trials[number]
        trial.fails, trial.failed = False, trial.failed + 1
        self._result.failures += 1
        self._release(number)
        if trial.failed > self._setting.retries:
            self._scheduler.gone(number)
        else:
            self._going_on.append(number)

    def _release(self, number: int) -> None:
        """Its devices are free."""
        trial = self._trials[number]
        self._free += trial.workers
        self._result.device_seconds += trial.workers * (self._now - trial.since)
        self._result.segments.append(
            Segment(number, trial.since, self._now, trial.workers, trial.first, trial.resource)
        )

    def _count_pass(self, resource: int) -> None:
        self._passed[resource] = self._passed.get(resource, 0) + 1
