"""What the table of a profile comes to: `summary.json`, who is waited for, and `report.html`, which needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ringflow.base.page import Shown, inline, render
from ringflow.base.rundir import write_atomic
from ringflow.base.words import size_in_words
from ringflow.evaluate.plots import panels, png, styled
from ringflow.train.profile import COLUMNS, KINDS, STEPS_FILE, WARMUP_STEPS

PAGE_FILE, SUMMARY_FILE = "report.html", "summary.json"
_TEMPLATE = Path(__file__).parent / "templates" / "profile.html.j2"
#: Steps from which a straggler can be told; share of a step by which it is late; standard deviations by which it is the last
#: one more often than chance would have it; what a rank does by itself, where a straggler loses its time.
_FEWEST_STEPS, _MATTERS, _SIGNIFICANT = 10, 0.02, 4.0
_WORK = tuple(kind for kind in KINDS if kind not in ("communication", "idle"))

#: Columns by name, each an array of steps by ranks.
StepTable = Mapping[str, NDArray[np.float64]]


def read_table(path: Path) -> StepTable:
    """The table of all steps."""
    from pyarrow.csv import read_csv

    lines = read_csv(path)
    ranks = int(np.max(lines["rank"])) + 1
    return {name: lines[name].cast("float64").to_numpy().reshape(-1, ranks) for name in COLUMNS}


def write_report(folder: Path, facts: Mapping[str, Any]) -> list[str]:
    """Write the summary and the page of a profile; what to say of it."""
    table = read_table(folder / STEPS_FILE)
    summary = summarize(table, facts)
    write_atomic(folder / SUMMARY_FILE, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    drawn = [figure for figure in _FIGURES if figure[2] is not _lateness or summary["processes"] > 1]
    page = render(
        _TEMPLATE,
        summary=summary,
        mean={name: np.mean([rank[name] or 0.0 for rank in summary["ranks"]]) for name in summary["ranks"][0]},
        kinds=KINDS,
        colors=_COLORS,
        images=[Shown(title, caption, inline(png(draw(_steady(table))))) for title, caption, draw in drawn],
        size=size_in_words,
    )
    write_atomic(folder / PAGE_FILE, page)
    return [*(one["text"] for one in summary["stragglers"]), f"profile: {folder / PAGE_FILE}"]


def _steady(table: StepTable) -> StepTable:
    """The steps after the warm-up, where enough remain."""
    first = WARMUP_STEPS if len(table["step"]) >= 4 * WARMUP_STEPS else 0
    return {name: column[first:] for name, column in table.items()}


def summarize(table: StepTable, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Means per rank, bytes against the ring, and who is waited for."""
    counted = _steady(table)
    processes, size = facts["processes"], facts["gradient_bytes"]
    # A ring all-reduce sends, and receives, 2(N-1)K/N bytes per rank.
    ring = None if size is None else 2.0 * (processes - 1) * size / processes
    span_ms = float((table["start_ms"] + table["step_ms"]).max() - table["start_ms"].min())
    return {
        **{name: value for name, value in facts.items() if name != "handing_in_seconds"},
        "steps": len(table["step"]),
        "warmup_steps_left_out": len(table["step"]) - len(counted["step"]),
        "events_per_second": 1e3 * float(table["events"][:, 0].sum()) / float(table["step_ms"][:, 0].sum()),
        "ring_bytes_per_step": ring,
        "stragglers": stragglers(counted),
        "ranks": [_rank(counted, rank, ring) for rank in range(processes)],
        "handing_in_share": 1e3 * facts["handing_in_seconds"] / span_ms,
    }


def _rank(table: StepTable, rank: int, ring: float | None) -> dict[str, Any]:
    of = {name: column[:, rank] for name, column in table.items()}
    step = of["step_ms"]
    means = {name: float(of[name].mean()) for name in COLUMNS if name.endswith("_ms") and name != "start_ms"}
    found: dict[str, Any] = {
        "rank": rank,
        "step_ms_median": float(np.median(step)),
        "step_ms_95_percent": float(np.quantile(step, 0.95)),
        **means,
        **{f"{kind}_share": float(of[f"{kind}_ms"].sum() / step.sum()) for kind in KINDS},
    }
    for name in ("sent", "received"):
        mean = float(of[f"{name}_bytes"].mean())
        over = {f"{name}_bytes": mean, f"{name}_over_ring": mean / ring if ring else None}
        found |= dict.fromkeys(over) if np.isnan(mean) else over
    return found


