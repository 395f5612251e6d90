"""Figures of a replay: time by devices, the best value over time, who had which device, scaling, and what decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from ringflow.evaluate.plots.style import Look, legend, legend_height, panels, styled
from ringflow.tune.replay.result import ReplayResult, Segment

Rows = Sequence[Mapping[str, Any]]

LOOKS: Mapping[str, Look] = {
    "asha": Look("ASHA", "#0072B2", "o", "-"),
    "rasda": Look("RASDA", "#D55E00", "D", (0, (7, 1.5, 1.5, 1.5))),
    "rasda-idle": Look("RASDA on idle devices", "#E69F00", "P", (0, (5, 2))),
    "hyperband": Look("Hyperband", "#009E73", "^", (0, (3, 1, 1, 1, 1, 1))),
    "halving": Look("successive halving", "#56B4E9", "X", (0, (9, 2))),
    "asha-promote": Look("ASHA with pauses", "#8C564B", "*", (0, (4, 4))),
    "none": Look("random search", "#595959", "s", (0, (1, 1.2))),
    "asha-in-turns": Look("ASHA, trials in turns", "#CC79A7", "v", (0, (2, 2))),
}
#: By how many devices a trial has against its first ones.
_SHADES = ("#a6cee3", "#5aa5d6", "#1f78b4", "#0b4a7a", "#06263f")
#: Between the smallest and the largest value of an axis that is not logarithmic.
_WIDE = 20.0
_LINES: tuple[Literal["-"] | tuple[float, tuple[float, ...]], ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))


def present(rows: Rows) -> dict[str, Look]:
    """The looks of the schedulers in rows."""
    names = {row["scheduler"] for row in rows}
    return {name: look for name, look in LOOKS.items() if name in names}


@styled
def makespan(rows: Rows) -> Figure:
    """Hours of the whole study, and device-hours, by number of devices."""
    chosen = present(rows)
    figure, (above, below) = panels([2.4, 2.0], top=legend_height(chosen))
    legend(above, chosen, points=True)
    _lines(above, rows, lambda row: row["makespan_seconds"] / 3600.0)
    _lines(below, rows, lambda row: row["device_hours"])
    for axes, key, label in (
        (above, "makespan_seconds", "study [hours]"),
        (below, "device_hours", "device-hours"),
    ):
        values = [row[key] for row in rows]
        if max(values) > _WIDE * min(values):
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0.0, None)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.set_ylabel(label)
    _device_axis(below)
    return figure


@styled
def best_over_time(results: Mapping[str, ReplayResult]) -> Figure:
    """The best value so far against time."""
    chosen = {name: LOOKS[name] for name in results}
    figure, (axes,) = panels([3.4], top=legend_height(chosen))
    legend(axes, chosen, points=False)
    for name, result in results.items():
        look = LOOKS[name]
        steps = dict(result.best_over_time) | {result.makespan: result.best}  # the last of those at the same time
        times, values = [time / 3600.0 for time in steps], list(steps.values())
        axes.step(times, values, where="post", color=look.color, linestyle=look.line)
        axes.plot(times[-1], values[-1], color=look.color, marker=look.marker)
    axes.set_xlim(0.0, None)
    axes.set_xlabel("hours since the beginning")
    axes.set_ylabel("best value")
    return figure


@styled
def devices_over_time(results: Mapping[str, ReplayResult], initial_workers: int) -> Figure:
    """Who had which device when: a row per device, darker where a trial has more of them."""
    figure, all_axes = panels([1.7] * len(results), top=0.45)
    shown: set[int] = set()
    for axes, (name, result) in zip(all_axes, results.items(), strict=True):
        shapes, shades = [], []
        for segment, lanes in lanes_of(result.segments, result.devices):
            shade = min(_growth(segment.workers, initial_workers), len(_SHADES) - 1)
            shown.add(shade)
            left, right = segment.start / 3600.0, segment.end / 3600.0
            for low, high in lanes:
                shapes.append([(left, low), (right, low), (right, high), (left, high)])
                shades.append(_SHADES[shade])
        axes.add_collection(PolyCollection(shapes, facecolors=shades, edgecolors="white", linewidths=0.25))
        axes.set_ylim(0, result.devices)
        axes.set_ylabel(f"{LOOKS[name].name}\ndevices", fontsize=10)
        axes.grid(visible=False)
    all_axes[-1].set_xlim(0.0, max(result.makespan for result in results.values()) / 3600.0)
    all_axes[-1].set_xlabel("hours since the beginning")
    words = {0: "first size", 1: "2-4 times", 2: "5-16 times", 3: "17-64 times", 4: "more"}
    all_axes[0].legend(
        handles=[Patch(color=_SHADES[shade], label=words[shade]) for shade in sorted(shown)],
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=5,
        borderaxespad=0.15,
        fontsize=10.5,
        columnspacing=1.1,
    )
    return figure


def _growth(workers: int, first: int) -> int:
    """0 for the first size, 1 up to four times, 2 up to sixteen times ..."""
    steps = 0
    while first * 4**steps < workers:
        steps += 1
    return steps


def lanes_of(segments: Sequence[Segment], devices: int) -> list[tuple[Segment, list[tuple[int, int]]]]:
    """Which devices each segment has, as ranges: the lowest that are free."""
    free = list(range(devices))
    taken: list[tuple[float, int, list[int]]] = []
    placed = []
    for number, segment in enumerate(sorted(segments, key=lambda segment: (segment.start, segment.end))):
        while taken and taken[0][0] <= segment.start:
            for lane in heappop(taken)[2]:
                heappush(free, lane)
        lanes = [heappop(free) for _ in range(segment.workers)]
        heappush(taken, (segment.end, number, lanes))
        placed.append((segment, _ranges(lanes)))
    return placed


def _ranges(lanes: Sequence[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for lane in lanes:  # in rising order
        if ranges and ranges[-1][1] == lane:
            ranges[-1] = (ranges[-1][0], lane + 1)
        else:
            ranges.append((lane, lane + 1))
    return ranges


@styled
def scaling(rows: Rows) -> Figure:
    """Time of one device over time of n devices times n; and device-hours of one over those of n."""
    chosen = present(rows)
    figure, (above, below) = panels([2.5, 1.9], top=legend_height(chosen))
    legend(above, chosen, points=True)
    _lines(above, rows, lambda row: row["over_linear"])
    _lines(below, rows, lambda row: row["device_hours_saved"])
    for axes, label in ((above, "speed-up / devices"), (below, "device-hours of one\n/ device-hours")):
        axes.axhline(1.0, color="#595959", linewidth=1.0, linestyle=(0, (2, 2)))
        axes.set_ylabel(label)
    above.set_ylim(0.0, None)
    _device_axis(below)
    return figure


@styled
def sensitivity(rows: Rows) -> Figure:
    """How much faster than ASHA, by hours of a trial; a panel per number of trials, a line per penalty."""
    chosen = present(rows)
    counts = sorted({row["trials_per_device"] for row in rows})
    penalties = sorted({row["penalty"] for row in rows})
    figure, all_axes = panels([2.2] * len(counts), top=0.75)
    for axes, count in zip(all_axes, counts, strict=True):
        for name, look in chosen.items():
            for penalty, line in zip(penalties, _LINES, strict=False):
                found = [
                    row
                    for row in rows
                    if (row["scheduler"], row["trials_per_device"], row["penalty"]) == (name, count, penalty)
                ]
                places, values = [row["hours"] for row in found], [row["equal_quality"] for row in found]
                axes.plot(places, values, color=look.color, marker=look.marker, linestyle=line)
        axes.axhline(1.0, color="#595959", linewidth=1.0)
        axes.set_xscale("log")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_ylabel(f"faster than ASHA\n{count} trial{'s' if count > 1 else ''} per device", fontsize=11)
    hours = sorted({row["hours"] for row in rows})
    all_axes[-1].set_xticks(hours, [f"{60 * hour:.0f} min" if hour < 1 else f"{hour:g} h" for hour in hours])
    all_axes[-1].xaxis.set_minor_locator(NullLocator())
    all_axes[-1].set_xlabel("a whole trial on one device")
    handles = [Line2D([], [], color=look.color, marker=look.marker, label=look.name) for look in chosen.values()]
    handles += [
        Line2D([], [], color="#333333", linestyle=line, label=f"penalty {penalty:g}")
        for penalty, line in zip(penalties, _LINES, strict=False)
    ]
    all_axes[0].legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3, borderaxespad=0.15, fontsize=10.5
    )
    return figure


def _lines(axes: Axes, rows: Rows, value: Any) -> None:
    for name, look in present(rows).items():
        found = [row for row in rows if row["scheduler"] == name]
        places, values = [row["devices"] for row in found], [value(row) for row in found]
        axes.plot(places, values, color=look.color, linestyle=look.line, marker=look.marker, markersize=5)


def _device_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=14))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else ""))
    axes.set_xlabel("devices")
