"""What the table of a profile comes to: `summary.json`, who is waited for, and `report.html`, which needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ringflow.base.errors import InputFileError
from ringflow.base.page import Shown, inline, render
from ringflow.base.rundir import write_atomic
from ringflow.base.words import size_in_words
from ringflow.evaluate.plots.style import panels, png, styled
from ringflow.train.profile import COLUMNS, KINDS, STEPS_FILE, WARMUP_STEPS, Circumstances

PAGE_FILE, SUMMARY_FILE = "report.html", "summary.json"
_TEMPLATE = Path(__file__).parent / "templates" / "profile.html.j2"
#: Steps from which a straggler can be told; share of a step by which it is late; standard deviations by which it is the last
#: one more often than chance would have it; what a rank does by itself, where a straggler loses its time.
_FEWEST_STEPS, _MATTERS, _SIGNIFICANT = 10, 0.02, 4.0
_WORK = tuple(kind for kind in KINDS if kind not in ("communication", "idle"))
_MEETS = "idle is what is waited where all ranks meet at the start and the end of a step."
_SEPARATED = {
    "replicate": "Sums of gradients are followed bucket by bucket: what of them the backward hides, how long the step then "
    "waits for slower ranks (idle), and how long for the sum itself (communication).",
    "shard": "Gathering layers and scattering gradients counts as communication, waiting for slower ranks there included; "
    + _MEETS,
    "tensor": f"Sums within layers count as communication, waiting for slower ranks there included; {_MEETS}",
    "pipeline": "Receiving from the neighbouring stage counts as communication, the bubble of the pipeline included; "
    + _MEETS,
}

Floats = NDArray[np.float64]
#: Columns by name, each an array of steps by ranks.
StepTable = Mapping[str, Floats]


def read_table(path: Path) -> StepTable:
    """The table of all steps."""
    from pyarrow.csv import read_csv

    try:
        lines = {name: np.asarray(column, np.float64) for name, column in read_csv(path).to_pydict().items()}
    except (ValueError, OSError) as error:
        raise InputFileError(f"{path} is no table of steps ({str(error).splitlines()[0]}); profile again") from None
    if tuple(lines) != COLUMNS or not len(lines["rank"]):
        raise InputFileError(f"{path} is no table of steps; profile again")
    ranks = int(np.max(lines["rank"])) + 1
    whole = len(lines["rank"]) // ranks * ranks
    return {name: np.asarray(lines[name][:whole], np.float64).reshape(-1, ranks) for name in COLUMNS}


def steady(table: StepTable) -> StepTable:
    """The steps after the warm-up, where enough remain."""
    first = WARMUP_STEPS if len(table["step"]) >= 4 * WARMUP_STEPS else 0
    return {name: column[first:] for name, column in table.items()}


def write_summary(folder: Path, circumstances: Circumstances, clock_error: int, seconds: float) -> list[str]:
    """Write the summary and the page of a profile, in which measuring took so long; what to say of it."""
    summary = summarize(read_table(folder / STEPS_FILE), circumstances, clock_error, seconds)
    write_atomic(folder / SUMMARY_FILE, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return [*(one["text"] for one in summary["stragglers"]), f"profile: {write_page(folder)}"]


def summarize(table: StepTable, circumstances: Circumstances, clock_error: int, seconds: float) -> dict[str, Any]:
    """Means per rank, bytes against the ring, and who is waited for."""
    counted = steady(table)
    processes, size = circumstances.processes, circumstances.gradient_bytes
    # A ring all-reduce sends, and receives, 2(N-1)K/N bytes per rank.
    ring = None if size is None else 2.0 * (processes - 1) * size / processes
    span_ms = float((table["start_ms"] + table["step_ms"]).max() - table["start_ms"].min())
    return {
        **circumstances._asdict(),
        "steps": len(table["step"]),
        "warmup_steps_left_out": len(table["step"]) - len(counted["step"]),
        "events_per_second": 1e3 * float(table["events"][:, 0].sum()) / float(table["step_ms"][:, 0].sum()),
        "ring_bytes_per_step": ring,
        "separated": _SEPARATED[circumstances.strategy] if processes > 1 else "",
        "stragglers": stragglers(counted),
        "ranks": [_rank(counted, rank, ring) for rank in range(counted["rank"].shape[1])],
        "clock_error_ms": clock_error / 1e6,
        "handing_in_share": 1e3 * seconds / span_ms,
    }


def _rank(table: StepTable, rank: int, ring: float | None) -> dict[str, Any]:
    of = {name: column[:, rank] for name, column in table.items()}
    step = of["step_ms"]
    means = {name: float(of[name].mean()) for name in (*(f"{kind}_ms" for kind in KINDS), "hidden_ms", "late_ms")}
    found: dict[str, Any] = {
        "rank": rank,
        "step_ms": float(step.mean()),
        "step_ms_median": float(np.median(step)),
        "step_ms_95_percent": float(np.quantile(step, 0.95)),
        **means,
        **{f"{kind}_share": float(of[f"{kind}_ms"].sum() / step.sum()) for kind in KINDS},
    }
    for name in ("sent", "received"):
        counts = of[f"{name}_bytes"]
        mean = None if np.isnan(counts).any() else float(counts.mean())
        found |= {f"{name}_bytes": mean, f"{name}_over_ring": mean / ring if mean is not None and ring else None}
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
        excess = {}  # what it took longer than the middle one of the others
        for kind in _WORK:
            own = table[f"{kind}_ms"][:, rank]
            excess[kind] = float((own - np.median(others[f"{kind}_ms"], axis=1)).mean())
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
            "rank {rank} is late in {percent:.0f} % of the steps, by {late_ms:.3g} ms on average; the others wait {wait:.0f} % "
            "of the time. Per step it needs {slower_ms:.3g} ms more than they for '{slower_in}'"
        )
        found.append({**one, "text": text.format(percent=100 * one["share"], wait=100 * one["others_wait"], **one)})
    return sorted(found, key=lambda one: -one["share"] * one["late_ms"])


def write_page(folder: Path) -> Path:
    """Make the page of a profile from its table and its summary; returns its path."""
    table = steady(read_table(folder / STEPS_FILE))
    summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
    drawn = [figure for figure in _FIGURES if figure[2] is not _lateness or summary["processes"] > 1]
    images = [Shown(title, caption, inline(png(draw(table)))) for title, caption, draw in drawn]
    page = folder / PAGE_FILE
    write_atomic(
        page,
        render(
            _TEMPLATE,
            summary=summary,
            headline=_headline(summary),
            sentences=_sentences(summary),
            kinds=KINDS,
            colors=_COLORS,
            images=images,
            size=size_in_words,
        ),
    )
    return page


def _mean(summary: Mapping[str, Any], name: str) -> float:
    """The mean of a value over ranks."""
    return float(np.mean([rank[name] for rank in summary["ranks"]]))


def _headline(summary: Mapping[str, Any]) -> str:
    if summary["stragglers"]:
        return f"The others wait for {' and '.join('rank {rank}'.format(**one) for one in summary['stragglers'])}"
    useful = sum(_mean(summary, f"{kind}_share") for kind in ("forward", "backward", "optimizer"))
    return f"A step takes {_mean(summary, 'step_ms'):.3g} ms, {100 * useful:.0f} % of it to compute"


def _sentences(summary: Mapping[str, Any]) -> list[str]:
    """What the numbers say."""
    share = {kind: _mean(summary, f"{kind}_share") for kind in KINDS}
    parts = ", ".join(f"{kind} {100 * share[kind]:.0f} %" for kind in sorted(KINDS, key=lambda kind: -share[kind]))
    said = [one["text"][0].upper() + one["text"][1:] + "." for one in summary["stragglers"]]
    said.append(f"A step takes {_mean(summary, 'step_ms'):.3g} ms on average: {parts}.")
    if summary["processes"] == 1:
        return said
    if not summary["stragglers"]:
        said.append("No rank is waited for markedly more often than the others.")
    if summary["gradient_bytes"] is not None:
        hidden, exposed = _mean(summary, "hidden_ms"), _mean(summary, "communication_ms")
        behind = f"{hidden:.3g} ms" if hidden >= 0.01 else "Nothing"
        said.append(f"{behind} of the communication is hidden behind the backward, {exposed:.3g} ms hold a step up.")
    if any(rank["sent_bytes"] is None for rank in summary["ranks"]):
        return [*said, f"Bytes are not counted: {summary['no_bytes_because']}."]
    sent, ring = _mean(summary, "sent_bytes"), summary["ring_bytes_per_step"]
    of_ring = (
        ""
        if ring is None
        else (
            f", {sent / ring:.3f} times the 2(N-1)K/N = {size_in_words(ring)} that a ring needs to add up "
            f"{size_in_words(summary['gradient_bytes'])} of gradients"
        )
    )
    return [*said, f"A rank sends {size_in_words(sent)} per step{of_ring}."]


#: Colours of Okabe and Ito; what holds a rank up is hatched too.
_COLORS = dict(zip(KINDS, ("#E69F00", "#56B4E9", "#0072B2", "#D55E00", "#009E73", "#DADADA", "#8A8A8A"), strict=True))
_HATCHES = {"communication": "///", "idle": "..."}
_LINES = {"communication": (0, (5, 1.5)), "idle": (0, (1, 1)), "other": (0, (3, 1, 1, 1))}
_RANK_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#595959", "#8C564B")
#: Ranks with a number in their bar, and points of a curve.
_MOST_LABELS, _MOST_POINTS = 16, 150


@styled
def _phase_bars(table: StepTable) -> Figure:
    ranks = table["rank"].shape[1]
    figure, axes = _by_rank(ranks, "time per step [ms]", top=0.66)
    left, step = np.zeros(ranks), table["step_ms"].mean(axis=0)
    for kind in KINDS:
        width = table[f"{kind}_ms"].mean(axis=0)
        look: dict[str, Any] = {"color": _COLORS[kind], "hatch": _HATCHES.get(kind)}
        axes.barh(np.arange(ranks), width, left=left, height=0.74, edgecolor="white", linewidth=0.6, **look)
        for rank in np.flatnonzero(width > 0.055 * step.mean()).tolist() if ranks <= _MOST_LABELS else ():
            box = {"boxstyle": "round,pad=0.15", "color": _COLORS[kind], "linewidth": 0} if kind in _HATCHES else None
            color = "white" if kind in ("backward", "communication", "optimizer", "other") else "black"
            place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "color": color, "bbox": box}
            axes.text(left[rank] + width[rank] / 2, rank, f"{100 * width[rank] / step[rank]:.0f} %", **place)
        left += width
    axes.set_xlim(0.0, 1.04 * float(left.max()))
    _legend(axes, [Patch(facecolor=_COLORS[k], hatch=_HATCHES.get(k), edgecolor="white", label=k) for k in KINDS])
    return figure


@styled
def _lateness(table: StepTable) -> Figure:
    figure, axes = _by_rank(table["rank"].shape[1], "later than the others, per step [ms]", top=0.2)
    places = np.arange(table["rank"].shape[1])
    low, first, middle, third, high = np.quantile(table["late_ms"], [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    axes.hlines(places, low, high, color="#D55E00", linewidth=1.4)
    axes.hlines(places, first, third, color="#D55E00", linewidth=7.0, alpha=0.55)
    axes.plot(middle, places, "|", color="black", markersize=13, markeredgewidth=1.6)
    axes.set_xlim(0.0, max(1.08 * float(high.max()), 0.02 * float(np.median(table["step_ms"]))))
    return figure


@styled
def _phase_history(table: StepTable) -> Figure:
    figure, (axes,) = panels([3.3], top=0.66)
    group = -(-len(table["step"]) // _MOST_POINTS)

    def medians(values: Floats) -> Floats:
        """Of so many steps each; what does not fill a group at the end goes into the last one."""
        cuts = np.arange(group, len(values) - group + 1, group)
        return np.asarray([np.median(part) for part in np.split(values, cuts)])

    steps = medians(table["step"].mean(axis=1))
    handles = []
    for kind in KINDS:
        # Grey lines need more ink than grey areas.
        look: dict[str, Any] = {
            "color": "#9A9A9A" if kind == "idle" else _COLORS[kind],
            "linestyle": _LINES.get(kind, "-"),
        }
        axes.plot(steps, medians(table[f"{kind}_ms"].mean(axis=1)), linewidth=1.5, **look)
        handles.append(Line2D([], [], label=kind, **look))
    axes.set_xlim(steps[0], max(steps[-1], steps[0] + 1))
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("step")
    axes.set_ylabel("time per step [ms]" if group == 1 else f"median of {group} steps [ms]")
    _legend(axes, handles)
    return figure


@styled
def _step_histogram(table: StepTable) -> Figure:
    figure, (axes,) = panels([3.0], top=0.5)
    times = table["step_ms"]
    steps, ranks = times.shape
    low, high = float(times.min()), float(np.quantile(times, 0.99))
    edges = np.linspace(0.98 * low, max(high, 1.02 * low) * 1.02, 1 + min(max(steps // 6, 8), 50)).tolist()
    rows = (
        {f"rank {rank}": times[:, rank] for rank in range(ranks)}
        if ranks <= len(_RANK_COLORS)
        else {"all ranks": times}
    )
    for (label, values), color in zip(rows.items(), _RANK_COLORS, strict=False):
        axes.hist(values.ravel().clip(max=edges[-1]), edges, histtype="step", color=color, linewidth=1.5, label=label)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel("time per step [ms]")
    axes.set_ylabel("steps")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes)
    return figure


def _by_rank(ranks: int, label: str, top: float) -> tuple[Figure, Axes]:
    figure, (axes,) = panels([min(0.9 + 0.42 * ranks, 6.0)], top=top)
    axes.set_yticks(np.arange(ranks)[:: -(-ranks // _MOST_LABELS)])
    axes.set_ylim(ranks - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    axes.set_ylabel("rank")
    return figure, axes


def _legend(axes: Axes, handles: Sequence[Artist] | None = None) -> None:
    given = {} if handles is None else {"handles": handles}
    axes.legend(
        **given, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4, fontsize=10, borderaxespad=0.15,
        columnspacing=1.2, handlelength=1.9, labelspacing=0.35,
    )  # fmt: skip


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
        "How much later than the others a rank comes to where all meet. Mark: half of the steps are below; bar: the middle "
        "half of the steps; line: nine of ten.",
        _lateness,
    ),
    ("Step after step", "Time per phase, the mean over all ranks.", _phase_history),
    ("How long steps take", "The slowest percent is in the last bin.", _step_histogram),
)
