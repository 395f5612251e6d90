"""The page of a study: drawings, what is computed from its record, which settings matter; one HTML file that loads nothing.

write_report(Path("studies/clic_small"))       # its report/index.html; the study may still be running

Marks say what became of a trial: a dot lived to the end, a cross was stopped, a diamond goes on, a plus failed later. A drawing
in which the page points at trials says where its axes are.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import warnings
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, reduce
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from ringflow.base import page as pages
from ringflow.base.errors import RingflowError
from ringflow.base.output import word
from ringflow.base.page import PAGE_FILE, inline
from ringflow.base.rundir import prepared, write_atomic
from ringflow.base.words import flat, time_in_words
from ringflow.evaluate.plots import STYLE, plain, png
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import Reported, State, TrialRecord, best_of, load_optuna
from ringflow.tune.schedulers import one_bracket
from ringflow.tune.space import Choice, Parameter, Space, same
from ringflow.tune.table import Front, front_of

K = TypeVar("K")
Points = Mapping[int, tuple[float, float]]

#: Colour and mark of trials in a state, in the order in which they are told; those that matter are drawn last.
STATES: Mapping[State, tuple[str, str]] = {
    "complete": ("#0072b2", "o"),
    "stopped": ("#8a9099", "x"),
    "paused": ("#b07900", "D"),
    "running": ("#00805d", "D"),
    "waiting": ("#56a0d0", "D"),
    "failed": ("#a63d78", "+"),
}
_BEST = "#d55e00"
#: Shades of values, the best first.
_SHADES = ("#08306b", "#1c5a9e", "#3f80bd", "#6ba1d0", "#98bfe0", "#bcd5ea", "#d5e3f0", "#e6edf4")
#: Beyond, marks are small dots.
_MANY = 2000
#: Lines of more trials are faint; so many are drawn where all settings are side by side and nothing can be pointed at.
_FEW, MOST_PARALLEL = 400, 200
#: Trials up to which every one of them is labelled.
_LABELLED = 60
_DPI, _WIDE = 110, 11.2
_ROOM = 0.04
_GOLDEN = 0.618034


class Axis(NamedTuple):
    """What an axis shows: a column of the page's data, between two ends."""

    label: str
    low: float
    high: float
    log: bool = False
    #: Words instead of numbers: values are 0, 1, 2 ...
    options: tuple[str, ...] = ()
    column: str = ""

    def place(self, value: float) -> float:
        """Where a value is, between 0 and 1; what is above the end is at it."""
        low, high, value = (math.log10(n) if self.log else n for n in (self.low, self.high, value))
        return min((value - low) / (high - low), 1.0)

    def show(self, axes: Axes, side: str) -> None:
        """Have it as one side, x or y, of a frame."""
        words: dict[str, Any] = {
            "scale": "log" if self.log else "linear",
            "lim": (self.low, self.high),
            "label": self.label,
        }
        words |= {"ticks": range(len(self.options)), "ticklabels": [*map(plain, self.options)]} if self.options else {}
        axes.set(**{f"{side}{name}": value for name, value in words.items()})

    def told(self, start: float, end: float) -> dict[str, Any]:
        """What the page must know to find points between two places of the drawing."""
        ends = {"low": self.low, "high": self.high, "log": self.log, "from": round(start, 1), "to": round(end, 1)}
        return {"column": self.column, "name": self.label, "words": bool(self.options), **ends}


def parameter_axis(parameter: Parameter, column: str) -> Axis:
    """The axis of a setting, with a little room at its ends."""
    if isinstance(parameter, Choice):
        names = tuple(map(word, parameter.options))
        return Axis(parameter.name, -0.5, len(names) - 0.5, options=names, column=column)
    if parameter.log:
        factor = (parameter.high / parameter.low) ** _ROOM
        return Axis(parameter.name, parameter.low / factor, parameter.high * factor, True, column=column)
    room = _ROOM * (parameter.high - parameter.low) or 1.0
    return Axis(parameter.name, parameter.low - room, parameter.high + room, column=column)


