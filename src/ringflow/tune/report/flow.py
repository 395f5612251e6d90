"""Drawings of how a study went: who climbed which rung, who had which processes when, where the device-hours went, and
all settings of all trials side by side."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from html import escape
from itertools import pairwise

from ringflow.tune.record import TrialRecord
from ringflow.tune.report.chart import MANY, Axis, Chart, marks, number, parameter_axis, text, value_axis
from ringflow.tune.report.data import STATES, StudyView
from ringflow.tune.report.plots import LOOKS, SHADES, shade_of, some_of

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
