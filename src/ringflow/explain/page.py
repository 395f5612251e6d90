"""The page of explanations: one HTML file that needs nothing else, the figures beside it, and the numbers as JSON.

- `index.html`: what candidates of every class listen to, the deletion test, and how it was computed
- `figures/<figure>.png` and `.svg`
- `explanations.json`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ringflow.evaluate import page
from ringflow.evaluate.page import Picture
from ringflow.evaluate.plots.style import (
    CLASS_MARKS,
    CLASS_NAMES,
    Look,
    legend,
    legend_height,
    panels,
    say_empty,
    styled,
)

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
            lambda: shares(result["classes"]),
        ),
        "distance": (
            "How far they listen",
            "What one other element counts, against its distance from the candidate's own element.",
            lambda: distance(result["distances"]),
        ),
        "features": (
            "What they listen to",
            "Share of a feature in percent, on the own element and on the others together; the features that count most.",
            lambda: features(result["features"]),
        ),
    }
    if result["deletion"]:
        found["deletion"] = (
            "Without these elements",
            "Mean change of the output when as many other elements are taken out of the event: those a candidate listens to, "
            "the nearest ones, and random ones.",
            lambda: deletion(result["deletion"]),
        )
    return found


Rows = Sequence[Mapping[str, Any]]

_MARKS = dict(zip(CLASS_NAMES, CLASS_MARKS, strict=True))
_LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
#: Whose share: what it is called, its colour, and what tells it apart without colour.
_SHARES = {
    "own": ("own element", "#56B4E9", ""),
    "track": ("tracks", "#D55E00", "//"),
    "cluster": ("clusters", "#009E73", ".."),
}
_SHARES["hit"] = ("hits", "#009E73", "..")
#: Elements that are taken out, in the order of the bars.
_TAKEN = {
    "relevant": ("listened to", "#D55E00", ""),
    "nearest": ("nearest", "#56B4E9", "//"),
    "random": ("random", "#999999", ".."),
}


@styled
def shares(rows: Rows) -> Figure:
    """Own element, tracks and clusters: parts of all that a class listens to."""
    figure, (axes,) = panels([2.8], top=0.45, left=1.55)
    shown = [name for name in _SHARES if rows and name in rows[0]]
    left = np.zeros(len(rows))
    for name in shown:
        label, color, hatch = _SHARES[name]
        values = np.array([100.0 * row[name] for row in rows])
        axes.barh(range(len(rows)), values, 0.7, left, color=color, hatch=hatch, edgecolor="white", label=label)
        left += values
    axes.set_yticks(range(len(rows)), [row["class"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0.0, 100.0)
    axes.set_xlabel("share of what it listens to [%]")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3, borderaxespad=0.15)
    return figure


@styled
def distance(rows: Rows) -> Figure:
    """What one other element counts, against its distance."""
    looks = _looks(rows)
    figure, (axes,) = panels([3.3], top=legend_height(looks))
    legend(axes, looks, points=True)
    drawn = [row for row in rows if row["to"] is not None and row["elements"] > 0]
    for name, look in looks.items():
        mine = [row for row in drawn if row["class"] == name]
        middle = [0.5 * (row["from"] + row["to"]) for row in mine]
        values = [100.0 * row["share_of_one"] for row in mine]
        axes.plot(middle, values, color=look.color, marker=look.marker, linestyle=look.line)
    if not drawn:
        say_empty(axes)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("distance in η and φ at the calorimeter")
    axes.set_ylabel("share of one element [%]")
    return figure


@styled
def features(rows: Rows, most: int = 14) -> Figure:
    """The features that count most, own and others' together, by class."""
    names = list(dict.fromkeys(row["class"] for row in rows))
    total: dict[str, float] = {}
    for row in rows:
        total[row["feature"]] = total.get(row["feature"], 0.0) + row["own"] + row["others"]
    chosen = sorted(total, key=total.__getitem__, reverse=True)[:most]
    value = {(row["class"], row["feature"]): 100.0 * (row["own"] + row["others"]) for row in rows}
    table = np.array([[value[name, feature] for name in names] for feature in chosen]).reshape(len(chosen), len(names))
    figure, (axes,) = panels([0.34 * max(len(chosen), 4)], top=0.2, left=2.3)
    axes.imshow(table, cmap="Blues", aspect="auto", vmin=0.0)
    for (row, column), share in np.ndenumerate(table):
        dark = share > 0.6 * table.max()
        axes.text(
            column, row, f"{share:.1f}", ha="center", va="center", fontsize=10, color="white" if dark else "black"
        )
    axes.set_yticks(range(len(chosen)), [feature.replace("_", " ") for feature in chosen], fontsize=10)
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names], fontsize=10)
    axes.grid(visible=False)
    return figure


@styled
def deletion(rows: Rows) -> Figure:
    """How much the output changes without elements, by how these were chosen."""
    removed = [row for row in rows if row["elements"] == "removed"]
    names = list(dict.fromkeys(row["class"] for row in removed))
    found = {(row["class"], row["control"]): row for row in removed}
    figure, (axes,) = panels([3.0], top=0.45)
    for place, (choice, (label, color, hatch)) in enumerate(_TAKEN.items()):
        values = [
            found[name, "random"]["change"] if choice == "relevant" else found[name, choice]["change_of_control"]
            for name in names
        ]
        where = np.arange(len(names)) + 0.27 * (place - 1)
        axes.bar(where, values, 0.25, color=color, hatch=hatch, edgecolor="white", label=label)
    if not names:
        say_empty(axes)
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
    axes.set_yscale("log")
    axes.set_ylabel("mean change of the output")
    axes.grid(axis="x", visible=False)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3, borderaxespad=0.15)
    return figure


def _looks(rows: Rows) -> dict[str, Look]:
    names = list(dict.fromkeys(row["class"] for row in rows))
    return {
        name: Look(name, *_MARKS.get(name, ("#595959", "x")), _LINES[place % len(_LINES)])
        for place, name in enumerate(names)
    }
