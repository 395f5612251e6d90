"""The page of `ringflow scaling-model`: one HTML file that needs nothing else, the figures beside it, and the numbers as JSON.

- `index.html`: what is predicted, figures, table, comparison with a measurement, and everything that was assumed
- `figures/<figure>.png` and `.svg`
- `prediction.json`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ringflow.evaluate import page
from ringflow.evaluate.page import Picture
from ringflow.evaluate.plots.style import Look, legend, legend_height, panels, styled

_TEMPLATE = Path(__file__).parent / "templates" / "scaling.html.j2"

Row = Mapping[str, Any]
Rows = Sequence[Row]

LOOKS: Mapping[str, Look] = {
    "ring": Look("ring", "#0072B2", "o", "-"),
    "hierarchical": Look("ring of nodes", "#009E73", "^", (0, (5, 2))),
    "tree": Look("tree of nodes", "#D55E00", "D", (0, (7, 1.5, 1.5, 1.5))),
    "server": Look("parameter server", "#CC79A7", "v", (0, (1, 1.2))),
}
_IDEAL = Look("ideal", "#595959", "", (0, (2, 2)))
#: Parts of a step: what they are called, their colour, and what tells them apart without it.
PARTS: Mapping[str, tuple[str, str, str]] = {
    "compute": ("computation", "#56B4E9", ""),
    "communication": ("communication", "#D55E00", "//"),
    "waiting": ("slowest device", "#E69F00", ".."),
    "data": ("data", "#999999", "xx"),
    "checkpoint": ("checkpoints", "#009E73", "\\\\"),
    "lost": ("failures", "#CC79A7", "++"),
}
#: What beside the computation costs time, in words.
_LOSSES = {
    "communication": "adding up the gradients",
    "waiting": "waiting for the slowest device",
    "data": "waiting for data",
    "checkpoint": "checkpoints",
    "lost": "failures",
}


def write_page(result: Mapping[str, Any], out: Path) -> Path:
    """Write the page, the figures and the numbers into a folder; the path of the page."""
    ways = by_algorithm(result["rows"])
    own = ways[result["algorithm"]]
    worst = max(_LOSSES, key=lambda name: float(own[-1][name]))
    return page.write_page(
        out,
        _TEMPLATE,
        _pictures(result),
        result,
        "prediction.json",
        hardware=result["settings"]["hardware"],
        own=own,
        last=own[-1],
        others=[rows[-1] for rows in ways.values()],
        looks=LOOKS,
        parts=PARTS,
        weak=result["settings"]["work"]["global_batch"] == "grows",
        lost=_LOSSES[worst] if own[-1][worst] > 0.0 else "",
        finite=math.isfinite,
        in_words=in_words,
    )


def in_words(number: float) -> str:
    """A large number as people say it."""
    for unit, word in ((1e9, " billion"), (1e6, " million")):
        if number >= unit:
            return f"{number / unit:.3g}{word}"
    return f"{number:,.0f}"


def by_algorithm(rows: Rows) -> dict[str, Rows]:
    """The rows of each way of adding up."""
    return {name: found for name in LOOKS if (found := [row for row in rows if row["algorithm"] == name])}


def _pictures(result: Mapping[str, Any]) -> dict[str, Picture]:
    rows = [row for row in result["rows"] if math.isfinite(row["step_seconds"])]
    own = [row for row in rows if row["algorithm"] == result["algorithm"]]
    fixed = result["settings"]["work"]["global_batch"] == "fixed"
    found: dict[str, Picture] = {
        "throughput": (
            "Throughput",
            "Events per second of all devices, by how their gradients are added up. Dashed grey: as many times one device.",
            lambda: _throughput(rows),
        ),
        "efficiency": (
            "Efficiency",
            "Throughput against that of one device times their number.",
            lambda: _efficiency(rows),
        ),
        "split": (
            "Where the time of a step goes",
            f"By number of devices, with gradients added up by a {LOOKS[result['algorithm']].name}. Communication is what does "
            "not hide behind the computation; checkpoints and failures are shared out over all steps.",
            lambda: _split(own, shares=fixed),
        ),
    }
    if max(row["devices"] for row in own) > 1:
        found["communication"] = (
            "All-reduce and parameter server",
            "Time to add up the gradients once, nothing hidden. Rings and trees move 2(N-1)/N of the gradient per device; a "
            "ring needs 2(N-1) messages one after the other, a tree of nodes 2 log2 of their number. A parameter server "
            "moves 2N gradients through one place.",
            lambda: _communication(rows),
        )
    if result["check"]:
        found["check"] = (
            "The model against a measurement",
            "Processes on one machine. The model is told the step of one process, how much processes that train apart slow "
            "each other down, and how long sums take alone.",
            lambda: _check(result["check"]),
        )
    return found


@styled
def _throughput(rows: Rows) -> Figure:
    figure, axes = _by_devices(rows, "events per second", lambda row: float(row["events_per_second"]), _IDEAL)
    first, ends = rows[0], [row["devices"] for row in rows]
    alone = first["events_per_second"] / first["efficiency"] / first["devices"]
    axes.plot([min(ends), max(ends)], [alone * min(ends), alone * max(ends)], color=_IDEAL.color, linestyle=_IDEAL.line)
    axes.set_yscale("log")
    return figure


@styled
def _efficiency(rows: Rows) -> Figure:
    figure, axes = _by_devices(rows, "efficiency", lambda row: float(row["efficiency"]))
    axes.axhline(1.0, color=_IDEAL.color, linestyle=_IDEAL.line, linewidth=1.2)
    axes.set_ylim(0.0, 1.06)
    return figure


@styled
def _communication(rows: Rows) -> Figure:
    """Hidden communication counted, beside the computation."""
    several = [row for row in rows if row["devices"] > 1]
    figure, axes = _by_devices(
        several, "adding up the gradients [ms]", lambda row: 1e3 * (row["communication"] + row["hidden"])
    )
    places, values = zip(
        *((row["devices"], 1e3 * row["compute"]) for row in next(iter(by_algorithm(several).values()))), strict=True
    )
    axes.plot(places, values, color="#595959", linewidth=1.3)
    axes.annotate("computation", (places[0], values[0]), (0, 4), textcoords="offset points", color="#595959")
    axes.set_yscale("log")
    return figure


def _by_devices(
    rows: Rows, label: str, value: Callable[[Row], float], other: Look | None = None
) -> tuple[Figure, Axes]:
    """A line per way of adding up, against devices."""
    chosen = {name: LOOKS[name] for name in by_algorithm(rows)} | ({other.name: other} if other else {})
    figure, (axes,) = panels([3.6], top=legend_height(chosen))
    legend(axes, chosen, points=True)
    for name, found in by_algorithm(rows).items():
        look, places = LOOKS[name], [row["devices"] for row in found]
        values = [value(row) for row in found]
        axes.plot(places, values, color=look.color, linestyle=look.line, marker=look.marker, markersize=4.5)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=14))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: _short(number) if number >= 1 else ""))
    axes.set_xlabel("devices")
    axes.set_ylabel(label)
    return figure, axes


@styled
def _split(rows: Rows, *, shares: bool) -> Figure:
    """In milliseconds or in shares: all of a step, and below what is not computation."""
    shown = [name for name in PARTS if any(row[name] > 0.0 for row in rows)]
    figure, (whole, beside) = panels([2.3, 2.0], top=0.2 + 0.24 * -(-len(shown) // 3))
    places = range(len(rows))
    for axes, names in ((whole, shown), (beside, shown[1:])):
        bottom = [0.0] * len(rows)
        for name in names:
            label, color, hatch = PARTS[name]
            values = [row[name] * (100.0 / row["step_seconds"] if shares else 1e3) for row in rows]
            looks: dict[str, Any] = {"color": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4}
            axes.bar(places, values, 0.74, bottom, label=label, **looks)
            bottom = [below + value for below, value in zip(bottom, values, strict=True)]
        axes.grid(axis="x", visible=False)
        axes.set_ylim(0.0, max(*bottom, 1e-9) * (1.0 if shares else 1.06))
    unit = "%" if shares else "ms"
    whole.set_ylabel(f"{'share' if shares else 'time'} of a step [{unit}]")
    beside.set_ylabel(f"beside the\ncomputation [{unit}]")
    beside.set_xticks(list(places), [_short(row["devices"]) for row in rows])
    beside.set_xlabel("devices")
    above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "borderaxespad": 0.15}
    whole.legend(ncols=3, fontsize=10.5, columnspacing=1.2, **above)
    return figure


@styled
def _check(rows: Rows) -> Figure:
    figure, (axes,) = panels([2.9], top=0.5)
    for name, offset, color, hatch in (("measured", -0.19, "#56B4E9", ""), ("predicted", 0.19, "#D55E00", "//")):
        values = [row[f"{name}_events_per_second"] for row in rows]
        places = [place + offset for place in range(len(rows))]
        bars = axes.bar(places, values, width=0.36, color=color, hatch=hatch, edgecolor="white", label=name)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=11)
    axes.set_xticks(range(len(rows)), [f"{row['workers']} processes" for row in rows])
    axes.set_xlim(-0.9, len(rows) - 0.1)
    axes.set_ylabel("events per second")
    axes.margins(y=0.12)
    axes.grid(axis="x", visible=False)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=2, borderaxespad=0.15)
    return figure


def _short(number: float) -> str:
    """A number of devices that fits under an axis."""
    return f"{number / 1024:.0f}k" if number >= 1024 and number % 1024 == 0 else f"{number:.0f}"
