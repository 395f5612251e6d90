"""Figures of a training's profile: what the time of its steps went into, rank by rank and step after step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ringflow.evaluate.plots.style import panels, styled
from ringflow.train.profile.table import KINDS, Floats, StepTable

#: Colours of Okabe and Ito; what holds a rank up is hatched too.
COLORS: Mapping[str, str] = {
    "data": "#E69F00",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "communication": "#D55E00",
    "optimizer": "#009E73",
    "idle": "#DADADA",
    "other": "#8A8A8A",
}
_HATCHES = {"communication": "///", "idle": "..."}
_LINES = {"communication": (0, (5, 1.5)), "idle": (0, (1, 1)), "other": (0, (3, 1, 1, 1))}
#: Ranks with a curve, and a number in their bar.
_MOST_RANKS = 8
_MOST_LABELS = 16
_MOST_POINTS = 150
_RANK_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#595959", "#8C564B")


@styled
def phase_bars(table: StepTable) -> Figure:
    """Mean time of a step per rank, by phase."""
    ranks = table.num_ranks
    figure, (axes,) = panels([min(0.9 + 0.42 * ranks, 6.0)], top=0.66)
    left, places = np.zeros(ranks), np.arange(ranks)
    total = float(table["step_ms"].mean())
    for kind in KINDS:
        width = table[f"{kind}_ms"].mean(axis=0)
        axes.barh(
            places, width, left=left, height=0.74, color=COLORS[kind], hatch=_HATCHES.get(kind), edgecolor="white",
            linewidth=0.6,
        )  # fmt: skip
        for rank in np.flatnonzero(width > 0.055 * total).tolist() if ranks <= _MOST_LABELS else ():
            _write_share(axes, kind, left[rank] + width[rank] / 2, rank, width[rank] / table["step_ms"][:, rank].mean())
        left += width
    axes.set_yticks(places[:: -(-ranks // _MOST_LABELS)])
    axes.set_ylim(ranks - 0.4, -0.6)
    axes.set_xlim(0.0, 1.04 * float(left.max()))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("time per step [ms]")
    axes.set_ylabel("rank")
    handles = [Patch(facecolor=COLORS[kind], hatch=_HATCHES.get(kind), edgecolor="white", label=kind) for kind in KINDS]
    _legend(axes, handles)
    return figure


def _write_share(axes: Axes, kind: str, x: float, rank: int, share: float) -> None:
    box = {"boxstyle": "round,pad=0.15", "color": COLORS[kind], "linewidth": 0} if kind in _HATCHES else None
    color = "white" if kind in ("backward", "communication", "optimizer", "other") else "black"
    axes.text(x, rank, f"{100 * share:.0f} %", ha="center", va="center", fontsize=9, color=color, bbox=box)


@styled
def phase_history(table: StepTable) -> Figure:
    """Time per phase, the mean over ranks, step after step."""
    figure, (axes,) = panels([3.3], top=0.66)
    group = -(-table.num_steps // _MOST_POINTS)
    steps = _grouped(table["step"].mean(axis=1), group)
    for kind in KINDS:
        times = _grouped(table[f"{kind}_ms"].mean(axis=1), group)
        axes.plot(steps, times, linewidth=1.5, **_line(kind))
    axes.set_xlim(steps[0], max(steps[-1], steps[0] + 1))
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("step")
    axes.set_ylabel("time per step [ms]" if group == 1 else f"median of {group} steps [ms]")
    _legend(axes, [Line2D([], [], label=kind, **_line(kind)) for kind in KINDS])
    return figure


@styled
def step_histogram(table: StepTable) -> Figure:
    """How long steps take, rank by rank; the slowest percent is in the last bin."""
    figure, (axes,) = panels([3.0], top=0.5)
    times = table["step_ms"]
    low, high = float(times.min()), float(np.quantile(times, 0.99))
    edges = np.linspace(0.98 * low, max(high, 1.02 * low) * 1.02, 1 + min(max(table.num_steps // 6, 8), 50)).tolist()
    shown = table.num_ranks if table.num_ranks <= _MOST_RANKS else 0
    for rank in range(shown):
        axes.hist(
            times[:, rank].clip(max=edges[-1]), edges, histtype="step", color=_RANK_COLORS[rank], linewidth=1.5,
            label=f"rank {rank}",
        )  # fmt: skip
    if not shown:
        axes.hist(times.ravel().clip(max=edges[-1]), edges, histtype="step", color="#0072B2", label="all ranks")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel("time per step [ms]")
    axes.set_ylabel("steps")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4, fontsize=10, borderaxespad=0.15)
    return figure


@styled
def lateness(table: StepTable) -> Figure:
    """How much later than the others each rank comes where all meet: the middle half of the steps, and nine of ten."""
    figure, (axes,) = panels([min(0.9 + 0.42 * table.num_ranks, 6.0)], top=0.2)
    late, places = table["late_ms"], np.arange(table.num_ranks)
    low, first, middle, third, high = np.quantile(late, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    axes.hlines(places, low, high, color="#D55E00", linewidth=1.4)
    axes.hlines(places, first, third, color="#D55E00", linewidth=7.0, alpha=0.55)
    axes.plot(middle, places, "|", color="black", markersize=13, markeredgewidth=1.6)
    axes.set_yticks(places[:: -(-table.num_ranks // _MOST_LABELS)])
    axes.set_ylim(table.num_ranks - 0.4, -0.6)
    axes.set_xlim(left=0.0, right=max(1.08 * float(high.max()), 0.02 * float(np.median(table["step_ms"]))))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("later than the others, per step [ms]")
    axes.set_ylabel("rank")
    return figure


def _grouped(values: Floats, group: int) -> Floats:
    """Medians of so many values each; what does not fill a group at the end goes into the last one."""
    whole = max(len(values) // group, 1)
    parts = [values[part * group : (part + 1) * group] for part in range(whole - 1)] + [values[(whole - 1) * group :]]
    return np.asarray([np.median(part) for part in parts])


def _line(kind: str) -> dict[str, Any]:
    """How the curve of a phase looks; grey lines need more ink than grey areas."""
    return {"color": "#9A9A9A" if kind == "idle" else COLORS[kind], "linestyle": _LINES.get(kind, "-")}


def _legend(axes: Axes, handles: Sequence[Artist]) -> None:
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4, fontsize=10, borderaxespad=0.15,
        columnspacing=1.2, handlelength=1.9, labelspacing=0.35,
    )  # fmt: skip
