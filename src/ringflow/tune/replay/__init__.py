"""A study on a simulated cluster: learning curves, a cost model, and the schedulers as they are.

    recorded = recorded_curves(Path("studies/first"))              # None: those that come with the package
    many = CurveModel(recorded.curves).draw(10_000, seed=1)        # like them, as many as one wants
    done = Replay(many, "rasda", devices=256, ladder=Ladder(46_875, 12_000_000), costs=costs)
    done.makespan, done.utilisation, done.best
    write_curves(Path("recorded.json"), [Path("studies/a"), Path("studies/b")], what="loss of clic_small, one H200")

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

The model of learning curves is a power law per training, `floor + amplitude * share**-slope` with `share` the part of the whole
training, and a scatter of every validation around it. A drawn curve has the power law of one of the recorded ones, moved in its
value at the end, in how far it falls and in its slope by about as much as recorded curves differ. Scaling a curve keeps the
value by share: it assumes that a longer training of another network falls in the same way, which is all that short recordings
tell.

A trial that was stopped has the beginning of a curve only. It is carried on as the others went on from there: by the median of
their values, each relative to its value at that place. What is written to a file is what was recorded, and nothing else.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.rundir import write_atomic
from ringflow.launch.scaling import CostModel
from ringflow.train.runs import read_history
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import ALIASES
from ringflow.tune.schedulers import ETA, Decision, Ladder, Point, Report, make_scheduler

Array = NDArray[np.float64]

_SHIPPED = Path(__file__).with_name("recorded.json")
#: Hours of a whole trial on one device if nothing says otherwise: our choice, neither the best nor the worst for those that
#: grow; see `sensitivity` for others.
DEFAULT_HOURS = 2.0
#: Shares of the whole training at which modelled curves are drawn: a validation every factor of 1.25 or so.
_SHARES = np.geomspace(1e-3, 1.0, 32)
#: Where a curve has its fall before it.
_EARLY = 1.0 / 16.0
_SLOPES = np.linspace(0.05, 2.0, 40)
#: Places at which a curve is carried on: so many, evenly over the logarithm of the events.
_STEPS = 8
#: Part of the whole length that a curve must have to be a whole one; a training stops at the end of a step.
_WHOLE = 0.99


@dataclass(frozen=True)
class LearningCurve:
    """Values after so many events, in rising order of events; straight between them, level before and after."""

    events: Sequence[float]
    values: Sequence[float]

    def value(self, events: float) -> float:
        """After so many events."""
        after = bisect_left(self.events, events)
        if after == 0 or after == len(self.events):
            return self.values[min(after, len(self.values) - 1)]
        before, share = after - 1, (events - self.events[after - 1]) / (self.events[after] - self.events[after - 1])
        return (1.0 - share) * self.values[before] + share * self.values[after]

    def scaled(self, factor: float) -> LearningCurve:
        """The same values after so many times the events."""
        return LearningCurve([factor * place for place in self.events], self.values)


class Recorded(NamedTuple):
    """Trainings that were done, and how the study that did them went about it."""

    what: str
    #: Over one event in all: lengths of different studies do not compare.
    curves: list[LearningCurve]
    study: Path | None = None
    #: First rung as a part of the whole; None: as `ringflow tune` has it unless told.
    least_share: float | None = None
    eta: int = ETA
    #: Of a whole trial on one process.
    hours: float = DEFAULT_HOURS
    scheduler: str | None = None
    workers_per_trial: int = 1


def recorded_curves(study: Path | None) -> Recorded:
    """Of the first objective of a study, or those that come with the package. An error if no trial reported anything."""
    if study is None:
        return read_recorded(_SHIPPED)
    folder = StudyFolder(study)
    record, settings, ladder = folder.record(), folder.settings, folder.ladder
    most = float(folder.training.length.events)
    curves = [curve for _, curve in _curves_of(folder)]
    if not any(math.isfinite(curve.values[-1]) for curve in curves):
        raise InputFileError(f"no trial of {study} has reported a value; wait for it, or replay another study")
    events = sum(trial.resource for trial in record.trials)
    return Recorded(
        f"{settings.objectives[0]} of {len(curves)} trials of {study}",
        [curve.scaled(1.0 / most) for curve in carried_on(curves, most)],
        study,
        ladder.least / ladder.most,
        ladder.eta,
        (record.device_seconds / events * record.most / 3600.0 if events else 0.0) or DEFAULT_HOURS,
        settings.scheduler,
        settings.workers_per_trial,
    )


def _curves_of(folder: StudyFolder) -> list[tuple[Point, LearningCurve]]:
    """Trials that reported, with their validations where their run has them, or else with what they reported."""
    found = []
    objective = folder.settings.objectives[0]
    for trial in folder.record().trials:
        if not trial.reports:
            continue
        # None if the run was deleted to save space, or the figure is no validation's.
        points = _validations(folder.run(trial.number), ALIASES.get(objective, objective)) or sorted(
            {float(said.resource): said.value for said in trial.reports}.items()
        )
        if math.isnan(trial.reports[-1].value) and points[-1][0] < trial.resource:
            points.append((float(trial.resource), math.nan))
        found.append((trial.point, LearningCurve(*map(list, zip(*points, strict=True)))))
    return found


def _validations(run: Path, figure: str) -> list[tuple[float, float]]:
    """Events and values of a figure of the validations of a run, as far as they can be read."""
    try:
        told = [(float(line["events"]), line.get(figure)) for line in read_history(run) if line["kind"] == "validation"]
    except (ValueError, KeyError, TypeError):
        return []
    return sorted({events: float(value) for events, value in told if value is not None and events > 0}.items())


def read_recorded(path: Path) -> Recorded:
    """A file of `write_curves`."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    groups: dict[float, list[LearningCurve]] = {}
    for trial in kept["trials"]:
        values = [math.nan if value is None else float(value) for value in trial["value"]]
        groups.setdefault(float(trial["most"]), []).append(LearningCurve(trial["events"], values))
    curves = [c.scaled(1.0 / most) for most, found in groups.items() for c in carried_on(found, most)]
    return Recorded(str(kept["what"]), curves)


