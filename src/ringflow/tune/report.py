"""The page of a study: what it tells, computed from its record; which settings matter; and one HTML file that loads nothing.

write_report(Path("studies/clic_small"))       # its report/index.html; the study may still be running
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
import math
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, reduce
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from markupsafe import Markup

from ringflow.base import page as pages
from ringflow.base.errors import RingflowError
from ringflow.base.page import PAGE_FILE
from ringflow.base.rundir import prepare, write_atomic
from ringflow.base.words import flat, time_in_words
from ringflow.launch.frameworks import framework
from ringflow.tune import charts
from ringflow.tune.best import front_of, objective_values
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import Reported, State, StudyRecord, TrialRecord, best_of
from ringflow.tune.schedulers import one_bracket
from ringflow.tune.space import Choice, Parameter, Range, Space, same

REPORT_FOLDER = "report"
#: Trials in the table of the page as it is written, and in a page of it when it is sorted.
TABLE_ROWS = 200
_OWN = Path(__file__).parent / "templates"
#: Trials from which something can be learnt.
FEWEST = 8


class Comparison(NamedTuple):
    """Two values after the same number of events."""

    resource: int
    theirs: float
    best: float

    @property
    def gain(self) -> float:
        """By what share the best is lower."""
        return (self.theirs - self.best) / abs(self.theirs) if self.theirs else 0.0


class Bar(NamedTuple):
    """Processes from `lane` on, next to each other, that a trial had for a time."""

    lane: int
    lanes: int
    trial: TrialRecord
    start: float
    end: float


@dataclass(frozen=True)
class StudyView:
    """A study to look at."""

    folder: StudyFolder
    record: StudyRecord

    @property
    def trials(self) -> Sequence[TrialRecord]:
        """All of them."""
        return self.record.trials

    @property
    def objectives(self) -> tuple[str, ...]:
        """What is made small."""
        return self.folder.settings.objectives

    @cached_property
    def best(self) -> TrialRecord | None:
        """The best trial in the first objective."""
        return best_of(self.trials)

    @cached_property
    def rungs(self) -> tuple[int, ...]:
        """Resources at which trials were compared."""
        match self.folder.settings.scheduler:
            case "none":
                return (self.record.most,)
            case "hyperband":
                return self.folder.ladder.from_the_end
        return self.folder.ladder.rungs

    @property
    def one_bracket(self) -> str | None:
        """A sentence if the scheduler is not what its name says."""
        trials = len(self.trials) if self.record.closed else self.folder.settings.trials
        return one_bracket(self.folder.settings.scheduler, self.folder.ladder, trials)

    def rung(self, resource: int) -> int:
        """Number of the rung that a report belongs to; a training reports at the first validation that is not before it."""
        return max(bisect_right(self.rungs, resource) - 1, 0)

    @cached_property
    def states(self) -> Counter[State]:
        """How many trials are in which state."""
        return Counter(trial.state for trial in self.trials)

    @cached_property
    def values(self) -> dict[int, list[float]]:
        """Last values of all objectives by trial, of trials that have a finite first one."""
        told = {trial.number: objective_values(trial, self.objectives) for trial in self.trials if trial.reports}
        for trial in self.trials:
            if trial.reports:
                told[trial.number][0] = trial.reports[-1].value
        return {number: values for number, values in told.items() if math.isfinite(values[0])}

    @cached_property
    def coordinates(self) -> list[list[float | None]]:
        """For every parameter, where each trial is on its axis; None where it is not active."""
        return [_coordinates(parameter, self.trials) for parameter in self.folder.space.parameters]

    @cached_property
    def climbs(self) -> list[dict[int, Reported]]:
        """For every trial, its reports by rung; what it said between rungs is left out."""
        climbs: list[dict[int, Reported]] = [{} for _ in self.trials]
        for trial in self.trials:
            for report in trial.reports:
                if report.resource >= self.rungs[rung := self.rung(report.resource)]:
                    climbs[trial.number].setdefault(rung, report)
        return climbs

    @cached_property
    def begin(self) -> float:
        """When the first trial was made."""
        return min((trial.created for trial in self.trials), default=0.0)

    @property
    def duration(self) -> float:
        """Seconds from the first to the last thing that happened."""
        return self.record.last_time - self.begin if self.trials else 0.0

    @property
    def first_is_default(self) -> bool:
        """Whether the first trial has the settings that the space varies as they are."""
        known = self.folder.training.model_dump(mode="json")
        point = self.trials[0].point if self.trials else {}
        return bool(point) and all(
            same(reduce(lambda part, key: part[key], name.split("."), known), value) for name, value in point.items()
        )

    def against_first(self) -> Comparison | None:
        """The best trial and the first one, after the events that the first one was shown."""
        first = self.trials[0] if self.trials else None
        if self.best is None or first is None or first is self.best or first.number not in self.values:
            return None
        return self._compared(first.resource, self.values[first.number][0], self.best)

    def against_median(self) -> Comparison | None:
        """The best trial and the median, at the highest rung that at least half of the trials came to."""
        by_rung: dict[int, list[float]] = {}
        for trial in self.trials:
            for report in trial.reports:
                if math.isfinite(report.value):
                    by_rung.setdefault(self.rung(report.resource), []).append(report.value)
        crowded = [rung for rung, values in by_rung.items() if 2 * len(values) >= len(self.values) and len(values) > 2]
        if self.best is None or not crowded:
            return None
        return self._compared(self.rungs[max(crowded)], median(by_rung[max(crowded)]), self.best)

    def _compared(self, resource: int, theirs: float, best: TrialRecord) -> Comparison | None:
        """The best trial at that rung, where trials come a step apart, or at the last report before; None if it has none."""
        rung = self.rung(resource)
        reached = [report.value for report in best.reports if self.rung(report.resource) <= rung]
        return Comparison(resource, theirs, reached[-1]) if reached and math.isfinite(reached[-1]) else None

    @cached_property
    def costs(self) -> dict[int, dict[State, float]]:
        """Device-seconds by rung that was climbed to, and by what became of the trials."""
        costs: dict[int, dict[State, float]] = {number: {} for number in range(len(self.rungs))}
        for trial in self.trials:
            for part in trial.segments:
                end = self.record.last_time if part.end is None else part.end
                since = part.start
                inside = [report for report in trial.reports if part.start < report.time <= end]
                stops = [(report.time, self.rung(report.resource)) for report in inside]
                for time, rung in [*stops, (end, self._climbing_to(trial, since if not inside else inside[-1].time))]:
                    spent = costs[rung]
                    spent[trial.state] = spent.get(trial.state, 0.0) + part.workers * (time - since)
                    since = time
        return costs

    def _climbing_to(self, trial: TrialRecord, since: float) -> int:
        """The rung that a trial was on its way to at a time, as far as its reports tell."""
        later = next((report.resource for report in trial.reports if report.time > since), None)
        return self.rung(later if later is not None else max(trial.until, trial.resource))

    def saving(self) -> tuple[float, float] | None:
        """Device-seconds of the trials that ended, and what they would have cost had all lived to the end at their own pace."""
        ended = [trial for trial in self.trials if trial.over and trial.resource]
        spent = sum(trial.device_seconds(self.record.last_time) for trial in ended)
        whole = sum(trial.device_seconds(self.record.last_time) * self.record.most / trial.resource for trial in ended)
        return (spent, whole) if ended and whole > 0 else None

    def bars(self) -> tuple[int, list[Bar]]:
        """Who had which processes: the number of processes, and a bar for every time that a trial had some."""
        last = self.record.last_time
        parts = sorted(
            (part.start, last if part.end is None else part.end, part.workers, trial.number)
            for trial in self.trials
            for part in trial.segments
        )
        free: list[int] = []
        busy: list[tuple[float, int]] = []
        bars, lanes = [], 0
        for start, end, workers, number in parts:
            while busy and busy[0][0] <= start:
                heapq.heappush(free, heapq.heappop(busy)[1])
            while len(free) < workers:
                heapq.heappush(free, lanes)
                lanes += 1
            taken = [heapq.heappop(free) for _ in range(workers)]
            for lane in taken:
                heapq.heappush(busy, (end, lane))
            bars += [Bar(lane, count, self.trials[number], start, end) for lane, count in _runs(taken)]
        return lanes, bars

    def data(self) -> dict[str, Any]:
        """Columns of numbers for the page: what is pointed at, sorted and chosen there."""
        last = self.record.last_time
        columns: dict[str, list[Any]] = {
            "number": [trial.number for trial in self.trials],
            "state": [charts.STATES.index(trial.state) for trial in self.trials],
            "events": [trial.resource for trial in self.trials],
            "workers": [trial.segments[-1].workers if trial.segments else 0 for trial in self.trials],
            "seconds": [round(trial.device_seconds(last), 1) for trial in self.trials],
        }
        for index in range(len(self.objectives)):
            told = (self.values.get(trial.number, [math.nan] * (index + 1))[index] for trial in self.trials)
            columns[f"o{index}"] = [float(f"{value:.6g}") if math.isfinite(value) else None for value in told]
        columns |= {f"p{index}": places for index, places in enumerate(self.coordinates)}
        return {
            "states": charts.STATES,
            "objectives": self.objectives,
            "best": self.best.number if self.best else None,
            "parameters": [
                {"name": parameter.name, "options": _options(parameter)} for parameter in self.folder.space.parameters
            ],
            "columns": columns,
        }


def _coordinates(parameter: Parameter, trials: Sequence[TrialRecord]) -> list[float | None]:
    held = [trial.point.get(parameter.name) for trial in trials]
    if isinstance(parameter, Range):
        return [value if isinstance(value, int | float) else None for value in held]
    known = {charts.words(option): float(index) for index, option in enumerate(parameter.options)}
    return [None if value is None else known.get(charts.words(value)) for value in held]


def _options(parameter: object) -> list[str] | None:
    return list(map(charts.words, parameter.options)) if isinstance(parameter, Choice) else None


def _runs(lanes: Sequence[int]) -> list[tuple[int, int]]:
    """Sorted numbers as (first, how many that follow each other)."""
    runs: list[list[int]] = []
    for lane in lanes:
        if runs and lane == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([lane, 1])
    return [(first, count) for first, count in runs]


def importances(space: Space, trials: Sequence[TrialRecord]) -> dict[str, float]:
    """Share of each parameter in what trials differ in, as Optuna tells (PED-ANOVA, arXiv:2304.10255), most important first.

    Empty if there are too few trials, all 0 if nothing makes a difference.

    Stopped and diverged trials count by their place: who came further is better, and of those who came as far the lower value.
    """
    optuna = framework("optuna", "tune")
    told = [trial for trial in trials if trial.reports]
    if len(told) < FEWEST:
        return {}
    places = [(-trial.resource, _or_infinite(trial.reports[-1].value)) for trial in told]
    rank = {place: number for number, place in enumerate(sorted(set(places)))}
    names = {parameter.name: parameter for parameter in space.parameters}
    if len(rank) == 1:
        return dict.fromkeys(names, 0.0)
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study()
        study.add_trials(
            optuna.trial.create_trial(
                params={name: names[name].plain(value) for name, value in trial.point.items()},
                distributions={name: names[name].distribution for name in trial.point},
                value=float(rank[place]),
            )
            for trial, place in zip(told, places, strict=True)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = {str(name): float(share) for name, share in optuna.importance.get_param_importances(study).items()}
    finally:
        optuna.logging.set_verbosity(level)
    return {**found, **dict.fromkeys(names.keys() - found.keys(), 0.0)}


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


class Picture(NamedTuple):
    """A drawing in the page."""

    title: str
    caption: str
    drawing: Markup
    wide: bool = False


def write_report(study: Path, out: Path | None = None) -> Path:
    """Write the page into the folder `out`; the path of the page."""
    folder = StudyFolder(study)
    view = StudyView(folder, folder.record())
    out = prepare(out or study / REPORT_FOLDER, marks=(PAGE_FILE,))
    page = out / PAGE_FILE
    write_atomic(page, render(view))
    return page


def render(view: StudyView) -> str:
    """The page of a study, finished or not."""
    script = (_OWN / "study.js").read_text(encoding="utf-8")
    return pages.render(
        _OWN / "study.html.j2",
        number=charts.number,
        words=charts.words,
        finite=math.isfinite,
        span=time_in_words,
        hours=charts.hours,
        view=view,
        name=view.folder.path.absolute().name,
        settings=view.folder.settings,
        states=charts.STATES,
        parameters=view.folder.space.parameters,
        first=view.against_first(),
        middle=view.against_median(),
        saving=view.saving(),
        importances=_importances(view),
        history=_how_it_went(view) if view.values else [],
        slices=[Picture(name, "", Markup(drawing)) for name, drawing in charts.slices(view)] if view.values else [],
        parallel=Markup(charts.parallel(view)) if view.values else "",
        parallel_most=charts.MOST_PARALLEL,
        costs=_costs(view),
        pareto=_pareto(view) if len(view.objectives) > 1 and view.values else None,
        rows=best_first(view)[:TABLE_ROWS],
        failures=[trial for trial in view.trials if trial.reason][-TABLE_ROWS:],
        failed=sum(1 for trial in view.trials if trial.reason),
        provenance=dict(_provenance(view.folder)),
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=Markup(json.dumps(view.data(), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")),
    )


def best_first(view: StudyView) -> list[TrialRecord]:
    """All trials: those that lived to the end, then the others, each by value; those without one last."""

    def place(trial: TrialRecord) -> tuple[bool, bool, float, int]:
        told = view.values.get(trial.number)
        return told is None, trial.state != "complete", told[0] if told else 0.0, trial.number

    return sorted(view.trials, key=place)


def _how_it_went(view: StudyView) -> list[Picture]:
    name = view.objectives[0]
    drawn = [
        Picture(
            "History",
            f"Last {name} of every trial, in the order in which they began. Line: the best so far, of trials that lived to the "
            "end if any did. A cross was stopped early, a diamond goes on, a plus failed later; what is far above is marked at "
            "the edge.",
            Markup(charts.history(view)),
        ),
        Picture(
            "Learning curves",
            f"{name} at every rung that a trial came to."
            + (f" Of {len(view.trials):,} trials {charts.MOST_LINES} are drawn: those that came furthest, and some others."
               if len(view.trials) > charts.MOST_LINES else ""),
            Markup(charts.curves(view)),
        ),
    ]  # fmt: skip
    if len(view.rungs) > 1:
        resized = any(len({report.workers for report in trial.reports}) > 1 for trial in view.trials)
        caption = (
            "Trials at every rung, the best on top. A line is a trial that went on to the next rung. A cross was stopped, a "
            "diamond is put aside or on its way, a plus failed later."
        )
        if resized:
            caption += " A line is the thicker the more processes the trial had; small numbers say where it got more."
        climbers = sum(1 for climb in view.climbs if len(climb) > 1)
        if climbers > charts.MOST_CLIMBS:
            caption += (
                f" Of {climbers:,} lines {charts.MOST_CLIMBS} are drawn: those that came furthest, and some others."
            )
        drawn.append(Picture("Rungs", caption, Markup(charts.rung_diagram(view)), wide=True))
    return drawn


def _costs(view: StudyView) -> list[Picture]:
    if not any(trial.segments for trial in view.trials):
        return []
    return [
        Picture(
            "Processes",
            "Which trial had which process when. Gaps are starts of trainings, and processes that nobody used.",
            Markup(charts.timeline(view)),
            wide=True,
        ),
        Picture(
            "Device-hours by rung",
            "What it took to climb to each rung, split by what became of the trials.",
            Markup(charts.cost_bars(view)),
        ),
    ]


def _importances(view: StudyView) -> dict[str, Any]:
    """The bars, or a sentence that says why there are none."""
    found = importances(view.folder.space, view.trials)
    if not found:
        return {"note": f"Importances need at least {FEWEST} trials that reported a value."}
    if not any(found.values()):
        return {"note": "No setting made a difference."}
    return {
        "drawing": Markup(charts.importance_bars(found)),
        "trials": sum(1 for trial in view.trials if trial.reports),
    }


def _pareto(view: StudyView) -> dict[str, Any]:
    front = front_of(view.trials, view.objectives)
    rows = list(zip(front.trials, front.values.tolist(), strict=True))
    drawings = [Markup(drawing) for drawing in charts.pareto_plots(view, front)]
    return {"front": front, "rows": rows[:TABLE_ROWS], "drawings": drawings}


def _provenance(folder: StudyFolder) -> Iterator[tuple[str, str]]:
    try:
        yield from ((name, charts.words(value)) for name, value in flat(folder.origin) if value is not None)
    except RingflowError as error:
        yield "origin", str(error)