def value_axis(label: str, values: Iterable[float], column: str) -> Axis:
    """An axis for values of which a few may be far too large: they are not to press all others together."""
    told = sorted(value for value in values if math.isfinite(value)) or [0.0, 1.0]
    low, middle, upper = told[0], told[len(told) // 2], told[(3 * len(told)) // 4]
    high = min(told[-1], upper + 3 * max(upper - told[len(told) // 4], middle - low))
    if low > 0 and high / low > 30:
        return Axis(label, low / 1.1, high * 1.1, True, column=column)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(label, low - room, high + room, column=column)


class Drawing(NamedTuple):
    """A picture in the page; its size in units in which `link` says where axes are, if trials can be pointed at."""

    source: str
    width: float
    height: float
    link: Any = None


def _frame(
    x: Axis | None, y: Axis | None, size: tuple[float, float] = (6.4, 3.7), *, left: float = 0.75, top: float = 0.1
) -> tuple[Figure, Axes]:
    """A figure with one frame; all in inches. Frames at fixed places are drawn in half the time of a layout."""
    (width, height), right, bottom = size, 0.12, 0.6
    figure = Figure(size, dpi=_DPI)
    axes = figure.add_axes((left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height))
    for side, axis in (("x", x), ("y", y)):
        if axis:
            axis.show(axes, side)
    return figure, axes


def _drawing(figure: Figure, *pointed: tuple[Axes, Axis, Axis]) -> Drawing:
    source = inline(png(figure))
    width, height = (100 * length for length in figure.get_size_inches())
    link = None
    for axes, x, y in pointed:
        box = axes.get_position()
        up = y.told((1 - box.y0) * height, (1 - box.y1) * height)
        link = {"x": x.told(box.x0 * width, box.x1 * width), "y": up}
    return Drawing(source, width, height, link)


def _mark(axes: Axes, view: StudyView, points: Points) -> None:
    """Every trial as its state says, a ring around the best one; what is above the frame is told at its edge."""
    many, top = len(points) > _MANY, axes.get_ylim()[1]
    for state, (color, mark) in reversed(list(STATES.items())):
        own = [point for trial, point in points.items() if view.trials[trial].state == state]
        inside, above = [(x, y) for x, y in own if y <= top], [(x, top) for x, y in own if y > top]
        for places, marker in ((inside, "." if many else mark), (above, "^")):
            look: dict[str, Any] = {"color": color, "marker": marker, "clip_on": False, "alpha": 0.5 if many else 1.0}
            axes.plot(*_columns(places), linestyle="", markersize=3 if many else 5, **look)
    if view.best and view.best.number in points:
        ring: dict[str, Any] = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgewidth": 2}
        axes.plot(*_columns([points[view.best.number]]), color=_BEST, linestyle="", zorder=5, **ring)


def _color(view: StudyView, trial: TrialRecord) -> str:
    return _BEST if trial is view.best else STATES[trial.state][0]


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def history(view: StudyView) -> Drawing:
    """Last value of every trial in the order of their numbers, and the best so far of those that count when it is chosen."""
    values = {trial: told[0] for trial, told in view.values.items()}
    x = Axis("trial", -0.5, max(len(view.trials) - 0.5, 0.5), column="number")
    y = value_axis(view.objectives[0], values.values(), "o0")
    figure, axes = _frame(x, y)
    _mark(axes, view, {trial: (float(trial), value) for trial, value in values.items()})
    whole = [trial for trial in values if view.trials[trial].state == "complete"] or list(values)
    line = list(zip(whole, accumulate((values[trial] for trial in whole), min), strict=True))
    axes.step(*_columns([*line, (x.high, line[-1][1])]), where="post", color=_BEST)
    return _drawing(figure, (axes, x, y))


def slices(view: StudyView) -> list[Drawing]:
    """For every parameter, values against it; trials with the same word stand beside each other."""
    found = []
    y = value_axis(view.objectives[0], (told[0] for told in view.values.values()), "o0")
    for index, parameter in enumerate(view.folder.space.parameters):
        x = parameter_axis(parameter, f"p{index}")
        figure, axes = _frame(x, y, (4.6, 3.0))
        points = {
            trial: (place + (trial * _GOLDEN % 1 - 0.5) * 0.6 if x.options else place, view.values[trial][0])
            for trial, place in enumerate(view.coordinates[index])
            if place is not None and trial in view.values
        }
        _mark(axes, view, points)
        found.append(_drawing(figure, (axes, x, y)))
    return found


def curves(view: StudyView) -> Drawing:
    """Values of trials at every rung that they came to."""
    lines = {
        trial.number: [(float(r.resource), r.value) for r in trial.reports if math.isfinite(r.value)]
        for trial in view.trials
        if any(math.isfinite(r.value) for r in trial.reports)
    }
    figure, axes = _frame(None, value_axis(view.objectives[0], (y for line in lines.values() for _, y in line), ""))
    axes.set(xscale="log", xlabel="events shown")
    colors = [_color(view, view.trials[trial]) for trial in lines]
    widths = [2.6 if color == _BEST else 1.2 for color in colors]
    alpha = 0.7 if len(lines) <= _FEW else 0.25
    axes.add_collection(LineCollection(list(lines.values()), colors=colors, linewidths=widths, alpha=alpha))
    _mark(axes, view, {trial: line[-1] for trial, line in lines.items()})
    return _drawing(figure)


def importance_bars(shares: Mapping[str, float]) -> Drawing:
    """A bar for every parameter, the most important one first."""
    figure, axes = _frame(None, None, (6.4, 0.7 + 0.32 * len(shares)), left=2.2)
    bars = axes.barh(list(shares), [100 * share for share in shares.values()], color=STATES["complete"][0], height=0.7)
    axes.bar_label(bars, fmt="%.0f %%", padding=4)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.margins(x=0.12)
    return _drawing(figure)


def pareto_plots(view: StudyView, front: Front) -> list[Drawing]:
    """Every pair of neighbouring objectives: all trials, and the front."""
    found = []
    for first, second in pairwise(range(len(view.objectives))):
        told = {trial: (row[first], row[second]) for trial, row in view.values.items() if all(map(math.isfinite, row))}
        x, y = (
            value_axis(view.objectives[index], values, f"o{index}")
            for index, values in zip((first, second), _columns(list(told.values())), strict=True)
        )
        figure, axes = _frame(x, y)
        _mark(axes, view, {trial: point for trial, point in told.items() if point[0] <= x.high})
        points = sorted(told[trial.number] for trial in front.trials)
        if len(view.objectives) == 2 and points:
            ends = [(points[0][0], y.high), *points, (x.high, points[-1][1])]
            axes.step(*_columns(ends), where="post", color=_BEST)
        axes.plot(*_columns(points), color=_BEST, marker="o", markersize=8, linestyle="")
        found.append(_drawing(figure, (axes, x, y)))
    return found


def or_infinite(value: float | None) -> float:
    """What is no number is worse than all that are."""
    return value if value is not None and math.isfinite(value) else math.inf


def rung_diagram(view: StudyView) -> Drawing:
    """A column per rung with its trials, the best on top; lines are trials that went on, as thick as they have processes."""
    columns = [[trial for trial in view.trials if rung in view.climbs[trial.number]] for rung in range(len(view.rungs))]
    place: dict[tuple[int, int], float] = {}
    for rung, column in enumerate(columns):
        ranked = sorted((or_infinite(view.climbs[trial.number][rung].value), trial.number) for trial in column)
        place |= {(rung, number): (rank + 0.5) / len(ranked) for rank, (_, number) in enumerate(ranked)}
    labelled = len(view.trials) <= _LABELLED
    figure, axes = _frame(
        None, None, (_WIDE, 1.2 + min(max(0.14 * len(columns[0]), 1.6), 8.4 if labelled else 4.0)), top=0.6
    )
    lines, widths, colors = [], [], []
    for trial in view.trials:
        reports = view.climbs[trial.number]
        for here, there in pairwise(sorted(reports)):
            ends = [(here, place[here, trial.number]), (there, place[there, trial.number])]
            before, workers = reports[here].workers, reports[there].workers
            lines.append(ends)
            widths.append(1.6 + 1.4 * math.log2(max(workers, 1)))
            colors.append(_color(view, trial))
            if workers != before and labelled:
                middle = ((here + there) / 2, (ends[0][1] + ends[1][1]) / 2)
                axes.text(*middle, f"{before} → {workers}", fontsize=8, ha="center", va="bottom")
    axes.add_collection(LineCollection(lines, colors=colors, linewidths=widths, alpha=0.6))
    marks: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for (rung, number), height in place.items():
        trial = view.trials[number]
        lives = trial is view.best or rung < max(view.climbs[number])
        marks[_color(view, trial), "o" if lives else STATES[trial.state][1]].append((rung, height))
        if labelled and rung == 0:
            axes.text(-0.02, height, str(number), fontsize=7, ha="right", va="center")
    for (color, mark), places in marks.items():
        many = len(place) > _MANY
        axes.plot(*_columns(places), color=color, marker="." if many else mark, markersize=5, linestyle="")
    axes.set(xlim=(-0.2, len(columns) - 0.8), ylim=(1.0, 0.0), yticks=[])
    axes.set_xticks(range(len(columns)), [_column_head(view, rung, column) for rung, column in enumerate(columns)])
    axes.xaxis.tick_top()
    axes.grid(visible=False)
    return _drawing(figure)


def _column_head(view: StudyView, rung: int, came: Sequence[TrialRecord]) -> str:
    last = [trial.state for trial in came if max(view.climbs[trial.number]) == rung]
    told = {"came": len(came)}
    if rung < len(view.rungs) - 1:
        told |= {"stopped": last.count("stopped"), "put aside": last.count("paused")}
    return f"{view.rungs[rung]:,} events\n" + ", ".join(f"{count:,} {name}" for name, count in told.items() if count)


def lanes_of(segments: Iterable[tuple[float, float, int, K]]) -> list[tuple[K, float, float, list[tuple[int, int]]]]:
    """Which lanes each segment (start, end, how many, what) has, as ranges: the lowest that are free."""
    free: list[int] = []
    taken: list[tuple[float, int, list[int]]] = []
    placed, lanes = [], 0
    for number, (start, end, count, what) in enumerate(sorted(segments, key=lambda segment: segment[:2])):
        while taken and taken[0][0] <= start:
            for lane in heappop(taken)[2]:
                heappush(free, lane)
        while len(free) < count:
            heappush(free, lanes)
            lanes += 1
        own = [heappop(free) for _ in range(count)]  # in rising order
        heappush(taken, (end, number, own))
        ranges: list[tuple[int, int]] = []
        for lane in own:
            low = ranges.pop()[0] if ranges and ranges[-1][1] == lane else lane
            ranges.append((low, lane + 1))
        placed.append((what, start, end, ranges))
    return placed


def draw_lanes(axes: Axes, bars: Iterable[tuple[str, float, float, list[tuple[int, int]]]]) -> None:
    """Coloured bars over time, each over its lanes."""
    shapes, colors = [], []
    for color, start, end, ranges in bars:
        for low, high in ranges:
            shapes.append([(start, low), (end, low), (end, high), (start, high)])
            colors.append(color)
    axes.add_collection(PolyCollection(shapes, facecolors=colors, edgecolors="white", linewidths=0.25))
    axes.grid(visible=False)


def timeline(view: StudyView) -> Drawing:
    """Processes from top to bottom, and which trials had them."""
    bars = lanes_of(view.segments)
    lanes = max(high for *_, ranges in bars for _, high in ranges)
    units = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
    unit, name = next((unit, name) for unit, name in units if view.duration >= 2 * unit or unit == 1)
    figure, axes = _frame(None, None, (_WIDE, 0.9 + min(max(0.22 * lanes, 0.8), 4.6)))
    colored = [
        (
            _color(view, trial),
            (start - view.begin) / unit,
            (end - view.begin) / unit,
            r,
        )
        for trial, start, end, r in bars
    ]
    draw_lanes(axes, colored)
    for (trial, *_), (_, start, end, ranges) in zip(bars, colored, strict=True):
        if lanes <= 20 and end - start > 0.02 * view.duration / unit:
            middle = ((start + end) / 2, sum(ranges[0]) / 2)
            axes.text(*middle, str(trial.number), fontsize=8, color="white", ha="center", va="center", clip_on=True)
    axes.set(
        xlabel=f"{name} since the beginning", ylabel="process", ylim=(lanes, 0), yticks=range(0, lanes, -(-lanes // 10))
    )
    axes.set_xlim(0.0, max(view.duration / unit, 1e-9))
    return _drawing(figure)


def cost_bars(view: StudyView) -> Drawing:
    """Device-hours by rung, split by what became of the trials."""
    figure, axes = _frame(None, None, (6.4, 0.9 + 0.4 * len(view.rungs)), left=1.7)
    ends = [0.0] * len(view.rungs)
    for state, (color, _) in STATES.items():
        spent = [by_state.get(state, 0.0) / 3600 for by_state in view.costs.values()]
        axes.barh([f"to {rung:,} events" for rung in view.rungs], spent, left=ends, color=color, edgecolor="white")
        ends = [end + more for end, more in zip(ends, spent, strict=True)]
    axes.set_xlabel("device-hours")
    axes.invert_yaxis()
    return _drawing(figure)


def parallel(view: StudyView, *, lines: bool) -> Drawing:
    """An axis per parameter and one per objective; every trial is a line, the better the darker, broken where a parameter is
    not active. Without lines these are for the page to draw."""
    shown = [parameter_axis(parameter, f"p{index}") for index, parameter in enumerate(view.folder.space.parameters)]
    for index, name in enumerate(view.objectives):
        shown.append(value_axis(name, (row[index] for row in view.values.values()), f"o{index}"))
    left, bottom, top = 0.5 / len(shown), 0.05, 0.86
    places = [left + index / len(shown) for index in range(len(shown))]
    figure = Figure((max(_WIDE, 1.1 * len(shown)), 3.9), dpi=_DPI)
    width, height = (100 * length for length in figure.get_size_inches())
    back = figure.add_axes((0, bottom, 1, top - bottom), xlim=(0, 1), ylim=(0, 1))
    back.set_axis_off()
    if lines:
        ranked = sorted(view.values, key=lambda trial: view.values[trial][0])
        for rank, trial in reversed([*enumerate(ranked[:MOST_PARALLEL])]):
            told = [*(column[trial] for column in view.coordinates), *view.values[trial]]
            heights = [
                math.nan if value is None or math.isnan(value) else axis.place(value)
                for axis, value in zip(shown, told, strict=True)
            ]
            back.plot(places, heights, color=_SHADES[len(_SHADES) * rank // len(ranked)], linewidth=1.2)
    link = []
    for axis, place in zip(shown, places, strict=True):
        pane = figure.add_axes((place, bottom, 1e-4, top - bottom), xticks=[], facecolor="none")
        axis._replace(label="").show(pane, "y")
        pane.set_title(axis.label.replace(".", ".\n"), fontsize=9)
        pane.tick_params(which="both", labelsize=8)
        pane.grid(visible=False)
        link.append({"at": round(place * width, 1), **axis.told((1 - bottom) * height, (1 - top) * height)})
    return Drawing(inline(png(figure)), width, height, link)


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


#: What the page draws, under these names.
_DRAWN = (history, curves, rung_diagram, parallel, slices, importance_bars, pareto_plots, timeline, cost_bars)


def write_report(study: Path, out: Path | None = None) -> Path:
    """Write the page of a study, finished or not, into the folder `out`; the path of the page."""
    view = StudyView(StudyFolder(study))
    script = (_OWN / "study.js").read_text(encoding="utf-8")
    with prepared(out or study / REPORT_FOLDER, marks=(PAGE_FILE,)) as folder, matplotlib.rc_context(STYLE):
        text = pages.render(
            _OWN / "study.html.j2",
            charts={draw.__name__: draw for draw in _DRAWN},
            most_parallel=MOST_PARALLEL,
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
        write_atomic(folder / PAGE_FILE, text)
    return folder / PAGE_FILE


def _provenance(folder: StudyFolder) -> Iterator[tuple[str, str]]:
    try:
        origin = folder.origin.model_dump(exclude={"places"}, exclude_none=True)
        yield from ((name, word(value)) for name, value in flat(origin))
    except RingflowError as error:
        yield "origin", str(error)
