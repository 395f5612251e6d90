"""The pages of explanations and of uncertainties: one HTML file that needs nothing else, the figures beside it, the numbers.

- `index.html`
- `figures/<figure>.png` and `.svg`
- `explanations.json` or `uncertainty.json`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ringflow.evaluate.page import Picture, write_page
from ringflow.evaluate.plots import (
    CLASS_MARKS,
    CLASS_NAMES,
    Look,
    file_name,
    legend,
    legend_height,
    panels,
    say_empty,
    styled,
)
from ringflow.explain.uncertainty import CRITERIA, TOO_FEW

Rows = Sequence[Mapping[str, Any]]

_TEMPLATES = Path(__file__).parent / "templates"
_MARKS = dict(zip(CLASS_NAMES, CLASS_MARKS, strict=True))
_LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
#: Whose share: what it is called, its colour, and what tells it apart without colour.
_SHARES = {
    "own": ("own element", "#56B4E9", ""),
    "track": ("tracks", "#D55E00", "//"),
    "cluster": ("clusters", "#009E73", ".."),
    "hit": ("hits", "#009E73", ".."),
}
#: Elements that are taken out, in the order of the bars.
_TAKEN = {
    "relevant": ("listened to", "#D55E00", ""),
    "nearest": ("nearest", "#56B4E9", "//"),
    "random": ("random", "#999999", ".."),
}
_ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "ncols": 3, "borderaxespad": 0.15}


def write_explanations(result: Mapping[str, Any], out: Path) -> Path:
    """What candidates of every class listen to, the deletion test, and how it was computed; the path of the page."""
    pictures: dict[str, Picture] = {
        "shares": (
            "Whom candidates listen to",
            "Shares of all that made the output: the element a candidate sits on, and the other tracks and clusters.",
            partial(shares, result["classes"]),
        ),
        "distance": (
            "How far they listen",
            "What one other element counts, against its distance from the candidate's own element.",
            partial(distance, result["distances"]),
        ),
        "features": (
            "What they listen to",
            "Share of a feature in percent, on the own element and on the others together; the features that count most.",
            partial(features, result["features"]),
        ),
    }
    if result["deletion"]:
        pictures["deletion"] = (
            "Without these elements",
            "Mean change of the output when as many other elements are taken out of the event: those a candidate listens to, "
            "the nearest ones, and random ones.",
            partial(deletion, result["deletion"]),
        )
    single = result["single"][0] if "candidates" in result["single"][0] else None
    return write_page(out, _TEMPLATES / "explain.html.j2", pictures, result, "explanations.json", single=single)


def _classes(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["class"] for row in rows))


@styled
def shares(rows: Rows) -> Figure:
    """Own element, tracks and clusters: parts of all that a class listens to."""
    figure, (axes,) = panels([2.8], top=0.45, left=1.55)
    left = np.zeros(len(rows))
    for name, (label, color, hatch) in _SHARES.items():
        if rows and name in rows[0]:
            values = np.array([100.0 * row[name] for row in rows])
            axes.barh(range(len(rows)), values, 0.7, left, color=color, hatch=hatch, edgecolor="white", label=label)
            left += values
    axes.set_yticks(range(len(rows)), [row["class"] for row in rows])
    axes.invert_yaxis()
    axes.set(xlim=(0.0, 100.0), xlabel="share of what it listens to [%]")
    axes.grid(axis="y", visible=False)
    axes.legend(**_ABOVE)
    return figure


@styled
def distance(rows: Rows) -> Figure:
    """What one other element counts, against its distance."""
    looks = {
        name: Look(name, *_MARKS.get(name, ("#595959", "x")), _LINES[place % len(_LINES)])
        for place, name in enumerate(_classes(rows))
    }
    figure, (axes,) = panels([3.3], top=legend_height(looks))
    legend(axes, looks, points=True)
    # A network that finds nothing gives no element a share, which a logarithm cannot show.
    drawn = [row for row in rows if row["to"] is not None and row["elements"] > 0 and row["share_of_one"] > 0]
    for name, look in looks.items():
        mine = [row for row in drawn if row["class"] == name]
        middle = [0.5 * (row["from"] + row["to"]) for row in mine]
        values = [100.0 * row["share_of_one"] for row in mine]
        axes.plot(middle, values, color=look.color, marker=look.marker, linestyle=look.line)
    if drawn:
        axes.set(xscale="log", yscale="log")
    else:
        say_empty(axes)
    axes.set_ylabel("share of one element [%]")
    axes.set_xlabel("distance in η and φ at the calorimeter")
    return figure


@styled
def features(rows: Rows, most: int = 14) -> Figure:
    """The features that count most, own and others' together, by class."""
    names, total = _classes(rows), dict[str, float]()
    for row in rows:
        total[row["feature"]] = total.get(row["feature"], 0.0) + row["own"] + row["others"]
    chosen = sorted(total, key=total.__getitem__, reverse=True)[:most]
    value = {(row["class"], row["feature"]): 100.0 * (row["own"] + row["others"]) for row in rows}
    table = np.array([[value[name, feature] for name in names] for feature in chosen]).reshape(len(chosen), len(names))
    figure, (axes,) = panels([0.34 * max(len(chosen), 4)], top=0.2, left=2.3)
    axes.imshow(table, cmap="Blues", aspect="auto", vmin=0.0)
    for (row, column), share in np.ndenumerate(table):
        color = "white" if share > 0.6 * table.max() else "black"
        axes.text(column, row, f"{share:.1f}", ha="center", va="center", fontsize=10, color=color)
    axes.set_yticks(range(len(chosen)), [feature.replace("_", " ") for feature in chosen], fontsize=10)
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names], fontsize=10)
    axes.grid(visible=False)
    return figure


