"""Figures of a prediction: throughput, efficiency, where the time of a step goes, and ways of adding up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ringflow.evaluate.plots.style import Look, legend, legend_height, panels, styled

Rows = Sequence[Mapping[str, Any]]

LOOKS: Mapping[str, Look] = {
    "ring": Look("ring", "#0072B2", "o", "-"),
    "hierarchical": Look("ring of nodes", "#009E73", "^", (0, (5, 2))),
    "tree": Look("tree of nodes", "#D55E00", "D", (0, (7, 1.5, 1.5, 1.5))),
    "server": Look("parameter server", "#CC79A7", "v", (0, (1, 1.2))),
}
#: Parts of a step: what they are called, their colour, and what tells them apart without it.
PARTS: Mapping[str, tuple[str, str, str]] = {
    "compute": ("computation", "#56B4E9", ""),
    "communication": ("communication", "#D55E00", "//"),
    "waiting": ("slowest device", "#E69F00", ".."),
    "data": ("data", "#999999", "xx"),
    "checkpoint": ("checkpoints", "#009E73", "\\\\"),
    "lost": ("failures", "#CC79A7", "++"),
}
_IDEAL = Look("ideal", "#595959", "", (0, (2, 2)))


def by_algorithm(rows: Rows) -> dict[str, Rows]:
    """The rows of each way of adding up."""
    return {name: found for name in LOOKS if (found := [row for row in rows if row["algorithm"] == name])}


@styled
def throughput(rows: Rows) -> Figure:
    """Events per second against devices."""
    figure, axes = _figure(rows, "events per second", ideal=True)
    first = rows[0]
    ends = [row["devices"] for row in rows]
    alone = first["events_per_second"] / first["efficiency"] / first["devices"]
    axes.plot([min(ends), max(ends)], [alone * min(ends), alone * max(ends)], color=_IDEAL.color, linestyle=_IDEAL.line)
    _curves(axes, rows, lambda row: row["events_per_second"])
    axes.set_yscale("log")
    return figure


@styled
def efficiency(rows: Rows) -> Figure:
    """Throughput per device against that of one."""
    figure, axes = _figure(rows, "efficiency")
    axes.axhline(1.0, color=_IDEAL.color, linestyle=_IDEAL.line, linewidth=1.2)
    _curves(axes, rows, lambda row: row["efficiency"])
    axes.set_ylim(0.0, 1.06)
    return figure


@styled
def communication(rows: Rows) -> Figure:
    """Seconds to add up the gradients, hidden ones counted, beside the seconds of the computation."""
    several = [row for row in rows if row["devices"] > 1]
    figure, axes = _figure(several, "adding up the gradients [ms]")
    _curves(axes, several, lambda row: 1e3 * (row["communication"] + row["hidden"]))
    own = next(iter(by_algorithm(several).values()))
    axes.plot([row["devices"] for row in own], [1e3 * row["compute"] for row in own], color="#595959", linewidth=1.3)
    axes.annotate(
        "computation", (own[0]["devices"], 1e3 * own[0]["compute"]), (0, 4), textcoords="offset points", color="#595959"
    )
    axes.set_yscale("log")
    return figure


@styled
def split(rows: Rows, *, shares: bool) -> Figure:
    """Where the time of a step goes, in milliseconds or in shares: all of it, and below what is not computation."""
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
    whole.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3, borderaxespad=0.15, fontsize=10.5, columnspacing=1.2
    )
    return figure


@styled
def check(rows: Rows) -> Figure:
    """What was predicted for several processes, and what they did."""
    figure, (axes,) = panels([2.9], top=0.5)
    for offset, (name, color, hatch) in zip(
        (-0.19, 0.19), (("measured", "#56B4E9", ""), ("predicted", "#D55E00", "//")), strict=True
    ):
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


def _figure(rows: Rows, label: str, *, ideal: bool = False) -> tuple[Figure, Axes]:
    chosen = {name: LOOKS[name] for name in by_algorithm(rows)} | ({"ideal": _IDEAL} if ideal else {})
    figure, (axes,) = panels([3.6], top=legend_height(chosen))
    legend(axes, chosen, points=True)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=14))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value) if value >= 1 else ""))
    axes.set_xlabel("devices")
    axes.set_ylabel(label)
    return figure, axes


def _curves(axes: Axes, rows: Rows, value: Any) -> None:
    for name, found in by_algorithm(rows).items():
        look = LOOKS[name]
        places, values = [row["devices"] for row in found], [value(row) for row in found]
        axes.plot(places, values, color=look.color, linestyle=look.line, marker=look.marker, markersize=4.5)