def write_curves(path: Path, studies: Sequence[Path], *, what: str) -> int:
    """Put the curves of all trials of studies into a file; their number."""
    trials: list[dict[str, Any]] = []
    for study in studies:
        folder = StudyFolder(study)
        most = folder.training.length.events
        for point, curve in _curves_of(folder):
            values = [float(f"{value:.6g}") if math.isfinite(value) else None for value in curve.values]
            events = [round(place) for place in curve.events]
            trials.append({"point": dict(point), "most": most, "events": events, "value": values})
    if not trials:
        raise InputFileError("no trial of these studies has reported a value; give studies that have run")
    lines = ",\n".join(map(json.dumps, trials))
    write_atomic(path, f'{{"what": {json.dumps(what)}, "trials": [\n{lines}\n]}}\n')
    return len(trials)


def carried_on(curves: Sequence[LearningCurve], most: float) -> list[LearningCurve]:
    """The same curves over the whole length; one that is not finite at its end stays as it is."""
    finite = [curve for curve in curves if math.isfinite(curve.values[-1])]
    whole = [curve for curve in finite if curve.events[-1] >= _WHOLE * most]

    def carried(curve: LearningCurve) -> LearningCurve:
        last, value = curve.events[-1], curve.values[-1]
        if last >= _WHOLE * most or not math.isfinite(value):
            return curve
        places = [last * (most / last) ** (step / _STEPS) for step in range(1, _STEPS + 1)]
        others = [other for other in whole if other.value(last) > 0.0]
        more = [
            value * median([other.value(place) / other.value(last) for other in others] or [1.0]) for place in places
        ]
        return LearningCurve([*curve.events, *places], [*curve.values, *more])

    return [carried(curve) for curve in curves]


def fit(curve: LearningCurve) -> tuple[float, float, float, float]:
    """The falling power law nearest to a curve, `end + fall * shape(share, slope)`, and the scatter of validations around it:
    end, fall, slope, scatter. For each of many slopes the end and the fall follow from a straight line."""
    shares, values = np.asarray(curve.events) / curve.events[-1], np.asarray(curve.values)
    best, least = (float(values.mean()), 0.0, 1.0, float(values.std())), math.inf
    for slope in _SLOPES:
        columns = np.stack([np.ones_like(shares), _shape(shares, slope)], axis=1)
        (end, fall), *_ = np.linalg.lstsq(columns, values, rcond=None)
        rest = columns @ [end, fall] - values
        squares = float((rest**2).sum())
        if fall >= 0.0 and squares < least:
            # By how much neighbours differ in what is left over: a law that does not fit is no noise.
            scatter = float(np.sqrt(np.mean(np.diff(rest[len(rest) // 2 :]) ** 2) / 2.0))
            best, least = (float(end), float(fall), float(slope), scatter), squares
    return best


def _shape(shares: Array, slope: float | Array) -> Array:
    """1 at the early share, 0 at the end."""
    shape: Array = (shares**-slope - 1.0) / (_EARLY**-slope - 1.0)
    return shape


class CurveModel:
    """Trainings like those that were recorded. One needs more than three validations, with finite values above 0, or it is
    left out."""

    def __init__(self, curves: Sequence[LearningCurve]) -> None:
        usable = [
            curve for curve in curves if len(curve.values) > 3 and all(0 < value < math.inf for value in curve.values)
        ]
        if len(usable) < 2:
            raise InputFileError(
                f"{len(usable)} curves with more than three validations are no model; give at least two"
            )
        #: End, fall, slope and scatter of each.
        self.laws = np.array([fit(curve) for curve in usable])

    def draw(self, count: int, *, seed: int, scatter: float = 1.0) -> list[LearningCurve]:
        """So many curves over one event in all. The scatter of validations is that of the recorded ones times `scatter`: with
        n times the events in a validation, about n**-0.5."""
        random = np.random.default_rng(seed)
        table = np.array([[math.log(end), *others] for end, *others in self.laws])
        chosen = table[random.integers(len(table), size=count)]
        # As wide as a kernel estimate of the density has it (Scott).
        width = table[:, :3].std(axis=0) * len(table) ** -0.2
        moved = chosen[:, :3] + random.normal(size=(count, 3)) * width
        end = np.exp(np.maximum(moved[:, 0], math.log(0.9) + table[:, 0].min()))  # none far below what was ever seen
        fall, slope = np.maximum(moved[:, 1], 0.0), np.clip(moved[:, 2], _SLOPES[0], _SLOPES[-1])
        values = end[:, None] + fall[:, None] * _shape(_SHARES, slope[:, None])
        values += random.normal(size=values.shape) * chosen[:, 3:] * scatter
        shares = _SHARES.tolist()
        return [LearningCurve(shares, row) for row in values.tolist()]


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