@styled
def deletion(rows: Rows) -> Figure:
    """How much the output changes without elements, by how these were chosen."""
    found = {(row["class"], row["control"]): row for row in rows if row["elements"] == "removed"}
    names = list(dict.fromkeys(name for name, _ in found))
    figure, (axes,) = panels([3.0], top=0.45)
    for place, (choice, (label, color, hatch)) in enumerate(_TAKEN.items()):
        control, column = ("random", "change") if choice == "relevant" else (choice, "change_of_control")
        values = [found[name, control][column] for name in names]
        where = np.arange(len(names)) + 0.27 * (place - 1)
        axes.bar(where, values, 0.25, color=color, hatch=hatch, edgecolor="white", label=label)
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
    if any(row["change"] > 0 or row["change_of_control"] > 0 for row in found.values()):
        axes.set_yscale("log")
    axes.set_ylabel("mean change of the output")
    axes.grid(axis="x", visible=False)
    axes.legend(**_ABOVE)
    return figure


#: Quantities as they are drawn.
LOOKS: Mapping[str, Look] = {
    "pt": Look("pT", "#0072B2", "o", "-"),
    "eta": Look("η", "#009E73", "^", (0, (5, 2))),
    "phi": Look("φ", "#E69F00", "s", (0, (1, 1.2))),
    "energy": Look("energy", "#D55E00", "D", (0, (7, 1.5, 1.5, 1.5))),
}
_IDEAL = Look("normal", "#595959", "", (0, (2, 2)))


def write_uncertainties(result: Mapping[str, Any], out: Path) -> Path:
    """How well uncertainties are calibrated; the path of the page."""
    classes = [row for row in result["classes"] if row["verdict"] != TOO_FEW]
    names = _classes(classes)
    pictures: dict[str, Picture] = {
        "coverage": (
            "Calibration",
            "How often the truth lies within an interval around a candidate, against how often it would if pulls were normal.",
            partial(coverage, result["coverage"]),
        ),
        "classes": (
            "Pull widths by class",
            "Half of the central 68 % interval of the pulls; the band is what is accepted.",
            partial(widths, classes, [name.replace(" ", "\n") for name in names]),
        ),
    }
    for of, title, unit in (("pt", "pT (GeV)", "pT"), ("abs_eta", "|η|", "|η|")):
        rows = [row for row in result["bins"] if row["of"] == of]
        bins = [
            f"{row['from']:g} - {row['to']:g}" if row["to"] is not None else f"{unit} >\n{row['from']:g}"
            for row in rows
            if row["quantity"] == "pt"
        ]
        pictures[of] = (f"Pull widths by {title}", "The same, all classes together.", partial(widths, rows, bins))
    for name in names:
        pictures[f"pulls_{file_name(name)}"] = (
            f"Pulls: {name}",
            "Truth minus candidate in units of the uncertainty, beside a normal distribution.",
            partial(distribution, result["histograms"][name]),
        )
    return write_page(out, _TEMPLATES / "uncertainty.html.j2", pictures, result, "uncertainty.json")


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
    axes.set(yscale="log", ylim=(1e-3, 1.5), xlim=(edges[0], edges[-1]), ylabel="density")
    axes.set_xlabel("(truth - candidate) / uncertainty")
    return figure


@styled
def coverage(found: Mapping[str, Any]) -> Figure:
    """How often the truth lies within an interval, against how often it should."""
    figure, (axes,) = panels([3.6], top=legend_height(LOOKS))
    legend(axes, LOOKS, points=True)
    expected = 100.0 * np.array(found["expected"])
    axes.plot([0, 100], [0, 100], color=_IDEAL.color, linestyle=_IDEAL.line, linewidth=1.3)
    for name, look in LOOKS.items():
        style: dict[str, Any] = {"color": look.color, "linestyle": look.line, "marker": look.marker, "markersize": 3.5}
        axes.plot(expected, 100.0 * np.array(found["observed"][name]), markevery=5, **style)
    axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="expected coverage [%]", ylabel="observed coverage [%]")
    return figure


@styled
def widths(rows: Rows, names: Sequence[str]) -> Figure:
    """Pull widths of every quantity, one place per name; `rows` hold all quantities of a name in order."""
    figure, (axes,) = panels([3.0], top=legend_height(LOOKS))
    legend(axes, LOOKS, points=True)
    accepted = CRITERIA[0]["accepted"]
    axes.axhspan(1 - accepted, 1 + accepted, color="#eeeeee")
    axes.axhline(1.0, color=_IDEAL.color, linestyle=_IDEAL.line, linewidth=1.2)
    for number, (name, look) in enumerate(LOOKS.items()):
        mine = [row for row in rows if row["quantity"] == name]
        places = np.arange(len(mine)) + 0.14 * (number - 1.5)
        error = [row["error"] for row in mine]
        axes.errorbar(places, [row["width"] for row in mine], error, color=look.color, marker=look.marker, linestyle="")
    axes.set_xticks(range(len(names)), names)
    axes.set(ylim=(0.7, 1.3), ylabel="pull width")
    axes.grid(axis="x", visible=False)
    return figure
