"""The page of explanations: one HTML file that needs nothing else, the figures beside it, and the numbers as JSON.

- `index.html`: what candidates of every class listen to, the deletion test, and how it was computed
- `figures/<figure>.png` and `.svg`
- `explanations.json`
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringflow.evaluate import page
from ringflow.evaluate.page import Picture
from ringflow.explain import plots

_TEMPLATE = Path(__file__).parent / "templates" / "explain.html.j2"


def write_page(result: Mapping[str, Any], out: Path) -> Path:
    """Write the page, the figures and the numbers into a folder; the path of the page."""
    judged = [row for row in result["deletion"] if row["judged"]]
    return page.write_page(
        out,
        _TEMPLATE,
        _pictures(result),
        result,
        "explanations.json",
        judged=judged,
        others=[row for row in result["deletion"] if not row["judged"]],
        passed=sum(row["ok"] for row in judged),
        single=result["single"][0] if "candidates" in result["single"][0] else None,
    )


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
