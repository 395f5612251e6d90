"""The page of a calibration: one HTML file that needs nothing else, the figures beside it, and the numbers as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringflow.evaluate import page
from ringflow.evaluate.page import Picture
from ringflow.evaluate.plots.style import file_name
from ringflow.recipes import uncertainty_plots as plots
from ringflow.recipes.uncertainty import CRITERIA, TOO_FEW

_TEMPLATE = Path(__file__).parent / "templates" / "uncertainty.html.j2"


def write_page(result: Mapping[str, Any], out: Path) -> Path:
    """Write the page, the figures and the numbers into a folder; the path of the page."""
    return page.write_page(out, _TEMPLATE, _pictures(result), result, "uncertainty.json")


def _pictures(result: Mapping[str, Any]) -> dict[str, Picture]:
    """Title, caption and drawing of every figure."""
    classes, accepted = [row for row in result["classes"] if row["verdict"] != TOO_FEW], CRITERIA[0].accepted
    names = list(dict.fromkeys(row["class"] for row in classes))
    found: dict[str, Picture] = {
        "coverage": (
            "Calibration",
            "How often the truth lies within an interval around a candidate, against how often it would if pulls were normal.",
            lambda: plots.coverage(result["coverage"]),
        ),
        "classes": (
            "Pull widths by class",
            "Half of the central 68 % interval of the pulls; the band is what is accepted.",
            lambda: plots.widths(classes, [name.replace(" ", "\n") for name in names], accepted),
        ),
    }
    for of, title in (("pt", "pT (GeV)"), ("abs_eta", "|η|")):
        rows = [row for row in result["bins"] if row["of"] == of]
        found[of] = (
            f"Pull widths by {title}",
            "The same, all classes together.",
            lambda rows=rows, of=of: plots.widths(rows, plots.bin_names(rows, of), accepted),  # type: ignore[misc]
        )
    for name in names:
        found[f"pulls_{file_name(name)}"] = (
            f"Pulls: {name}",
            "Truth minus candidate in units of the uncertainty, beside a normal distribution.",
            lambda name=name: plots.distribution(result["histograms"][name]),  # type: ignore[misc]
        )
    return found
