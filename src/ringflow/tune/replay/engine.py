"""A study on a simulated cluster: learning curves, a cost model, and the schedulers as they are.

    result = replay(curves, "rasda", devices=256, ladder=Ladder(46_875, 12_000_000), costs=costs)
    result.makespan, result.utilisation, result.best
    results = compare(curves, ["asha", "rasda"], [64, 256, 1024], ladder=ladder, costs=costs)
    speedup(results, "rasda", "asha", 256).equal_quality

What is assumed:

- Trials that go on come first, then new ones; each waits until it has all its devices, and nobody overtakes. A trial that is to
  have more devices gives its own back and waits, as in the published RASDA, which asks its cluster for the new size without
  regard to what is free (`growth="wait"`). With "take" it goes on at once with what is free, up to what it was to have.
- Every start costs `costs.upkeep.restart_seconds`, whether it is the first, after a pause or on other devices; `reload_seconds` come
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from statistics import fmean
from typing import Literal, NamedTuple

from ringflow.base.errors import UsageError
from ringflow.launch.scaling import CostModel
from ringflow.tune.replay.curves import LearningCurve
from ringflow.tune.schedulers import Decision, Ladder, Report, Scheduler, make_scheduler

Advance = Callable[[int], None]


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
    failures_per_second: float = 0.0
    #: How often a trial may fail before it is given up.
    retries: int = 2
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
class ReplayResult:
    """What a study costs and finds. Times are in seconds from its start."""

    scheduler: str
    devices: int
    makespan: float = 0.0
    #: Devices times the time that they belonged to a running trial.
    device_seconds: float = 0.0
    #: Times at which a trial reported a better value than all before, and that value.
    best_over_time: list[tuple[float, float]] = field(default_factory=list)
    segments: list[Allocation] = field(default_factory=list)
    trials: int = 0
    complete: int = 0
    #: Times that a trial was stored and loaded again.
    reloads: int = 0
    failures: int = 0

    @property
    def utilisation(self) -> float:
        """Part of the time of all devices in which they belonged to a running trial."""
        return self.device_seconds / (self.devices * self.makespan) if self.makespan else 0.0

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
    first: int = 0  # its resource when this segment began
    fails: bool = False  # before it gets to `stop`
    failed: int = 0
    loaded: bool = False  # was started before: there is something to load

    def heed(self, decision: Decision) -> None:
        """Go on as the scheduler says."""
        self.until, self.wanted = decision.until, decision.workers


def replay(
    curves: Sequence[LearningCurve],
    scheduler: str,
    *,
    devices: int,
    ladder: Ladder,
    costs: CostModel,
    setting: Setting | None = None,
) -> ReplayResult:
    """Run a trial per curve, in this order, and tell what it took."""
    setting = setting or Setting()
    first = setting.initial_workers
    if not 1 <= first <= devices:
        raise UsageError(f"{first} workers per trial do not fit on {devices} devices; give fewer")
    if not curves:
        raise UsageError("no curves to replay; give at least one")
    made = make_scheduler(scheduler, ladder, trials=len(curves), initial_workers=first, most_workers=devices)
    return _Study(curves, made, costs, setting, ReplayResult(scheduler, devices)).run()


class _Study:
    """The simulation: a clock, devices, and a queue."""

    def __init__(
        self,
        curves: Sequence[LearningCurve],
        scheduler: Scheduler,
        costs: CostModel,
        setting: Setting,
        result: ReplayResult,
    ) -> None:
        self._curves, self._scheduler, self._costs, self._setting = curves, scheduler, costs, setting
        self._result, self._random = result, Random(setting.seed)
        self._trials: list[_Trial] = []
        self._free = result.devices
        self._going_on: deque[_Trial] = deque()
        self._events: list[tuple[float, int]] = []
        self._now = 0.0

    def run(self) -> ReplayResult:
        """To the end."""
        if self._setting.turn:
            self._going_on.extend(self._admit() for _ in self._curves)
        self._fill()
        while self._events:
            self._now, number = heappop(self._events)
            self._arrive(self._trials[number])
            self._fill()
        assert not self._going_on
        self._result.makespan, self._result.trials = self._now, len(self._trials)
        return self._result

    def _fill(self) -> None:
        """Start what fits: first those that go on, then new ones; nobody overtakes."""
        while self._going_on and self._going_on[0].wanted <= self._free:
            self._start(self._going_on.popleft())
        first = self._setting.initial_workers
        while not self._going_on and len(self._trials) < len(self._curves) and first <= self._free:
            self._start(self._admit())

    def _admit(self) -> _Trial:
        """A new trial."""
        number = len(self._trials)
        trial = _Trial(number, self._curves[number])
        self._trials.append(trial)
        trial.heed(self._scheduler.add(number))
        if len(self._trials) == len(self._curves):
            self._scheduler.close()
        return trial

    def _start(self, trial: _Trial) -> None:
        """A trial gets its devices."""
        trial.workers, trial.since, trial.first = trial.wanted, self._now, trial.resource
        self._free -= trial.workers
        cost = self._costs.upkeep.restart_seconds + self._setting.reload_seconds * trial.loaded
        self._result.reloads += trial.loaded
        trial.loaded = True
        self._go(trial, cost)

    def _go(self, trial: _Trial, delay: float) -> None:
        """On to the next rung, or to the end of its turn, on the devices that it has."""
        setting = self._setting
        trial.stop = min(trial.until, trial.resource + setting.turn) if setting.turn else trial.until
        speed = self._costs.throughput(trial.workers) * (self._worth(trial) if setting.lengthen else 1.0)
        seconds = delay + (trial.stop - trial.resource) / speed
        if setting.failures_per_second:
            alive = self._random.expovariate(setting.failures_per_second * trial.workers)
            trial.fails = alive < seconds
            seconds = min(seconds, alive)
        heappush(self._events, (self._now + seconds, trial.number))

    def _worth(self, trial: _Trial) -> float:
        """Of an event, as larger batches learn less from it."""
        return float((self._setting.initial_workers / trial.workers) ** self._setting.penalty)

    def _arrive(self, trial: _Trial) -> None:
        """A trial came to the resource it was to go on to, or to the end of its turn, or failed on its way."""
        if trial.fails:
            self._fail(trial)
        else:
            trial.learned += (1.0 if self._setting.lengthen else self._worth(trial)) * (trial.stop - trial.resource)
            trial.resource = trial.stop
            if trial.resource < trial.until:  # it had its turn
                if self._going_on:
                    self._put_back(trial)
                else:
                    self._go(trial, 0.0)
                return
            self._report(trial)
        for number, decision in self._scheduler.promoted():
            if decision.verdict != "stop":
                self._trials[number].heed(decision)
                self._going_on.append(self._trials[number])

    def _report(self, trial: _Trial) -> None:
        value, result = trial.curve.value(trial.learned), self._result
        result.complete += trial.resource == self._scheduler.most
        if value < result.best:
            result.best_over_time.append((self._now, value))
        restart = (self._costs.upkeep.restart_seconds + self._setting.reload_seconds) * self._costs.throughput(1)
        decision = self._scheduler.report(Report(trial.number, trial.resource, value, restart=restart))
        if decision.verdict in ("stop", "pause"):
            self._release(trial)
            return
        trial.heed(decision)
        if self._setting.growth == "take":
            trial.wanted = min(trial.wanted, trial.workers + self._free)
        if trial.wanted == trial.workers:
            self._go(trial, 0.0)
        else:
            self._put_back(trial)

    def _fail(self, trial: _Trial) -> None:
        trial.fails, trial.failed = False, trial.failed + 1
        self._result.failures += 1
        if trial.failed > self._setting.retries:
            self._release(trial)
            self._scheduler.gone(trial.number)
        else:
            self._put_back(trial)

    def _put_back(self, trial: _Trial) -> None:
        """It waits for devices again."""
        self._release(trial)
        self._going_on.append(trial)

    def _release(self, trial: _Trial) -> None:
        """Its devices are free."""
        self._free += trial.workers
        self._result.device_seconds += trial.workers * (self._now - trial.since)
        self._result.segments.append(
            Allocation(trial.number, trial.since, self._now, trial.workers, trial.first, trial.resource)
        )


#: Replays by scheduler and number of devices, one for each order of the trials.
Results = Mapping[tuple[str, int], Sequence[ReplayResult]]


def compare(
    curves: Sequence[LearningCurve],
    schedulers: Sequence[str],
    devices: Sequence[int],
    *,
    ladder: Ladder,
    costs: CostModel,
    setting: Setting | None = None,
    trials: int | None = None,
    orders: int = 5,
    advance: Advance = lambda replays: None,
) -> Results:
    """Replay a study with every scheduler on every cluster.

    A training of the study is one of the curves, chosen at random. The same trainings in the same order are given to all
    schedulers, and all is repeated for several orders. Without `trials` a study has as many as can begin at once, as in the
    publication of RASDA; so it grows with the cluster. `advance` is called after every replay.
    """
    setting = setting or Setting()
    if not curves:
        raise UsageError("no curves to replay; give at least one")
    results: dict[tuple[str, int], list[ReplayResult]] = {}
    for number in devices:
        count = trials or max(number // setting.initial_workers, 1)
        for order in range(orders):
            chosen = Random(setting.seed + order).choices(curves, k=count)
            for name in schedulers:
                result = replay(chosen, name, devices=number, ladder=ladder, costs=costs, setting=setting)
                results.setdefault((name, number), []).append(result)
                advance(1)
    return results


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
    for result, other in zip(ours, others, strict=True):
        target = max(result.best, other.best)
        makespan.append(math.log(other.makespan / result.makespan))
        quality.append(math.log(other.seconds_to(target) / result.seconds_to(target)))
    bests = (fmean(result.best for result in found) for found in (ours, others))
    return Speedup(math.exp(fmean(makespan)), math.exp(fmean(quality)), *bests)
