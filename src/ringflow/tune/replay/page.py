"""The page of a replay: one HTML file that needs nothing else, the figures beside it, and the numbers as JSON.

- `index.html`: what comes out, figures, tables, and everything that was assumed
- `figures/<figure>.png` and `.svg`
- `replay.json`
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringflow.base.output import finite_or_null
from ringflow.base.rundir import prepare, write_atomic
from ringflow.evaluate.page import Picture, draw, render
from ringflow.tune.replay import plots
from ringflow.tune.replay.result import ReplayResult
from ringflow.tune.replay.studies import headline

PAGE_FILE, RESULT_FILE, FIGURES_FOLDER = "index.html", "replay.json", "figures"
_TEMPLATE = Path(__file__).parent / "templates" / "replay.html.j2"
#: Rows of devices that can be told apart in a figure, and schedulers that fit into it.
_MOST_DRAWN, _MOST_PANELS = 256, 4

Results = Mapping[tuple[str, int], ReplayResult]


def write_page(result: Mapping[str, Any], results: Results, out: Path) -> Path:
    """Write page, figures and numbers into a folder; the path of the page. `results` are those of one order of the trials."""
    prepare(out, marks=(PAGE_FILE, RESULT_FILE))
    prepare(out / FIGURES_FOLDER, marks=("makespan.png",))
    shown = draw(_pictures(result, results), out / FIGURES_FOLDER)
    write_atomic(out / RESULT_FILE, json.dumps(finite_or_null(result), indent=1) + "\n")
    page = render(
        _TEMPLATE,
        result=result,
        title=_title(result),
        looks=plots.LOOKS,
        pictures=shown,
        hours=sorted({row["hours"] for row in result["sensitivity"]}),
        decides=_by_hours(result["sensitivity"]),
        superlinear=[row for row in result["scaling"] if row["over_linear"] > 1.005],
        finite=math.isfinite,
    )
    write_atomic(out / PAGE_FILE, page)
    return out / PAGE_FILE


def _title(result: Mapping[str, Any]) -> str:
    """The first thing to know."""
    if told := headline(result):
        return told
    reference = result["reference"]
    last = [row for row in result["rows"] if row["devices"] == result["rows"][-1]["devices"]]
    others = [row for row in last if row["scheduler"] != reference]
    name = plots.LOOKS[reference].name
    devices = f"{last[0]['devices']:,} devices"
    if not others:
        return f"{name} on {devices} takes {last[0]['makespan_seconds'] / 3600.0:.1f} hours"
    best = max(others, key=lambda row: float(row["speedup_equal_quality"]))
    factor = best["speedup_equal_quality"]
    if factor <= 1.0:
        return f"On {devices} nobody has a network as good as that of {name} sooner"
    return (
        f"On {devices} {plots.LOOKS[best['scheduler']].name} has a network as good {factor:.1f} times as fast as {name}"
    )


def _pictures(result: Mapping[str, Any], results: Results) -> dict[str, Picture]:
    devices = sorted({number for _, number in results})
    largest = {name: found for (name, number), found in results.items() if number == devices[-1]}
    drawn = [number for number in devices if number <= _MOST_DRAWN]
    found: dict[str, Picture] = {
        "makespan": (
            "Time and cost",
            "Hours of the whole study and device-hours of its trials, by number of devices.",
            lambda: plots.makespan(result["rows"]),
        ),
        "best": (
            "The best value over time",
            f"On {devices[-1]:,} devices, in one order of the trials. The mark is the end of the study.",
            lambda: plots.best_over_time({name: found for name, found in largest.items() if found.best_over_time}),
        ),
    }
    if drawn:
        few = {name: found for (name, number), found in results.items() if number == drawn[0]}
        few = dict(list(few.items())[:_MOST_PANELS])
        found["devices"] = (
            "Who had which device",
            f"A row per device, of {drawn[0]:,}. White is idle; the darker, the more devices a trial has.",
            lambda: plots.devices_over_time(few, _first_workers(few)),
        )
    found["scaling"] = (
        "Scaling",
        f"A study of {result['scaling_trials']:,} trials. Above: speed-up over one device, by device; above 1 is better "
        "than linear. Below: what more devices save, because fewer networks are loaded again. In turns: all trials begin "
        f"together and make room for each other after {result['turn_seconds']:.3g} s, and to start again takes "
        f"{result['load_seconds']:g} s: few devices do it often.",
        lambda: plots.scaling(result["scaling"]),
    )
    if result["sensitivity"]:
        found["decides"] = (
            "What decides",
            f"How much sooner than ASHA there is a network as good, on {result['sensitivity'][0]['devices']:,} devices. "
            "Penalty 0: an event teaches as much in a larger batch. Penalty 1: only the number of steps counts.",
            lambda: plots.sensitivity(result["sensitivity"]),
        )
    return found


def _first_workers(results: Mapping[str, ReplayResult]) -> int:
    return min(segment.workers for result in results.values() for segment in result.segments)


def _by_hours(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line per scheduler, number of trials and penalty, with the two factors per length of trials."""
    lines: dict[tuple[str, int, float], dict[float, tuple[float, float]]] = {}
    for row in rows:
        key = (row["scheduler"], row["trials_per_device"], row["penalty"])
        lines.setdefault(key, {})[row["hours"]] = (row["makespan"], row["equal_quality"])
    return [
        {"scheduler": name, "trials_per_device": count, "penalty": penalty, "by_hours": lines[name, count, penalty]}
        for name, count, penalty in sorted(lines)
    ]
