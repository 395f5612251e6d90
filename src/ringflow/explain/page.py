"""The page of explanations: one HTML file that needs nothing else, the figures beside it, and the numbers as JSON.

- `index.html`: what candidates of every class listen to, the deletion test, and how it was computed
- `figures/<figure>.png` and `.svg`
- `explanations.json`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringflow.base.rundir import prepare, write_atomic
from ringflow.evaluate.page import Picture, draw, render
from ringflow.explain import plots

PAGE_FILE, RESULT_FILE, FIGURES_FOLDER = "index.html", "explanations.json", "figures"
_TEMPLATE = Path(__file__).parent / "templates" / "explain.html.j2"


def write_page(result: Mapping[str, Any], out: Path) -> Path:
    """Write the page, the figures and the numbers into a folder; the path of the page."""
    prepare(out, marks=(PAGE_FILE, RESULT_FILE))
    prepare(out / FIGURES_FOLDER, marks=("shares.png",))
    shown = draw(_pictures(result), out / FIGURES_FOLDER)
    write_atomic(out / RESULT_FILE, json.dumps(result, indent=1) + "\n")
    judged = [row for row in result["deletion"] if row["judged"]]
    page = render(
        _TEMPLATE,
        result=result,
        pictures=shown,
        judged=judged,
        others=[row for row in result["deletion"] if not row["judged"]],
        passed=sum(row["ok"] for row in judged),
        single=result["single"][0] if "candidates" in result["single"][0] else None,
    )
    write_atomic(out / PAGE_FILE, page)
    return out / PAGE_FILE


def _pictures(result: Mapping[str, Any]) -> dict[str, Picture]:
    """Title, caption and drawing of every figure."""
    found: dict[str, Picture] = {
        "shares": (
            "Whom candidates listen to",
            "Shares of all that made the output: the element a candidate sits on, and the other tracks and clusters.",
            lambda: plots.shares(result["classes"]),
        ),
        "distance": (
            "How far they listen",
            "What one other element counts, against its distance from the candidate's own element.",
            lambda: plots.distance(result["distances"]),
        ),
        "features": (
            "What they listen to",
            "Share of a feature in percent, on the own element and on the others together; the features that count most.",
            lambda: plots.features(result["features"]),
        ),
    }
    if result["deletion"]:
        found["deletion"] = (
            "Without these elements",
            "Mean change of the output when as many other elements are taken out of the event: those a candidate listens to, "
            "the nearest ones, and random ones.",
            lambda: plots.deletion(result["deletion"]),
        )
    return found
