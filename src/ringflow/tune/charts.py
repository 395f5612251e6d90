"""Drawings of a study as SVG text, in the colours that the page has for light and dark: history, curves, slices, importances,
the front of several objectives, rungs, processes, device-hours, and all settings of all trials side by side.

    chart = Chart(Axis("trial", 0, 24), Axis("loss", 2.0, 4.0))
    chart.dots([(3, 2.5), (4, 2.9)], "complete")
    chart.svg("Loss of every trial")

Marks say what became of a trial: a dot lived to the end, a cross was stopped, a diamond goes on, a plus failed later. Thousands
of dots of one kind are one path, which a browser draws at once.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ringflow.tune.best import Front
from ringflow.tune.record import State, TrialRecord
from ringflow.tune.space import Choice, Parameter

if TYPE_CHECKING:
    from ringflow.tune.report import StudyView

#: In the order in which they are told.
STATES: tuple[State, ...] = ("complete", "stopped", "paused", "running", "waiting", "failed")
#: Marks that can be told apart without colours; a path from the middle of the mark.
MARKS = {
    "dot": "h0",
    "cross": "m-3-3l6 6m0-6l-6 6",
    "plus": "m-4 0h8m-4-4v8",
    "diamond": "m-4 0l4-4l4 4l-4 4z",
    "above": "m-4 3l4-6l4 6",
}
#: Beyond, marks are small dots on a grid.
MANY = 2000
_ROOM = 0.04


@dataclass(frozen=True)
class Axis:
    """From values to places between 0 and 1."""

    label: str
    low: float
    high: float
    log: bool = False
    #: Words instead of numbers: values are 0, 1, 2 ...
    options: tuple[str, ...] = ()

    def place(self, value: float) -> float:
        """Where a value is."""
        low, length = self._ends
        return (self._straight(value) - low) / length

    @cached_property
    def _ends(self) -> tuple[float, float]:
        low, high = self._straight(self.low), self._straight(self.high)
        return low, (high - low) or 1.0

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Values worth a mark, and how to write them."""
        if self.options:
            return [(float(index), name) for index, name in enumerate(self.options)]
        if not self.log:
            low, high = sorted((self.low, self.high))
            step = _nice((high - low) / most)
            first = math.ceil(low / step - 1e-9)
            return [(index * step, number(index * step)) for index in range(first, math.floor(high / step + 1e-9) + 1)]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        digits = (1,) if last - first > 2 else (1, 2, 5)
        marks = [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in digits]
        return [(mark, number(mark)) for mark in marks if self.low <= mark <= self.high]

    def _straight(self, value: float) -> float:
        return math.log10(value) if self.log else value


def parameter_axis(parameter: Parameter) -> Axis:
    """The axis of a setting, with a little room at its ends."""
    if isinstance(parameter, Choice):
        names = tuple(map(words, parameter.options))
        return Axis(parameter.name, -0.5, len(names) - 0.5, options=names)
    if parameter.log:
        factor = (parameter.high / parameter.low) ** _ROOM
        return Axis(parameter.name, parameter.low / factor, parameter.high * factor, True)
    room = _ROOM * (parameter.high - parameter.low)
    return Axis(parameter.name, parameter.low - room, parameter.high + room)


