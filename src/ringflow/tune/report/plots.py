"""Drawings of a study: values over trials and settings, curves, importances, the front of several objectives.

Marks say what became of a trial: a dot lived to the end, a cross was stopped, a diamond goes on, a plus failed later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from ringflow.tune.best import Front
from ringflow.tune.record import State, TrialRecord
from ringflow.tune.report.chart import MANY, Axis, Chart, parameter_axis, text, value_axis
from ringflow.tune.report.data import StudyView
from ringflow.tune.space import Parameter

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
