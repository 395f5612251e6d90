"""The page of a study: what it tells, computed from its record; which settings matter; and one HTML file that loads nothing.

write_report(Path("studies/clic_small"))       # its report/index.html; the study may still be running
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property, reduce
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import matplotlib
from markupsafe import Markup

from ringflow.base import page as pages
from ringflow.base.errors import RingflowError
from ringflow.base.output import word
from ringflow.base.page import PAGE_FILE
from ringflow.base.rundir import prepare, write_atomic
from ringflow.base.words import flat, time_in_words
from ringflow.evaluate.plots import STYLE
from ringflow.tune import charts
from ringflow.tune.best import front_of
from ringflow.tune.charts import STATES, or_infinite
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import Reported, State, TrialRecord, best_of, load_optuna
from ringflow.tune.schedulers import one_bracket
from ringflow.tune.space import Choice, Space, same

REPORT_FOLDER = "report"
#: Trials in the table of the page as it is written, and in a page of it when it is sorted.
TABLE_ROWS = 200
_OWN = Path(__file__).parent / "templates"
#: Trials from which something can be learnt.
FEWEST = 8


class RungComparison(NamedTuple):
    """Two values after the same number of events."""

    resource: int
    theirs: float
    best: float

    @property
    def gain(self) -> float:
        """By what share the best is lower."""
        return (self.theirs - self.best) / abs(self.theirs) if self.theirs else 0.0


class StudyView:
    """A study to look at."""

    def __init__(self, folder: StudyFolder) -> None:
        self.folder, self.record = folder, folder.record()
        self.trials: Sequence[TrialRecord] = self.record.trials
        self.objectives = folder.settings.objectives
        #: The best trial in the first objective.
        self.best = best_of(self.trials)
        self.states = Counter(trial.state for trial in self.trials)
        #: When the first trial was made, and seconds from there to the last thing that happened.
        self.begin = min((trial.created for trial in self.trials), default=0.0)
        self.duration = self.record.last_time - self.begin if self.trials else 0.0
        #: Resources at which trials were compared.
        self.rungs: tuple[int, ...] = folder.ladder.rungs
        if folder.settings.scheduler == "none":
            self.rungs = (self.record.most,)
        elif folder.settings.scheduler == "hyperband":
            self.rungs = folder.ladder.from_the_end
        #: A sentence if the scheduler is not what its name says.
        count = len(self.trials) if self.record.closed else folder.settings.trials
        self.one_bracket = one_bracket(folder.settings.scheduler, folder.ladder, count)
        #: Last values of all objectives by trial, of trials that have a finite first one.
        self.values = {
            trial.number: trial.values(self.objectives)
            for trial in self.trials
            if math.isfinite(or_infinite(trial.value))
        }
        #: Every time that a trial had processes: start, end, how many, and who.
        self.segments = [
            (part.start, self.record.last_time if part.end is None else part.end, part.workers, trial)
            for trial in self.trials
            for part in trial.segments
        ]

    def rung(self, resource: int) -> int:
        """Number of the rung that a report belongs to; a training reports at the first validation that is not before it."""
        return max(bisect_right(self.rungs, resource) - 1, 0)

    @cached_property
    def coordinates(self) -> list[list[float | None]]:
        """For every parameter, where each trial is on its axis; None where it is not active."""
        found: list[list[float | None]] = []
        for parameter in self.folder.space.parameters:
            held: list[Any] = [trial.point.get(parameter.name) for trial in self.trials]
            if isinstance(parameter, Choice):
                known = {word(option): float(index) for index, option in enumerate(parameter.options)}
                held = [None if value is None else known.get(word(value)) for value in held]
            found.append(held)
        return found

    @cached_property
    def climbs(self) -> list[dict[int, Reported]]:
        """For every trial, its reports by rung; what it said between rungs is left out."""
        climbs: list[dict[int, Reported]] = [{} for _ in self.trials]
        for trial in self.trials:
            for report in trial.reports:
                if report.resource >= self.rungs[rung := self.rung(report.resource)]:
                    climbs[trial.number].setdefault(rung, report)
        return climbs

    @property
    def first_is_default(self) -> bool:
        """Whether the first trial has the settings that the space varies as they are."""
        known = self.folder.training.model_dump(mode="json")
        point = self.trials[0].point if self.trials else {}
        return bool(point) and all(
            same(reduce(lambda part, key: part[key], name.split("."), known), value) for name, value in point.items()
        )

    def against_first(self) -> RungComparison | None:
        """The best trial and the first one, after the events that the first one was shown."""
        first = self.trials[0] if self.trials else None
        if first is None or first is self.best or first.number not in self.values:
            return None
        return self._compared(first.resource, self.values[first.number][0])

    def against_median(self) -> RungComparison | None:
        """The best trial and the median, at the highest rung that at least half of the trials came to."""
        by_rung: dict[int, list[float]] = {}
        for trial in self.trials:
            for report in trial.reports:
                if math.isfinite(report.value):
                    by_rung.setdefault(self.rung(report.resource), []).append(report.value)
        crowded = [rung for rung, values in by_rung.items() if 2 * len(values) >= len(self.values) and len(values) > 2]
        return self._compared(self.rungs[max(crowded)], median(by_rung[max(crowded)])) if crowded else None

    def _compared(self, resource: int, theirs: float) -> RungComparison | None:
        """The best trial at that rung, where trials come a step apart, or at the last report before; None if it has none."""
        reports = self.best.reports if self.best else []
        reached = [report.value for report in reports if self.rung(report.resource) <= self.rung(resource)]
        return RungComparison(resource, theirs, reached[-1]) if reached and math.isfinite(reached[-1]) else None

    @cached_property
    def costs(self) -> dict[int, dict[State, float]]:
        """Device-seconds by rung that was climbed to, and by what became of the trials."""
        costs: dict[int, dict[State, float]] = {number: {} for number in range(len(self.rungs))}
        for start, end, workers, trial in self.segments:
            since = start
            later = next((said.resource for said in trial.reports if said.time > end), max(trial.until, trial.resource))
            stops = [(said.time, said.resource) for said in trial.reports if start < said.time <= end]
            for time, resource in [*stops, (end, later)]:
                spent = costs[self.rung(resource)]
                spent[trial.state] = spent.get(trial.state, 0.0) + workers * (time - since)
                since = time
        return costs

    def saving(self) -> tuple[float, float] | None:
        """Device-seconds of the trials that ended, and what they would have cost had all lived to the end at their own pace."""
        ended = [trial for trial in self.trials if trial.over and trial.resource]
        spent = sum(trial.device_seconds(self.record.last_time) for trial in ended)
        whole = sum(trial.device_seconds(self.record.last_time) * self.record.most / trial.resource for trial in ended)
        return (spent, whole) if ended and whole > 0 else None

    def best_first(self) -> list[TrialRecord]:
        """All trials: those that lived to the end, then the others, each by value; those without one last."""
        told = {number: values[0] for number, values in self.values.items()}
        return sorted(
            self.trials, key=lambda t: (t.number not in told, t.state != "complete", told.get(t.number, 0.0), t.number)
        )

    def data(self) -> dict[str, Any]:
        """Columns of numbers for the page: what is pointed at, sorted and chosen there."""
        last, states = self.record.last_time, list(STATES)
        columns: dict[str, list[Any]] = {
            "number": [trial.number for trial in self.trials],
            "state": [states.index(trial.state) for trial in self.trials],
            "events": [trial.resource for trial in self.trials],
            "workers": [trial.segments[-1].workers if trial.segments else 0 for trial in self.trials],
            "seconds": [round(trial.device_seconds(last), 1) for trial in self.trials],
        }
        nothing = [math.nan] * len(self.objectives)
        for index in range(len(self.objectives)):
            told = (self.values.get(trial.number, nothing)[index] for trial in self.trials)
            columns[f"o{index}"] = [float(f"{value:.6g}") if math.isfinite(value) else None for value in told]
        columns |= {f"p{index}": places for index, places in enumerate(self.coordinates)}
        return {
            "states": states,
            "objectives": self.objectives,
            "best": self.best.number if self.best else None,
            "parameters": [
                {"name": p.name, "options": [*map(word, p.options)] if isinstance(p, Choice) else None}
                for p in self.folder.space.parameters
            ],
            "columns": columns,
        }


def importances(space: Space, trials: Sequence[TrialRecord]) -> dict[str, float]:
    """Share of each parameter in what trials differ in, as Optuna tells (PED-ANOVA, arXiv:2304.10255), most important first.

    Empty if there are too few trials, all 0 if nothing makes a difference.

    Stopped and diverged trials count by their place: who came further is better, and of those who came as far the lower value.
    """
    optuna = load_optuna()
    told = [trial for trial in trials if trial.reports]
    if len(told) < FEWEST:
        return {}
    places = [(-trial.resource, or_infinite(trial.value)) for trial in told]
    rank = {place: number for number, place in enumerate(sorted(set(places)))}
    names = {parameter.name: parameter for parameter in space.parameters}
    if len(rank) == 1:
        return dict.fromkeys(names, 0.0)
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
    return {**found, **dict.fromkeys(names.keys() - found.keys(), 0.0)}


def write_report(study: Path, out: Path | None = None) -> Path:
    """Write the page of a study, finished or not, into the folder `out`; the path of the page."""
    view = StudyView(StudyFolder(study))
    page = prepare(out or study / REPORT_FOLDER, marks=(PAGE_FILE,)) / PAGE_FILE
    script = (_OWN / "study.js").read_text(encoding="utf-8")
    with matplotlib.rc_context(STYLE):
        text = pages.render(
            _OWN / "study.html.j2",
            charts=charts,
            word=word,
            finite=math.isfinite,
            span=time_in_words,
            hours=lambda seconds: word(seconds / 3600),
            view=view,
            states=[state for state in STATES if view.states[state]],
            importances=importances(view.folder.space, view.trials),
            fewest=FEWEST,
            front=front_of(view.trials, view.objectives) if len(view.objectives) > 1 and view.values else None,
            most_rows=TABLE_ROWS,
            provenance=dict(_provenance(view.folder)),
            written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            data=Markup(json.dumps(view.data(), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")),
        )
    write_atomic(page, text)
    return page


def _provenance(folder: StudyFolder) -> Iterator[tuple[str, str]]:
    try:
        origin = folder.origin.model_dump(exclude={"places"}, exclude_none=True)
        yield from ((name, word(value)) for name, value in flat(origin))
    except RingflowError as error:
        yield "origin", str(error)
