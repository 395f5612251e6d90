"""The page of a prediction: one HTML file that needs nothing else, the figures beside it, and the numbers as JSON.

- `index.html`: what is predicted, figures, table, comparison with a measurement, and everything that was assumed
- `figures/<figure>.png` and `.svg`
- `prediction.json`
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringflow.base.output import finite_or_null
from ringflow.base.rundir import prepare, write_atomic
from ringflow.evaluate.page import Picture, draw
from ringflow.evaluate.template import render
from ringflow.recipes import scaling_plots as plots

PAGE_FILE, RESULT_FILE, FIGURES_FOLDER = "index.html", "prediction.json", "figures"
_TEMPLATE = Path(__file__).parent / "templates" / "scaling.html.j2"


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
    prepare(out, marks=(PAGE_FILE, RESULT_FILE))
    prepare(out / FIGURES_FOLDER, marks=("throughput.png",))
    own = [row for row in result["rows"] if row["algorithm"] == result["algorithm"]]
    shown = draw(_pictures(result), out / FIGURES_FOLDER)
    write_atomic(out / RESULT_FILE, json.dumps(finite_or_null(result), indent=1) + "\n")
    page = render(
        _TEMPLATE,
        result=result,
        hardware=result["settings"]["hardware"],
        own=own,
        last=own[-1],
        others=[rows[-1] for rows in plots.by_algorithm(result["rows"]).values()],
        looks=plots.LOOKS,
        parts=plots.PARTS,
        pictures=shown,
        weak=result["settings"]["work"]["global_batch"] == "grows",
        lost=_largest_loss(own[-1]),
        finite=math.isfinite,
        in_words=in_words,
    )
    write_atomic(out / PAGE_FILE, page)
    return out / PAGE_FILE


def _pictures(result: Mapping[str, Any]) -> dict[str, Picture]:
    rows = [row for row in result["rows"] if math.isfinite(row["step_seconds"])]
    own = [row for row in rows if row["algorithm"] == result["algorithm"]]
    name = plots.LOOKS[result["algorithm"]].name
    fixed = result["settings"]["work"]["global_batch"] == "fixed"
    found: dict[str, Picture] = {
        "throughput": (
            "Throughput",
            "Events per second of all devices, by how their gradients are added up. Dashed grey: as many times one device.",
            lambda: plots.throughput(rows),
        ),
        "efficiency": (
            "Efficiency",
            "Throughput against that of one device times their number.",
            lambda: plots.efficiency(rows),
        ),
        "split": (
            "Where the time of a step goes",
            f"By number of devices, with gradients added up by a {name}. Communication is what does not hide behind the "
            "computation; checkpoints and failures are shared out over all steps.",
            lambda: plots.split(own, shares=fixed),
        ),
        "communication": (
            "All-reduce and parameter server",
            "Time to add up the gradients once, nothing hidden. Rings and trees move 2(N-1)/N of the gradient per device; a "
            "ring needs 2(N-1) messages one after the other, a tree of nodes 2 log2 of their number. A parameter server "
            "moves 2N gradients through one place.",
            lambda: plots.communication(rows),
        ),
    }
    if max(row["devices"] for row in own) < 2:
        del found["communication"]
    if result["check"]:
        found["check"] = (
            "The model against a measurement",
            "Processes on one machine. The model is told the step of one process, how much processes that train apart slow "
            "each other down, and how long sums take alone.",
            lambda: plots.check(result["check"]),
        )
    return found


def _largest_loss(row: Mapping[str, Any]) -> str:
    """What takes most of a step beside the computation; empty if nothing does."""
    worst = max(_LOSSES, key=lambda name: float(row[name]))
    return _LOSSES[worst] if row[worst] > 0.0 else ""


def in_words(number: float) -> str:
    """A large number as people say it."""
    for unit, word in ((1e9, " billion"), (1e6, " million")):
        if number >= unit:
            return f"{number / unit:.3g}{word}"
    return f"{number:,.0f}"