def value_axis(label: str, values: Iterable[float]) -> Axis:
    """An axis for values of which a few may be far too large: they are not to press all others together."""
    told = sorted(value for value in values if math.isfinite(value))
    if not told:
        return Axis(label, 0.0, 1.0)
    low, middle, upper = told[0], told[len(told) // 2], told[(3 * len(told)) // 4]
    high = min(told[-1], upper + 3 * max(upper - told[len(told) // 4], middle - low))
    if low > 0 and high / low > 30:
        return Axis(label, low / 1.1, high * 1.1, True)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(label, low - room, high + room)


class Chart:
    """A frame with two axes, and what is drawn in it, in the order in which it is drawn."""

    def __init__(self, x: Axis, y: Axis, *, size: tuple[int, int] = (560, 330), left: int = 62) -> None:
        self.x, self.y = x, y
        self.width, self.height = size
        self.left, self.right, self.top, self.bottom = left, size[0] - 14, 10, size[1] - 44
        self._parts: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a pair of values is, in units of the drawing."""
        across, up = self.x.place(x), self.y.place(y)
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)

    def dots(self, points: Sequence[tuple[float, float]], look: str, mark: str = "dot") -> None:
        """A mark at every point. Of points at the same place one is drawn; those above the frame are told at its edge."""
        inside = [self.at(x, y) for x, y in points if y <= self.y.high]
        above = [(self.at(x, self.y.high)[0], self.top + 4.0) for x, y in points if y > self.y.high]
        for places, shape in ((inside, mark), (above, "above")):
            if places:
                self._parts.append(marks(places, f"{shape} {look}", shape))

    def line(self, points: Sequence[tuple[float, float]], look: str, *, steps: bool = False) -> None:
        """A line through points; with steps it keeps its height up to the next one."""
        self.lines([points], look, steps=steps)

    def lines(self, several: Iterable[Sequence[tuple[float, float]]], look: str, *, steps: bool = False) -> None:
        """Many lines of one look."""
        words = []
        for points in several:
            places = [self.at(x, min(y, self.y.high)) for x, y in points]
            for index, (x, y) in enumerate(places):
                words.append(
                    f"M{x:.1f} {y:.1f}" if index == 0 else f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}"
                )
        if words:
            self._parts.append(f'<path class="{look}" d="{"".join(words)}"/>')

    def add(self, part: str) -> None:
        """Anything else."""
        self._parts.append(part)

    def svg(self, alt: str, link: Any = None) -> str:
        """The drawing. `link` says which columns of the page's data the axes show, so that trials can be pointed at."""
        data = f" data-link='{escape(json.dumps(link), quote=True)}'" if link else ""
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(alt, quote=True)}"{data}>'
            f'{self._frame()}<g class="ink">{"".join(self._parts)}</g></svg>'
        )

    def place_of(self, axis: Axis, *, across: bool) -> dict[str, object]:
        """What the page must know to find points on an axis."""
        ends = (self.left, self.right) if across else (self.bottom, self.top)
        return {
            "low": axis.low,
            "high": axis.high,
            "log": axis.log,
            "from": ends[0],
            "to": ends[1],
            "words": bool(axis.options),
        }

    def _frame(self) -> str:
        parts = []
        for value, name in self.x.ticks(8):
            x = self.at(value, self.y.low)[0]
            if self.left - 1 <= x <= self.right + 1:
                parts.append(f'<path class="grid" d="M{x:.1f} {self.top}V{self.bottom}"/>')
                parts.append(text(x, self.bottom + 16, name, "tick middle"))
        for value, name in self.y.ticks():
            y = self.at(self.x.low, value)[1]
            if self.top - 1 <= y <= self.bottom + 1:
                parts.append(f'<path class="grid" d="M{self.left} {y:.1f}H{self.right}"/>')
                parts.append(text(self.left - 6, y + 4, name, "tick end"))
        parts.append(f'<path class="frame" d="M{self.left} {self.top}V{self.bottom}H{self.right}"/>')
        parts.append(text((self.left + self.right) / 2, self.height - 8, self.x.label, "label middle"))
        middle = (self.top + self.bottom) / 2
        turned = f'transform="rotate(-90 14 {middle:.0f})"'
        parts.append(text(14, middle, self.y.label, "label middle", turned))
        return "".join(parts)


def marks(places: Sequence[tuple[float, float]], look: str, shape: str) -> str:
    """The same mark at many places; of very many, one where several would cover each other."""
    if len(places) > MANY:
        starts = [f"M{x} {y}" for x, y in {(2 * round(x / 2), 2 * round(y / 2)) for x, y in places}]
    else:
        starts = [f"M{x:.1f} {y:.1f}" for x, y in places]
    return f'<path class="{look}" d="{"".join(start + MARKS[shape] for start in starts)}"/>'


def text(x: float, y: float, content: str, look: str, extra: str = "") -> str:
    """Words in a drawing."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{look}" {extra}>{escape(content)}</text>'


def number(value: float) -> str:
    """As people write it: 1e-4, 0.05, 128, 1.5M."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.4g}M"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    if 0 < size < 1e-3:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{value:.4g}"


def words(value: object) -> str:
    """A value of a setting as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return ", ".join(map(words, value)) if isinstance(value, list | tuple) else str(value)


def _nice(step: float) -> float:
    """The next number of the form 1, 2, 2.5 or 5 times a power of ten."""
    if not step > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


#: How trials in a state are marked; drawn in this order, so that those that matter are on top.
LOOKS: Mapping[State, str] = {
    "stopped": "cross",
    "waiting": "diamond",
    "paused": "diamond",
    "running": "diamond",
    "failed": "plus",
    "complete": "dot",
}
#: Of more trials only some lines are drawn.
MOST_LINES = 400
#: Shades of values, the best first.
SHADES = 8
_GOLDEN = 0.618034


def history(view: StudyView) -> str:
    """Last value of every trial in the order of their numbers, and the best so far."""
    name = view.objectives[0]
    values = {trial: told[0] for trial, told in view.values.items()}
    chart = Chart(Axis("trial", -0.5, max(len(view.trials) - 0.5, 0.5)), value_axis(name, values.values()))
    _mark_states(chart, view, {trial: (float(trial), value) for trial, value in values.items()})
    chart.line(_best_so_far(view), "best-line", steps=True)
    _ring_best(chart, view, {trial: (float(trial), value) for trial, value in values.items()})
    return chart.svg(f"{name} of every trial, and the best so far", _link(chart, "number", "o0"))


def slices(view: StudyView) -> list[tuple[str, str]]:
    """For every parameter, values against it: its name, and the drawing."""
    return [(p.name, _slice(view, p, index)) for index, p in enumerate(view.folder.space.parameters)]


def _slice(view: StudyView, parameter: Parameter, index: int) -> str:
    objective = view.objectives[0]
    values = value_axis(objective, (told[0] for told in view.values.values()))
    chart = Chart(parameter_axis(parameter), values, size=(420, 270))
    points = {}
    for trial, x in enumerate(view.coordinates[index]):
        if x is not None and trial in view.values:
            points[trial] = (x + spread(trial) if chart.x.options else x, view.values[trial][0])
    _mark_states(chart, view, points)
    _ring_best(chart, view, points)
    return chart.svg(f"{objective} against {parameter.name}", _link(chart, f"p{index}", "o0"))


def spread(trial: int) -> float:
    """Trials with the same word stand beside each other, each at a place of its own."""
    return (trial * _GOLDEN % 1 - 0.5) * 0.6


def curves(view: StudyView) -> str:
    """Values of trials at every rung that they came to."""
    name = view.objectives[0]
    told = [trial for trial in view.trials if any(math.isfinite(report.value) for report in trial.reports)]
    events = [report.resource for trial in told for report in trial.reports] or [1]
    low, high = min(events), max(events)
    x = Axis("events shown", low / 1.2, high * 1.2, True) if high > low else Axis("events shown", 0, 1.2 * high)
    chart = Chart(x, value_axis(name, (r.value for trial in told for r in trial.reports)))
    shown = some_of(told, MOST_LINES)
    for state, mark in LOOKS.items():
        lines = [_finite_reports(trial) for trial in shown if trial.state == state and trial is not view.best]
        chart.lines(lines, f"curve {state}{' many' if len(told) > MOST_LINES else ''}")
        chart.dots([line[-1] for line in lines if line], state, mark)
    if view.best:
        chart.line(_finite_reports(view.best), "curve the-best")
        chart.dots(_finite_reports(view.best), "the-best")
    return chart.svg(f"{name} at every rung, by trial")


def importance_bars(shares: Mapping[str, float]) -> str:
    """A bar for every parameter, the most important one first."""
    rows, label, width = 30, 210, 560
    most = max(shares.values(), default=0.0) or 1.0
    parts = []
    for row, (name, share) in enumerate(shares.items()):
        y, length = 8 + rows * row, (width - label - 62) * share / most
        parts.append(text(label - 8, y + 16, name, "tick end"))
        parts.append(f'<rect class="bar" x="{label}" y="{y}" width="{max(length, 1):.1f}" height="{rows - 9}" rx="2"/>')
        parts.append(text(label + length + 6, y + 16, f"{100 * share:.0f} %", "tick"))
    said = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
    return (
        f'<svg viewBox="0 0 {width} {rows * len(shares) + 12}" role="img" aria-label="Importances: {escape(said)}">'
        f"{''.join(parts)}</svg>"
    )


def pareto_plots(view: StudyView, front: Front) -> list[str]:
    """Every pair of neighbouring objectives: all trials, and the front."""
    found = []
    on_front = {trial.number for trial in front.trials}
    pairs = [*pairwise(range(len(view.objectives)))]
    for first, second in pairs:
        names = view.objectives[first], view.objectives[second]
        told = {trial: (row[first], row[second]) for trial, row in view.values.items() if all(map(math.isfinite, row))}
        across = value_axis(names[0], (point[0] for point in told.values()))
        chart = Chart(across, value_axis(names[1], (point[1] for point in told.values())))
        inside = {trial: point for trial, point in told.items() if point[0] <= chart.x.high}
        _mark_states(chart, view, inside)
        points = sorted(inside[trial] for trial in on_front & inside.keys())
        if len(view.objectives) == 2 and points:
            ends = [(points[0][0], chart.y.high), *points, (chart.x.high, points[-1][1])]
            chart.line(ends, "front-line", steps=True)
        chart.dots(points, "on-front", "dot")
        found.append(chart.svg(f"{names[1]} against {names[0]}", _link(chart, f"o{first}", f"o{second}")))
    return found


def some_of(trials: Sequence[TrialRecord], most: int) -> list[TrialRecord]:
    """Of many trials half of the places for those that got furthest and lowest, half for others, evenly spread."""
    if len(trials) <= most:
        return list(trials)
    ranked = sorted(trials, key=lambda trial: (-trial.resource, _or_infinite(trial.value)))
    rest = ranked[most // 2 :]
    return [*ranked[: most // 2], *(rest[index * len(rest) // (most - most // 2)] for index in range(most - most // 2))]


def shade_of(view: StudyView) -> dict[int, int]:
    """The shade of every trial that has a value, by its rank: 0 for the best ones."""
    ranked = sorted(view.values, key=lambda trial: view.values[trial][0])
    return {trial: SHADES * place // len(ranked) for place, trial in enumerate(ranked)}


def _mark_states(chart: Chart, view: StudyView, points: Mapping[int, tuple[float, float]]) -> None:
    many = len(points) > MANY
    by_state: dict[State, list[tuple[float, float]]] = {state: [] for state in LOOKS}
    for trial, point in points.items():
        by_state[view.trials[trial].state].append(point)
    for state, mark in LOOKS.items():
        chart.dots(by_state[state], f"{state} many" if many else state, "dot" if many else mark)


def _ring_best(chart: Chart, view: StudyView, points: Mapping[int, tuple[float, float]]) -> None:
    if view.best and view.best.number in points:
        x, y = chart.at(*points[view.best.number])
        chart.add(f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="7"/>')


def _best_so_far(view: StudyView) -> list[tuple[float, float]]:
    """Of those that count when the best is chosen; flat to the last trial."""
    told = [trial for trial in view.trials if trial.number in view.values]
    chosen = [trial for trial in told if trial.state == "complete"] or told
    line: list[tuple[float, float]] = []
    for trial in chosen:
        value = view.values[trial.number][0]
        if not line or value < line[-1][1]:
            line.append((float(trial.number), value))
    return [*line, (len(view.trials) - 0.5, line[-1][1])] if line else []


def _finite_reports(trial: TrialRecord) -> list[tuple[float, float]]:
    return [(float(report.resource), report.value) for report in trial.reports if math.isfinite(report.value)]


def _or_infinite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.inf


def _link(chart: Chart, x: str, y: str) -> dict[str, object]:
    return {
        "x": {"column": x, **chart.place_of(chart.x, across=True)},
        "y": {"column": y, **chart.place_of(chart.y, across=False)},
    }


_WIDTH = 1120
#: Lines of trials that go on, in the diagram of rungs; and trials up to which every one of them is labelled.
MOST_CLIMBS, _LABELLED = 300, 60
#: Trials drawn in parallel coordinates where nothing can be pointed at.
MOST_PARALLEL = 200
_TALLEST_TIMELINE = 460


def rung_diagram(view: StudyView) -> str:
    """A column per rung with its trials, the best on top; lines are trials that went on, as thick as they have processes."""
    columns = _columns(view)
    labelled = len(view.trials) <= _LABELLED
    tallest = max(400, 11 * len(columns[0]) * labelled)  # labels must not touch each other
    left, top, bottom = 40.0, 66.0, 66.0 + min(max(14 * len(columns[0]), 150), tallest)
    gap = (_WIDTH - 2 * left - 90) / max(len(columns) - 1, 1)
    place: dict[tuple[int, int], tuple[float, float]] = {}
    for index, column in enumerate(columns):
        for rank, trial in enumerate(column):
            y = top + (bottom - top) * (rank + 0.5) / len(column)
            place[index, trial.number] = (left + 45 + gap * index, y)
    parts = [_column_head(view, index, left + 45 + gap * index) for index in range(len(columns))]
    climbers = [trial for trial in view.trials if len(view.climbs[trial.number]) > 1]
    for trial in some_of(climbers, MOST_CLIMBS):
        parts += _climb(view, trial, place)
    fates: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for (index, trial_number), where in place.items():
        fates[_fate(view, view.trials[trial_number], index)].append(where)
    many = len(place) > MANY
    for (look, mark), places in fates.items():
        shape = "dot" if many else mark
        parts.append(marks(places, f"{shape} {look}{' many' if many else ''}", shape))
    if labelled:
        parts += [
            text(x - 9, y + 3.5, str(trial), "tiny end") for (index, trial), (x, y) in place.items() if index == 0
        ]
    alt = "; ".join(
        f"{len(column):,} trials at {rung:,} events" for column, rung in zip(columns, view.rungs, strict=True)
    )
    height = bottom + 12
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="Rungs: {alt}">{"".join(parts)}</svg>'


def _columns(view: StudyView) -> list[list[TrialRecord]]:
    """The trials that came to every rung, best first."""
    columns: list[list[tuple[float, TrialRecord]]] = [[] for _ in view.rungs]
    for trial in view.trials:
        for rung, report in view.climbs[trial.number].items():
            columns[rung].append((report.value if math.isfinite(report.value) else math.inf, trial))
    return [[trial for _, trial in sorted(column, key=lambda pair: pair[0])] for column in columns]


def _column_head(view: StudyView, index: int, x: float) -> str:
    came = [trial for trial in view.trials if index in view.climbs[trial.number]]
    last = [trial.state for trial in came if max(view.climbs[trial.number]) == index]
    ended, aside = last.count("stopped"), last.count("paused")
    said = f"{len(came):,} came"
    if index < len(view.rungs) - 1:
        said += f", {ended:,} stopped" if ended else ""
        said += f", {aside:,} put aside" if aside else ""
    anchor = "middle" if index < len(view.rungs) - 1 or index == 0 else "end"
    shift = 40 if anchor == "end" else 0
    return text(x + shift, 20, f"{view.rungs[index]:,} events", f"label {anchor}") + text(
        x + shift, 38, said, f"tick {anchor}"
    )


def _climb(view: StudyView, trial: TrialRecord, place: dict[tuple[int, int], tuple[float, float]]) -> list[str]:
    """The lines of a trial from rung to rung."""
    parts = []
    reports = view.climbs[trial.number]
    look = "the-best" if trial is view.best else trial.state
    for here, there in pairwise(sorted(reports)):
        (x, y), (to_x, to_y) = place[here, trial.number], place[there, trial.number]
        workers, middle = reports[there].workers, (x + to_x) / 2
        thick = 1.6 + 1.4 * math.log2(max(workers, 1))
        drawn = f"M{x:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
        name = f"trial {trial.number} on {workers} process{'es' if workers > 1 else ''}"
        parts.append(f'<path class="climb {look}" stroke-width="{thick:.1f}" d="{drawn}"><title>{name}</title></path>')
        if workers != reports[here].workers and len(view.trials) <= _LABELLED:
            grown = f"{reports[here].workers} → {workers}"
            parts.append(text(middle, (y + to_y) / 2 - thick / 2 - 3, grown, "tiny middle halo"))
    return parts


def _fate(view: StudyView, trial: TrialRecord, rung: int) -> tuple[str, str]:
    """Look and mark of a trial at a rung."""
    if trial is view.best:
        return "the-best", "dot"
    return trial.state, "dot" if rung < max(view.climbs[trial.number]) else LOOKS[trial.state]


def timeline(view: StudyView) -> str:
    """Processes from top to bottom, and which trials had them."""
    lanes, bars = view.bars()
    if not bars:
        return ""
    unit, name = next((u, n) for u, n in ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
                      if view.duration >= 2 * u or u == 1)  # fmt: skip
    size = (_WIDTH, 60 + min(max(22 * lanes, 80), _TALLEST_TIMELINE))
    chart = Chart(
        Axis(f"{name} since the beginning", 0, max(view.duration / unit, 1e-9)),
        Axis("process", lanes + 0.5, 0.5),
        size=size,
    )
    height = (chart.bottom - chart.top) / max(lanes, 1)
    drawn: dict[tuple[str, int], list[str]] = defaultdict(list)
    labels = []
    for bar in bars:
        look: str = "the-best" if bar.trial is view.best else bar.trial.state
        x, y = chart.at((bar.start - view.begin) / unit, bar.lane + 1 + (bar.lanes - 1) / 2)
        wide = chart.at((bar.end - view.begin) / unit, 1)[0] - x
        drawn[look, bar.lanes].append(f"M{x + 0.3:.1f} {y:.1f}h{max(wide - 0.6, 0.4):.1f}")
        if wide > 8 * len(str(bar.trial.number)) + 6 and height >= 12:
            labels.append(text(x + wide / 2, y + 4, str(bar.trial.number), "tiny middle on-bar"))
    for (kind, count), parts in drawn.items():
        thick = height * count - min(0.15 * height, 2.0)
        chart.add(f'<path class="span {kind}" stroke-width="{thick:.2f}" d="{"".join(parts)}"/>')
    chart.add("".join(labels))
    return chart.svg(f"{len(view.trials):,} trials on {lanes} processes over {view.duration / unit:.3g} {name}")


def cost_bars(view: StudyView) -> str:
    """Device-hours by rung, split by what became of the trials."""
    rows, label, width = 32, 150, 560
    totals = {rung: math.fsum(by_state.values()) for rung, by_state in view.costs.items()}
    most = max(totals.values(), default=0.0) or 1.0
    parts = []
    for row, (rung, by_state) in enumerate(view.costs.items()):
        y, x = 8 + rows * row, float(label)
        parts.append(text(label - 8, y + 16, f"to {view.rungs[rung]:,} events", "tick end"))
        for state in STATES:
            length = (width - label - 80) * by_state.get(state, 0.0) / most
            if length > 0:
                parts.append(
                    f'<rect class="cost {state}" x="{x:.1f}" y="{y}" width="{length:.1f}" height="{rows - 10}">'
                    f"<title>{state}: {by_state[state] / 3600:.3g} device-hours</title></rect>"
                )
            x += length
        parts.append(text(x + 6, y + 16, f"{totals[rung] / 3600:.3g} h", "tick"))
    return (
        f'<svg viewBox="0 0 {width} {rows * len(totals) + 12}" role="img" aria-label="Device-hours by rung">'
        f"{''.join(parts)}</svg>"
    )


def parallel(view: StudyView) -> str:
    """An axis per parameter and one per objective; every trial is a line, the better the darker."""
    axes = [parameter_axis(parameter) for parameter in view.folder.space.parameters]
    for index, name in enumerate(view.objectives):
        told = (row[index] for row in view.values.values())
        axes.append(value_axis(name, (value for value in told if math.isfinite(value))))
    gap, top, bottom = max(_WIDTH // len(axes), 96), 46, 352
    places = [gap // 2 + gap * index for index in range(len(axes))]
    parts, link = [], []
    for index, (axis, x) in enumerate(zip(axes, places, strict=True)):
        parts.append(_parallel_axis(axis, x, top, bottom, gap))
        inputs = len(view.folder.space.parameters)
        column = f"p{index}" if index < inputs else f"o{index - inputs}"
        ends = {
            "low": axis.low,
            "high": axis.high,
            "log": axis.log,
            "from": bottom,
            "to": top,
            "words": bool(axis.options),
        }
        link.append({"column": column, "name": axis.label, "at": x, **ends})
    lines = _parallel_lines(view, axes, places, top, bottom)
    width = gap * len(axes)
    data = escape(json.dumps(link), quote=True)
    return (
        f'<svg viewBox="0 0 {width} {bottom + 30}" role="img" aria-label="Settings and values of trials" data-axes=\'{data}\'>'
        f'<g class="still">{lines}</g>{"".join(parts)}</svg>'
    )


def _parallel_axis(axis: Axis, x: int, top: int, bottom: int, gap: int) -> str:
    parts = [f'<path class="frame" d="M{x} {top}V{bottom}"/>']
    *section, last = axis.label.split(".")
    parts.append(text(x, top - 14, _shortened(last, gap), "label middle", ""))
    if section:
        parts.append(text(x, top - 30, _shortened(".".join(section), gap), "tiny middle", ""))
    for value, name in axis.ticks(5):
        place = axis.place(value)
        if -0.001 <= place <= 1.001:
            y = bottom - place * (bottom - top)
            parts.append(f'<path class="frame" d="M{x - 4} {y:.1f}h4"/>')
            parts.append(text(x - 7, y + 4, _shortened(name, gap), "tick end halo"))
    return f"<g><title>{escape(axis.label)}{' (logarithmic)' if axis.log else ''}</title>{''.join(parts)}</g>"


def _shortened(name: str, gap: int) -> str:
    most = max(gap // 8, 6)
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _parallel_lines(view: StudyView, axes: list[Axis], places: list[int], top: int, bottom: int) -> str:
    """The best trials, broken where a parameter is not active. The worst are drawn first."""
    shades, drawn = shade_of(view), defaultdict(list)
    ranked = sorted(shades, key=lambda trial: view.values[trial][0])[:MOST_PARALLEL]
    for trial in reversed(ranked):
        row = [column[trial] for column in view.coordinates]
        words, pen = [], "M"
        for axis, x, value in zip(axes, places, [*row, *view.values[trial]], strict=True):
            if value is None or math.isnan(value):
                pen = "M"
                continue
            y = bottom - min(axis.place(value), 1.0) * (bottom - top)
            words.append(f"{pen}{x} {y:.1f}")
            pen = "L"
        drawn[shades[trial]].append("".join(words))
    return "".join(
        f'<path class="strand v{s}" d="{"".join(drawn[s])}"/>' for s in reversed(range(SHADES)) if s in drawn
    )


def hours(seconds: float) -> str:
    """Device-hours as people write them."""
    return number(seconds / 3600) if seconds < 3.6e7 else f"{seconds / 3600:,.0f}"
