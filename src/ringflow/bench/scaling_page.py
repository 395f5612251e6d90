"""The page of `ringflow scaling-model`: one HTML file that needs nothing else, the figures beside it, and the numbers as JSON.

- `index.html`: what is predicted, figures, table, comparison with a measurement, and everything that was assumed
- `figures/<figure>.png` and `.svg`
- `prediction.json`
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ringflow.evaluate import page
from ringflow.evaluate.page import Picture
from ringflow.evaluate.plots import Look, in_thousands, lines_by_devices, panels, styled

_TEMPLATE = Path(__file__).parent / "templates" / "scaling.html.j2"
_GREY = "#595959"
_ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "borderaxespad": 0.15}

Rows = Sequence[Mapping[str, Any]]

LOOKS: Mapping[str, Look] = {
    "ring": Look("ring", "#0072B2", "o", "-"),
    "hierarchical": Look("ring of nodes", "#009E73", "^", (0, (5, 2))),
    "tree": Look("tree of nodes", "#D55E00", "D", (0, (7, 1.5, 1.5, 1.5))),
    "server": Look("parameter server", "#CC79A7", "v", (0, (1, 1.2))),
}
#: Parts of a step: what they are called, their colour, what tells them apart without it, and what it is to lose time by them.
PARTS: Mapping[str, tuple[str, str, str, str]] = {
    "compute": ("computation", "#56B4E9", "", ""),
    "communication": ("communication", "#D55E00", "//", "adding up the gradients"),
    "waiting": ("slowest device", "#E69F00", "..", "waiting for the slowest device"),
    "data": ("data", "#999999", "xx", "waiting for data"),
    "checkpoint": ("checkpoints", "#009E73", "\\\\", "checkpoints"),
    "lost": ("failures", "#CC79A7", "++", "failures"),
}


def write_page(result: Mapping[str, Any], out: Path) -> Path:
    """Write the page, the figures and the numbers into a folder; the path of the page."""
    own = [row for row in result["rows"] if row["algorithm"] == result["algorithm"]]
    worst = max((name for name in PARTS if name != "compute"), key=lambda name: float(own[-1][name]))
    return page.write_page(
        out,
        _TEMPLATE,
        _pictures(result),
        result,
        "prediction.json",
        hardware=result["settings"]["hardware"],
        own=own,
        last=own[-1],
        others=[row for row in result["rows"] if row["devices"] == own[-1]["devices"]],
        looks=LOOKS,
        parts=PARTS,
        weak=result["settings"]["work"]["global_batch"] == "grows",
        lost=PARTS[worst][-1] if own[-1][worst] > 0.0 else "",
        finite=math.isfinite,
        in_words=in_words,
    )


def in_words(number: float) -> str:
    """A large number as people say it."""
    for unit, word in ((1e9, " billion"), (1e6, " million")):
        if number >= unit:
            return f"{number / unit:.3g}{word}"
    return f"{number:,.0f}"


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
            "Time to add up the gradients once, nothing hidden; grey: the computation. Rings and trees move 2(N-1)/N of the "
            "gradient per device; a ring needs 2(N-1) messages one after the other, a tree of nodes 2 log2 of their number. A "
            "parameter server moves 2N gradients through one place.",
            lambda: _communication(rows, own),
        )
    return found


@styled
def _throughput(rows: Rows) -> Figure:
    figure, (axes,) = lines_by_devices(rows, "algorithm", LOOKS, {"events_per_second": "events per second"})
    ends = [min(row["devices"] for row in rows), max(row["devices"] for row in rows)]
    alone = rows[0]["events_per_second"] / rows[0]["efficiency"] / rows[0]["devices"]
    axes.plot(ends, [alone * end for end in ends], color=_GREY, linestyle=(0, (2, 2)))
    axes.set_yscale("log")
    return figure


@styled
def _efficiency(rows: Rows) -> Figure:
    figure, (axes,) = lines_by_devices(rows, "algorithm", LOOKS, {"efficiency": "efficiency"})
    axes.axhline(1.0, color=_GREY, linestyle=(0, (2, 2)), linewidth=1.2)
    axes.set_ylim(0.0, 1.06)
    return figure


@styled
def _communication(rows: Rows, own: Rows) -> Figure:
    """Hidden communication counted, beside the computation."""
    several = [{**row, "sum": 1e3 * (row["communication"] + row["hidden"])} for row in rows if row["devices"] > 1]
    figure, (axes,) = lines_by_devices(several, "algorithm", LOOKS, {"sum": "adding up the gradients [ms]"})
    computed = [(row["devices"], 1e3 * row["compute"]) for row in own if row["devices"] > 1]
    axes.plot(*zip(*computed, strict=True), color=_GREY, linewidth=1.3)
    axes.set_yscale("log")
    return figure


@styled
def _split(rows: Rows, *, shares: bool) -> Figure:
    """In milliseconds or in shares: all of a step, and below what is not computation."""
    shown = [name for name in PARTS if any(row[name] > 0.0 for row in rows)]
    figure, (whole, beside) = panels([2.3, 2.0], top=0.2 + 0.24 * -(-len(shown) // 3))
    for axes, names in ((whole, shown), (beside, shown[1:])):
        bottom = [0.0] * len(rows)
        for name in names:
            label, color, hatch, _ = PARTS[name]
            values = [row[name] * (100.0 / row["step_seconds"] if shares else 1e3) for row in rows]
            looks: dict[str, Any] = {"color": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4}
            axes.bar(range(len(rows)), values, 0.74, bottom, label=label, **looks)
            bottom = [below + value for below, value in zip(bottom, values, strict=True)]
        axes.grid(axis="x", visible=False)
    unit = "%" if shares else "ms"
    whole.set_ylabel(f"{'share' if shares else 'time'} of a step [{unit}]")
    beside.set_ylabel(f"beside the\ncomputation [{unit}]")
    beside.set_xticks(range(len(rows)), [in_thousands(row["devices"]) for row in rows])
    beside.set_xlabel("devices")
    whole.legend(ncols=3, fontsize=10.5, columnspacing=1.2, **_ABOVE)
    return figure
