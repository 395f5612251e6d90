"""The page of a calibration: one HTML file that needs nothing else, the figures beside it, and the numbers as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ringflow.evaluate import page
from ringflow.evaluate.page import Picture
from ringflow.evaluate.plots.style import Look, file_name, legend, legend_height, panels, styled
from ringflow.explain.uncertainty import CRITERIA, TOO_FEW

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
            lambda: coverage(result["coverage"]),
        ),
        "classes": (
            "Pull widths by class",
            "Half of the central 68 % interval of the pulls; the band is what is accepted.",
            lambda: widths(classes, [name.replace(" ", "\n") for name in names], accepted),
        ),
    }
    for of, title in (("pt", "pT (GeV)"), ("abs_eta", "|η|")):
        rows = [row for row in result["bins"] if row["of"] == of]
        found[of] = (
            f"Pull widths by {title}",
            "The same, all classes together.",
            lambda rows=rows, of=of: widths(rows, bin_names(rows, of), accepted),  # type: ignore[misc]
        )
    for name in names:
        found[f"pulls_{file_name(name)}"] = (
            f"Pulls: {name}",
            "Truth minus candidate in units of the uncertainty, beside a normal distribution.",
            lambda name=name: distribution(result["histograms"][name]),  # type: ignore[misc]
        )
    return found


#: Quantities as they are drawn.
LOOKS: Mapping[str, Look] = {
    "pt": Look("pT", "#0072B2", "o", "-"),
    "eta": Look("η", "#009E73", "^", (0, (5, 2))),
    "phi": Look("φ", "#E69F00", "s", (0, (1, 1.2))),
    "energy": Look("energy", "#D55E00", "D", (0, (7, 1.5, 1.5, 1.5))),
}
_IDEAL = Look("normal", "#595959", "", (0, (2, 2)))
_AXES = {"pt": "pT [GeV]", "abs_eta": "|η|"}


@styled
def distribution(histogram: Mapping[str, Any]) -> Figure:
    """Pulls of one class."""
    chosen = {**LOOKS, "normal": _IDEAL}
    figure, (axes,) = panels([3.0], top=legend_height(chosen))
    legend(axes, chosen, points=False)
    edges = np.array(histogram["edges"])
    middle, width = 0.5 * (edges[1:] + edges[:-1]), edges[1] - edges[0]
    for name, look in LOOKS.items():
        density = np.array(histogram["counts"][name]) / (histogram["candidates"] * width)
        axes.stairs(density, edges, color=look.color, linestyle=look.line, linewidth=1.6)
    axes.plot(middle, np.exp(-0.5 * middle**2) / np.sqrt(2 * np.pi), color=_IDEAL.color, linestyle=_IDEAL.line)
    axes.set_yscale("log")
    axes.set_ylim(1e-3, 1.5)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel("(truth - candidate) / uncertainty")
    axes.set_ylabel("density")
    return figure


@styled
def coverage(found: Mapping[str, Any]) -> Figure:
    """How often the truth lies within an interval, against how often it should."""
    figure, (axes,) = panels([3.6], top=legend_height(LOOKS))
    legend(axes, LOOKS, points=True)
    expected = 100.0 * np.array(found["expected"])
    axes.plot([0, 100], [0, 100], color=_IDEAL.color, linestyle=_IDEAL.line, linewidth=1.3)
    for name, look in LOOKS.items():
        observed = 100.0 * np.array(found["observed"][name])
        axes.plot(
            expected, observed, color=look.color, linestyle=look.line, marker=look.marker, markersize=3.5, markevery=5
        )
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.set_xlabel("expected coverage [%]")
    axes.set_ylabel("observed coverage [%]")
    return figure


@styled
def widths(rows: Sequence[Mapping[str, Any]], names: Sequence[str], accepted: float) -> Figure:
    """Pull widths of every quantity, one place per name; `rows` hold all quantities of a name in order."""
    figure, (axes,) = panels([3.0], top=legend_height(LOOKS))
    legend(axes, LOOKS, points=True)
    axes.axhspan(1 - accepted, 1 + accepted, color="#eeeeee")
    axes.axhline(1.0, color=_IDEAL.color, linestyle=_IDEAL.line, linewidth=1.2)
    for number, (name, look) in enumerate(LOOKS.items()):
        mine = [row for row in rows if row["quantity"] == name]
        places = np.arange(len(mine)) + 0.14 * (number - 1.5)
        error = [row["error"] for row in mine]
        axes.errorbar(places, [row["width"] for row in mine], error, color=look.color, marker=look.marker, linestyle="")
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(0.7, 1.3)
    axes.set_ylabel("pull width")
    axes.grid(axis="x", visible=False)
    return figure


def bin_names(rows: Sequence[Mapping[str, Any]], of: str) -> list[str]:
    """The bins of a variable in words, in their order."""
    first = [row for row in rows if row["of"] == of and row["quantity"] == "pt"]
    unit = _AXES[of].split(" ")[0]
    return [
        f"{row['from']:g} - {row['to']:g}" if row["to"] is not None else f"{unit} >\n{row['from']:g}" for row in first
    ]
