"""The page of a replay: one HTML file that needs nothing else, the figures beside it, and the numbers as JSON.

- `index.html`: what comes out, figures, tables, and everything that was assumed
- `figures/<figure>.png` and `.svg`
- `replay.json`
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from ringflow.evaluate import page
from ringflow.evaluate.page import Picture
from ringflow.evaluate.plots import Look, legend, legend_height, lines_by_devices, panels, styled
from ringflow.tune.replay import Replay
from ringflow.tune.replay.campaign import headline
from ringflow.tune.report import draw_lanes, lanes_of

_TEMPLATE = Path(__file__).parent / "templates" / "replay.html.j2"
#: Rows of devices that can be told apart in a figure, and schedulers that fit into it.
_MOST_DRAWN, _MOST_PANELS = 256, 4

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
#: By how many times the first devices a trial has: 1, up to 4, up to 16 ...
_SHADES = {
    "first size": "#a6cee3",
    "2-4 times": "#5aa5d6",
    "5-16 times": "#1f78b4",
    "17-64 times": "#0b4a7a",
    "more": "#06263f",
}
#: Between the smallest and the largest value of an axis that is not logarithmic.
_WIDE = 20.0
_LINES: tuple[Literal["-"] | tuple[float, tuple[float, ...]], ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
_ABOVE: dict[str, Any] = {
    "loc": "lower left",
    "bbox_to_anchor": (-0.01, 1.0),
    "borderaxespad": 0.15,
    "fontsize": 10.5,
}


def write_page(result: Mapping[str, Any], results: Mapping[tuple[str, int], Replay], out: Path) -> Path:
    """Write page, figures and numbers into a folder; the path of the page. `results` are those of one order of the trials."""
    decides: dict[tuple[str, int, float], dict[float, tuple[float, float]]] = {}
    for row in result["sensitivity"]:
        key = (row["scheduler"], row["trials_per_device"], row["penalty"])
        decides.setdefault(key, {})[row["hours"]] = (row["makespan"], row["equal_quality"])
    return page.write_page(
        out,
        _TEMPLATE,
        _pictures(result, results),
        result,
        "replay.json",
        title=headline(result),
        looks=LOOKS,
        hours=sorted({row["hours"] for row in result["sensitivity"]}),
        decides=sorted(decides.items()),
        superlinear=[row for row in result["scaling"] if row["over_linear"] > 1.005],
        finite=math.isfinite,
    )


def _pictures(result: Mapping[str, Any], results: Mapping[tuple[str, int], Replay]) -> dict[str, Picture]:
    devices = sorted({number for _, number in results})
    largest = {name: one for (name, number), one in results.items() if number == devices[-1] and one.best_over_time}
    found: dict[str, Picture] = {
        "makespan": (
            "Time and cost",
            "Hours of the whole study and device-hours of its trials, by number of devices.",
            lambda: _makespan(result["rows"]),
        ),
        "best": (
            "The best value over time",
            f"On {devices[-1]:,} devices, in one order of the trials. The mark is the end of the study.",
            lambda: _best_over_time(largest),
        ),
    }
    if devices[0] <= _MOST_DRAWN:
        few = [(name, one) for (name, number), one in results.items() if number == devices[0]][:_MOST_PANELS]
        found["devices"] = (
            "Who had which device",
            f"A row per device, of {devices[0]:,}. White is idle; the darker, the more devices a trial has.",
            lambda: _devices_over_time(dict(few)),
        )
    found["scaling"] = (
        "Scaling",
        f"A study of {result['scaling_trials']:,} trials. Above: speed-up over one device, by device; above 1 is better "
        "than linear. Below: what more devices save, because fewer networks are loaded again. In turns: all trials begin "
        f"together and make room for each other after {result['turn_seconds']:.3g} s, and to start again takes "
        f"{result['load_seconds']:g} s: few devices do it often.",
        lambda: _scaling(result["scaling"]),
    )
    if result["sensitivity"]:
        found["decides"] = (
            "What decides",
            f"How much sooner than ASHA there is a network as good, on {result['sensitivity'][0]['devices']:,} devices. "
            "Penalty 0: an event teaches as much in a larger batch. Penalty 1: only the number of steps counts.",
            lambda: _sensitivity(result["sensitivity"]),
        )
    return found


@styled
def _makespan(rows: Rows) -> Figure:
    hours = [{**row, "study_hours": row["makespan_seconds"] / 3600.0} for row in rows]
    labels = {"study_hours": "study [hours]", "device_hours": "device-hours"}
    figure, panes = lines_by_devices(hours, "scheduler", LOOKS, labels)
    for axes, key in zip(panes, labels, strict=True):
        values = [row[key] for row in hours]
        if max(values) > _WIDE * min(values):
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0.0, None)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    return figure


@styled
def _scaling(rows: Rows) -> Figure:
    labels = {"over_linear": "speed-up / devices", "device_hours_saved": "device-hours of one\n/ device-hours"}
    figure, panes = lines_by_devices(rows, "scheduler", LOOKS, labels)
    for axes in panes:
        axes.axhline(1.0, color="#595959", linewidth=1.0, linestyle=(0, (2, 2)))
    panes[0].set_ylim(0.0, None)
    return figure


@styled
def _best_over_time(results: Mapping[str, Replay]) -> Figure:
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
def _devices_over_time(results: Mapping[str, Replay]) -> Figure:
    """A row per device, darker where a trial has more of them than at first."""
    figure, panes = panels([1.7] * len(results), top=0.45)
    first = min(segment.workers for result in results.values() for segment in result.segments)
    words, shown = list(_SHADES), set()
    for axes, (name, result) in zip(panes, results.items(), strict=True):
        bars = []
        segments = ((one.start, one.end, one.workers, one.workers) for one in result.segments)
        for workers, start, end, lanes in lanes_of(segments):
            name_of_size = words[min(math.ceil(math.log2(workers / first) / 2), len(words) - 1)]
            shown.add(name_of_size)
            bars.append((_SHADES[name_of_size], start / 3600.0, end / 3600.0, lanes))
        draw_lanes(axes, bars)
        axes.set_ylim(0, result.devices)
        axes.set_ylabel(f"{LOOKS[name].name}\ndevices", fontsize=10)
    panes[-1].set_xlim(0.0, max(result.makespan for result in results.values()) / 3600.0)
    panes[-1].set_xlabel("hours since the beginning")
    handles = [Patch(color=shade, label=word) for word, shade in _SHADES.items() if word in shown]
    panes[0].legend(handles=handles, ncols=5, columnspacing=1.1, **_ABOVE)
    return figure


@styled
def _sensitivity(rows: Rows) -> Figure:
    """By hours of a trial; a panel per number of trials, a line per penalty."""
    chosen = {name: look for name, look in LOOKS.items() if any(row["scheduler"] == name for row in rows)}
    counts, penalties, hours = (sorted({row[key] for row in rows}) for key in ("trials_per_device", "penalty", "hours"))
    figure, panes = panels([2.2] * len(counts), top=0.75)
    for axes, count in zip(panes, counts, strict=True):
        for name, look in chosen.items():
            for penalty, line in zip(penalties, _LINES, strict=False):
                wanted = (name, count, penalty)
                found = [row for row in rows if (row["scheduler"], row["trials_per_device"], row["penalty"]) == wanted]
                places, values = [row["hours"] for row in found], [row["equal_quality"] for row in found]
                axes.plot(places, values, color=look.color, marker=look.marker, linestyle=line)
        axes.axhline(1.0, color="#595959", linewidth=1.0)
        axes.set_xscale("log")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_ylabel(f"faster than ASHA\n{count} trial{'s' if count > 1 else ''} per device", fontsize=11)
    last = panes[-1]
    last.set_xticks(hours, [f"{60 * hour:.0f} min" if hour < 1 else f"{hour:g} h" for hour in hours])
    last.xaxis.set_minor_locator(NullLocator())
    last.set_xlabel("a whole trial on one device")
    handles = [Line2D([], [], color=look.color, marker=look.marker, label=look.name) for look in chosen.values()]
    handles += [
        Line2D([], [], color="#333333", linestyle=line, label=f"penalty {penalty:g}")
        for penalty, line in zip(penalties, _LINES, strict=False)
    ]
    panes[0].legend(handles=handles, ncols=3, **_ABOVE)
    return figure