def stragglers(table: StepTable) -> list[dict[str, Any]]:
    """Ranks that are waited for, the worst first: only where chance does not explain it and it costs something."""
    late, typical = table["late_ms"], float(np.median(table["step_ms"]))
    steps, ranks = late.shape
    if ranks == 1 or steps < _FEWEST_STEPS:
        return []
    found = []
    for rank in range(ranks):
        is_late = (late[:, rank] > _MATTERS * typical) & (late.argmax(axis=1) == rank)
        chance = 1.0 / ranks + _SIGNIFICANT * sqrt((1.0 - 1.0 / ranks) / ranks / steps)
        if is_late.mean() <= chance or late[:, rank].mean() < _MATTERS * typical:
            continue
        others = {name: np.delete(column, rank, axis=1) for name, column in table.items()}
        excess = {  # what it took longer than the middle one of the others
            kind: float((table[f"{kind}_ms"][:, rank] - np.median(others[f"{kind}_ms"], axis=1)).mean())
            for kind in _WORK
        }
        slower_in = max(excess, key=lambda kind: excess[kind])
        one: dict[str, Any] = {
            "rank": rank,
            "share": float(is_late.mean()),
            "late_ms": float(late[is_late, rank].mean()),
            "others_wait": float(others["idle_ms"].sum() / others["step_ms"].sum()),
            "slower_in": slower_in,
            "slower_ms": excess[slower_in],
        }
        text = (
            "rank {rank} is late in {share:.0%} of the steps, by {late_ms:.3g} ms on average; the others wait "
            "{others_wait:.0%} of the time. Per step it needs {slower_ms:.3g} ms more than they for '{slower_in}'"
        )
        found.append({**one, "text": text.format(**one).replace("%", " %")})
    return sorted(found, key=lambda one: -one["share"] * one["late_ms"])


#: Colours of Okabe and Ito; what holds a rank up is hatched too.
_COLORS = dict(zip(KINDS, ("#E69F00", "#56B4E9", "#0072B2", "#D55E00", "#009E73", "#DADADA", "#8A8A8A"), strict=True))
_HATCHES = {"communication": "///", "idle": "..."}
_LINES = {"communication": "--", "idle": ":", "other": "-."}
#: Ranks that have a name, or a curve, of their own; points of a curve.
_MOST_NAMED, _MOST_CURVES, _MOST_POINTS = 16, 7, 150


@styled
def _phase_bars(table: StepTable) -> Figure:
    figure, axes, ranks = _by_rank(table, "time per step [ms]", top=0.66)
    left = np.zeros(len(ranks))
    for kind in KINDS:
        width = table[f"{kind}_ms"].mean(axis=0)
        look: dict[str, Any] = {"color": _COLORS[kind], "hatch": _HATCHES.get(kind), "edgecolor": "white"}
        axes.barh(ranks, width, left=left, height=0.74, linewidth=0.6, label=kind, **look)
        left += width
    _legend(axes)
    return figure


@styled
def _lateness(table: StepTable) -> Figure:
    figure, axes, ranks = _by_rank(table, "later than the others, per step [ms]", top=0.2)
    axes.boxplot(
        table["late_ms"], positions=ranks, orientation="horizontal", whis=(5, 95), showfliers=False, manage_ticks=False
    )
    axes.set_xlim(0.0, max(axes.get_xlim()[1], 0.02 * float(np.median(table["step_ms"]))))
    return figure


@styled
def _phase_history(table: StepTable) -> Figure:
    figure, (axes,) = panels([3.3], top=0.66)
    groups = np.array_split(np.arange(len(table["step"])), min(len(table["step"]), _MOST_POINTS))
    for kind in KINDS:
        mean = table[f"{kind}_ms"].mean(axis=1)
        color = "#9A9A9A" if kind == "idle" else _COLORS[kind]  # grey lines need more ink than grey areas
        steps, medians = ([np.median(values[group]) for group in groups] for values in (table["step"][:, 0], mean))
        axes.plot(steps, medians, linewidth=1.5, color=color, linestyle=_LINES.get(kind, "-"), label=kind)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("step")
    axes.set_ylabel("time per step [ms]")
    _legend(axes)
    return figure


@styled
def _step_histogram(table: StepTable) -> Figure:
    figure, (axes,) = panels([3.0], top=0.5)
    times = table["step_ms"]
    steps, ranks = times.shape
    high = float(np.quantile(times, 0.99))
    rows = {f"rank {rank}": times[:, rank] for rank in range(ranks)} if ranks <= _MOST_CURVES else {"all ranks": times}
    edges = np.linspace(0.98 * float(times.min()), 1.02 * high, 1 + min(max(steps // 6, 8), 50)).tolist()
    for (label, values), color in zip(rows.items(), _COLORS.values(), strict=False):
        axes.hist(values.ravel().clip(max=high), edges, histtype="step", color=color, linewidth=1.5, label=label)
    axes.set_xlabel("time per step [ms]")
    axes.set_ylabel("steps")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes)
    return figure


def _by_rank(table: StepTable, label: str, top: float) -> tuple[Figure, Axes, NDArray[np.int64]]:
    ranks = np.arange(table["rank"].shape[1])
    figure, (axes,) = panels([min(0.9 + 0.42 * len(ranks), 6.0)], top=top)
    axes.set_yticks(ranks[:: -(-len(ranks) // _MOST_NAMED)])
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    axes.set_ylabel("rank")
    return figure, axes, ranks


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4, fontsize=10, columnspacing=1.2)


#: Title, caption and drawing.
_FIGURES = (
    (
        "Where the time goes",
        "Mean time of a step per rank. Idle: waiting until the last rank is there. Communication: only what holds the step up, "
        "not what the backward hides. Other: everything that is in no phase.",
        _phase_bars,
    ),
    (
        "Who is waited for",
        "How much later than the others a rank comes to where all meet. Mark: half of the steps are below; box: the middle "
        "half of the steps; line: nine of ten.",
        _lateness,
    ),
    ("Step after step", "Time per phase, the mean over all ranks.", _phase_history),
    ("How long steps take", "The slowest percent is in the last bin.", _step_histogram),
)
