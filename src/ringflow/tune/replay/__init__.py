"""A study on a simulated cluster: learning curves, a cost model, and the schedulers as they are.

    done = Replay(curves, "rasda", devices=256, ladder=Ladder(46_875, 12_000_000), costs=costs)
    done.makespan, done.utilisation, done.best

What is assumed:

- Trials that go on come first, then new ones; each waits until it has all its devices, and nobody overtakes. A trial that is to
  have more devices gives its own back and waits, as in the published RASDA, which asks its cluster for the new size without
  regard to what is free (`growth="wait"`). With "take" it goes on at once with what is free, up to what it was to have.
- Every start costs `upkeep.restart_seconds`, whether it is the first, after a pause or on other devices; `reload_seconds` come
  on top if there is something to load. A trial that was put aside gives its devices back and is started again, as by the
  driver of a study, also if it goes on at once.
- The batch of a worker stays as it is, so that the global batch grows with the workers. The value is a function of the events
  shown, however many workers showed them: the rate is rescaled. With `penalty` p an event that W instead of W0 workers show is
  only worth (W0/W)**p events: 0 is no loss by larger batches, 1 that only the number of steps counts. With `lengthen` a trial
  is shown as many more events as it takes to make up for that, so that it ends as well as on W0 workers, later.
- With `turn` all trials begin together, whatever the devices, and take turns of so many events: who had its turn makes room for
  those that wait, and starts again when it is its turn again.
- Deciding takes no time, and nothing fails.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from statistics import fmean
from typing import Literal, NamedTuple

from ringflow.base.errors import UsageError
from ringflow.launch.scaling import CostModel
from ringflow.tune.replay.curves import LearningCurve
from ringflow.tune.schedulers import Decision, Ladder, Report, make_scheduler


@dataclass(frozen=True)
class Setting:
    """What a replay assumes beside curves and costs."""

    initial_workers: int = 1
    growth: Literal["wait", "take"] = "wait"
    #: To store a network and to load it again, beside the restart.
    reload_seconds: float = 0.0
    #: How much less larger batches learn from an event, and whether trials are shown more events to make up for it.
    penalty: float = 0.0
    lengthen: bool = False
    #: Events after which a trial makes room for others; 0: none does.
    turn: int = 0
    #: Of the orders in which trials come.
    seed: int = 0


class Allocation(NamedTuple):
    """A trial on some devices, from a start to its end, with all rungs that it passed on them."""

    trial: int
    start: float
    end: float
    workers: int
    #: Events shown before and after.
    first: int
    last: int


@dataclass
class _Trial:
    """A trial in the simulation."""

    number: int
    curve: LearningCurve
    resource: int = 0
    #: Events on the learning curve; fewer than the resource if larger batches are worth less.
    learned: float = 0.0
    until: int = 0
    stop: int = 0  # where it is heard of again: `until`, or the end of its turn
    workers: int = 0  # that it has
    wanted: int = 1
    since: float = 0.0
    first: int = 0  # its resource when it got its devices
    loaded: bool = False  # was started before: there is something to load

    def heed(self, decision: Decision) -> None:
        """Go on as the scheduler says."""
        self.until, self.wanted = decision.until, decision.workers


class Replay:
    """A study of a trial per curve, in this order: a clock, devices and a queue; then what it cost and found, in seconds."""

    def __init__(
        self,
        curves: Sequence[LearningCurve],
        scheduler: str,
        *,
        devices: int,
        ladder: Ladder,
        costs: CostModel,
        setting: Setting = Setting(),  # noqa: B008 (frozen)
    ) -> None:
        first = setting.initial_workers
        if not 1 <= first <= devices:
            raise UsageError(f"{first} workers per trial do not fit on {devices} devices; give fewer")
        if not curves:
            raise UsageError("no curves to replay; give at least one")
        self.devices, self.trials, self.makespan = devices, len(curves), 0.0
        #: Devices times the time that they belonged to a running trial.
        self.device_seconds = 0.0
        #: Times at which a trial reported a better value than all before, and that value.
        self.best_over_time: list[tuple[float, float]] = []
        self.segments: list[Allocation] = []
        self.complete = 0
        #: Times that a trial was stored and loaded again.
        self.reloads = 0
        self._curves, self._costs, self._setting = curves, costs, setting
        self._scheduler = make_scheduler(
            scheduler, ladder, trials=len(curves), initial_workers=first, most_workers=devices
        )
        self._begun: list[_Trial] = []
        self._free, self._now = devices, 0.0
        self._queue: deque[_Trial] = deque()
        self._events: list[tuple[float, int]] = []
        if setting.turn:
            self._queue.extend(self._admit() for _ in curves)
        self._fill()
        while self._events:
            self._now, number = heappop(self._events)
            self._arrive(self._begun[number])
            self._fill()
        assert not self._queue
        self.makespan = self._now

    @property
    def utilisation(self) -> float:
        """Part of the time of all devices in which they belonged to a running trial."""
        return self.device_seconds / (self.devices * self.makespan)

    @property
    def device_hours(self) -> float:
        """That running trials had."""
        return self.device_seconds / 3600.0

    @property
    def best(self) -> float:
        """The best value that a trial reported, at whatever rung."""
        return self.best_over_time[-1][1] if self.best_over_time else math.inf

    def seconds_to(self, value: float) -> float:
        """When a trial reported this value or a better one; infinite if never."""
        return next((time for time, best in self.best_over_time if best <= value), math.inf)

    def _fill(self) -> None:
        """Start what fits: first those that go on, then new ones; nobody overtakes."""
        while self._queue and self._queue[0].wanted <= self._free:
            self._start(self._queue.popleft())
        while not self._queue and len(self._begun) < self.trials and self._setting.initial_workers <= self._free:
            self._start(self._admit())

    def _admit(self) -> _Trial:
        """A new trial."""
        trial = _Trial(len(self._begun), self._curves[len(self._begun)])
        self._begun.append(trial)
        trial.heed(self._scheduler.add(trial.number))
        if len(self._begun) == self.trials:
            self._scheduler.close()
        return trial

    def _start(self, trial: _Trial) -> None:
        """A trial gets its devices."""
        trial.workers, trial.since, trial.first = trial.wanted, self._now, trial.resource
        self._free -= trial.workers
        cost = self._costs.upkeep.restart_seconds + self._setting.reload_seconds * trial.loaded
        self.reloads += trial.loaded
        trial.loaded = True
        self._go(trial, cost)

    def _go(self, trial: _Trial, delay: float) -> None:
        """On to the next rung, or to the end of its turn, on the devices that it has."""
        setting = self._setting
        trial.stop = min(trial.until, trial.resource + setting.turn) if setting.turn else trial.until
        speed = self._costs.throughput(trial.workers) * (self._worth(trial) if setting.lengthen else 1.0)
        heappush(self._events, (self._now + (delay + (trial.stop - trial.resource) / speed), trial.number))

    def _worth(self, trial: _Trial) -> float:
        """Of an event, as larger batches learn less from it."""
        return float((self._setting.initial_workers / trial.workers) ** self._setting.penalty)

    def _arrive(self, trial: _Trial) -> None:
        """A trial came to the resource it was to go on to, or to the end of its turn."""
        trial.learned += (1.0 if self._setting.lengthen else self._worth(trial)) * (trial.stop - trial.resource)
        trial.resource = trial.stop
        if trial.resource < trial.until:  # it had its turn
            self._go_on(trial, waits=bool(self._queue))
            return
        self._report(trial)
        for number, decision in self._scheduler.promoted():
            if decision.verdict != "stop":
                self._begun[number].heed(decision)
                self._queue.append(self._begun[number])

    def _report(self, trial: _Trial) -> None:
        value, costs = trial.curve.value(trial.learned), self._costs
        self.complete += trial.resource == self._scheduler.most
        if value < self.best:
            self.best_over_time.append((self._now, value))
        restart = (costs.upkeep.restart_seconds + self._setting.reload_seconds) * costs.throughput(1)
        decision = self._scheduler.report(Report(trial.number, trial.resource, value, restart=restart))
        if decision.verdict in ("stop", "pause"):
            self._release(trial)
            return
        trial.heed(decision)
        if self._setting.growth == "take":
            trial.wanted = min(trial.wanted, trial.workers + self._free)
        self._go_on(trial, waits=trial.wanted != trial.workers)

    def _go_on(self, trial: _Trial, *, waits: bool) -> None:
        """With the devices that it has, or when it gets new ones."""
        if waits:
            self._release(trial)
            self._queue.append(trial)
        else:
            self._go(trial, 0.0)

    def _release(self, trial: _Trial) -> None:
        """Its devices are free."""
        self._free += trial.workers
        self.device_seconds += trial.workers * (self._now - trial.since)
        self.segments.append(
            Allocation(trial.number, trial.since, self._now, trial.workers, trial.first, trial.resource)
        )


#: Replays by scheduler and number of devices, one for each order of the trials.
Results = Mapping[tuple[str, int], Sequence[Replay]]


class Speedup(NamedTuple):
    """Of one scheduler over another: means over all orders of trials, of ratios geometric ones."""

    #: Of the time that the whole study takes.
    makespan: float
    #: Of the time until a trial reports a value that both of them find: the worse of their two best ones.
    equal_quality: float
    #: The best values that were found; if they differ much, the makespans do not compare the same thing.
    best: float
    other_best: float


def speedup(results: Results, scheduler: str, over: str, devices: int) -> Speedup:
    """Of a scheduler over another on so many devices."""
    ours, others = results[scheduler, devices], results[over, devices]
    makespan, quality = [], []
    for one, other in zip(ours, others, strict=True):
        target = max(one.best, other.best)
        makespan.append(math.log(other.makespan / one.makespan))
        quality.append(math.log(other.seconds_to(target) / one.seconds_to(target)))
    bests = (fmean(one.best for one in found) for found in (ours, others))
    return Speedup(math.exp(fmean(makespan)), math.exp(fmean(quality)), *bests)
