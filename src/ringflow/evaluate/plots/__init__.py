"""How a figure looks: one colour, marker and line per reconstruction, the same in every figure, readable without colour."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from PIL import Image

from ringflow.base.rundir import write_atomic

#: Whom ratio panels compare with, in order of preference.
REFERENCES = ("baseline", "perfect", "target")


class Look(NamedTuple):
    """How one reconstruction is drawn and called."""

    name: str
    color: str
    marker: str
    line: tuple[float, tuple[float, ...]] | Literal["-"]


#: Colours of Okabe and Ito, told apart by all common kinds of colour vision.
LOOKS: Mapping[str, Look] = {
    "target": Look("truth target", "#595959", "s", (0, (1, 1.2))),
    "perfect": Look("perfect PF", "#009E73", "^", (0, (5, 2))),
    "baseline": Look("rule-based PF", "#0072B2", "o", "-"),
    "model": Look("model", "#D55E00", "D", (0, (7, 1.5, 1.5, 1.5))),
    "candidate": Look("PF of the dataset", "#CC79A7", "v", (0, (3, 1, 1, 1, 1, 1))),
}
_OTHERS = (
    ("#E69F00", "P", (0, (2, 2))),
    ("#56B4E9", "X", (0, (9, 2))),
    ("#8C564B", "*", (0, (4, 4))),
    ("#CC79A7", "v", (0, (3, 1, 1, 1, 1, 1))),  # again, for want of a ninth that everybody tells apart
)

#: By label, see PARTICLE_CLASSES.
CLASS_NAMES = ("none", "charged hadron", "neutral hadron", "photon", "electron", "muon")
CLASS_MARKS = (
    ("#999999", "x"),
    ("#0072B2", "o"),
    ("#009E73", "s"),
    ("#E69F00", "^"),
    ("#CC79A7", "D"),
    ("#D55E00", "v"),
)

#: The matplotlib settings in force while a figure is drawn or written.
STYLE = matplotlib.rc_params_from_file(Path(__file__).with_name("ringflow.mplstyle"), use_default_template=False)
#: Lets a drawing function work in this style and leaves that of the caller alone.
styled = matplotlib.rc_context(STYLE)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each reconstruction; unknown ones take the remaining colours in the order given."""
    result: dict[str, Look] = {}
    for name in names:
        unknown = len(result.keys() - LOOKS.keys())
        color, marker, line = _OTHERS[unknown % len(_OTHERS)]
        result[name] = LOOKS.get(name) or Look(plain(name), color, marker, line)
    return result


def display_name(reconstruction: str) -> str:
    """What a reconstruction is called in figures and tables."""
    return LOOKS[reconstruction].name if reconstruction in LOOKS else reconstruction


def plain(text: str) -> str:
    """Text from outside for use in a figure: no formulas, no letters the font lacks, no hidden legend entry."""
    shown = "".join(letter if letter.isprintable() and ord(letter) < 0x250 else "?" for letter in text)
    shown = shown if len(shown) <= 32 else f"{shown[:31]}…"
    return (" " if shown.startswith("_") else "") + shown.replace("$", r"\$")


def reference_of(names: Iterable[str]) -> str | None:
    """The reconstruction a ratio panel divides by; None if there is nothing to compare."""
    names = list(names)
    if len(names) < 2:
        return None
    return next((name for name in REFERENCES if name in names), names[0])


def panels(heights: list[float], *, top: float, left: float = 0.95) -> tuple[Figure, list[Axes]]:
    """A figure of panels above each other that share their horizontal axis; sizes in inches.

    Frames stand at the same place in every figure, which an automatic layout would not do, nor as fast.
    """
    width, bottom, right, gap = 6.4, 0.66, 0.16, 0.1
    total = sum(heights) + top + bottom + gap * (len(heights) - 1)
    figure = Figure(figsize=(width, total))
    place = {"left": left / width, "right": 1 - right / width, "bottom": bottom / total, "top": 1 - top / total}
    place["hspace"] = gap * len(heights) / sum(heights)
    rows = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights, gridspec_kw=place)
    axes = list(rows[:, 0])
    figure.align_ylabels(axes)
    return figure, axes


def legend(axes: Axes, chosen: Mapping[str, Look], notes: Mapping[str, str] | None = None, *, points: bool) -> None:
    """Names, with `notes` (numbers) under them, in rows above the panel, where they hide nothing."""
    handles = [
        Line2D([], [], color=look.color, linestyle=look.line, marker=look.marker if points else "None")
        for look in chosen.values()
    ]
    labels = [f"{look.name}\n{notes[name]}" if notes else look.name for name, look in chosen.items()]
    spaces = {"borderaxespad": 0.15, "handlelength": 2.0, "handletextpad": 0.5, "labelspacing": 0.35}
    spaces |= {"columnspacing": 1.1, "fontsize": 10.5} if notes is None else {"columnspacing": 0.7, "fontsize": 8.8}
    columns = legend_columns(chosen, notes=notes is not None)
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, **spaces)


def legend_columns(chosen: Mapping[str, Look], *, notes: bool) -> int:
    """Entries beside each other that fit the width of a panel."""
    fits_one_row = sum(len(look.name) + 6 for look in chosen.values()) <= 66
    return max(min(len(chosen), 4 if fits_one_row and not notes else 2), 1)


def legend_height(chosen: Mapping[str, Look], *, notes: bool = False) -> float:
    """Inches above the panel that the legend takes."""
    rows = -(-len(chosen) // legend_columns(chosen, notes=notes))
    return 0.2 + rows * (0.49 if notes else 0.22)


def lines_by_devices(
    rows: Sequence[Mapping[str, Any]], kind: str, known: Mapping[str, Look], labels: Mapping[str, str]
) -> tuple[Figure, list[Axes]]:
    """A panel per figure of the rows, its label below its name in `labels`; a line per look, against numbers of devices."""
    chosen = {name: look for name, look in known.items() if any(row[kind] == name for row in rows)}
    figure, panes = panels([3.6] if len(labels) == 1 else [2.4, 2.0], top=legend_height(chosen))
    legend(panes[0], chosen, points=True)
    for axes, (key, label) in zip(panes, labels.items(), strict=True):
        for name, look in chosen.items():
            places, values = zip(*((row["devices"], row[key]) for row in rows if row[kind] == name), strict=True)
            axes.plot(places, values, color=look.color, linestyle=look.line, marker=look.marker, markersize=5)
        axes.set_ylabel(label)
    last = panes[-1]
    last.set_xscale("log", base=2)
    last.xaxis.set_major_locator(LogLocator(base=2, numticks=14))
    last.xaxis.set_minor_locator(NullLocator())
    last.xaxis.set_major_formatter(FuncFormatter(lambda number, _: in_thousands(number) if number >= 1 else ""))
    last.set_xlabel("devices")
    return figure, panes


def in_thousands(number: float) -> str:
    """A number of devices that fits under an axis: 512, 1k, 2k."""
    return f"{number / 1024:.0f}k" if number >= 1024 and number % 1024 == 0 else f"{number:.0f}"


def say_empty(axes: Axes) -> None:
    """Write on a panel that there is nothing to draw."""
    axes.text(0.5, 0.5, "no entries", transform=axes.transAxes, ha="center", va="center", color="#777777")


#: Line drawings need few colours; a palette makes a PNG a third of its size.
_PALETTE = 96
_LARGEST_SVG = 200_000


@styled
def png(figure: Figure) -> bytes:
    """The figure as a PNG with a palette; the same figure gives the same bytes."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    image = Image.fromarray(pixels).convert("RGB")
    small = image.quantize(_PALETTE, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    packed = io.BytesIO()
    small.save(packed, format="png", optimize=True)
    return packed.getvalue()


@styled
def svg(figure: Figure) -> bytes:
    """The figure as an SVG without a date in it."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


def save_figure(figure: Figure, path: Path) -> bytes:
    """Write `path`.png, and `path`.svg where that is small; returns the bytes of the PNG."""
    picture, drawing = png(figure), svg(figure)
    write_atomic(path.with_name(f"{path.name}.png"), picture)
    if len(drawing) <= _LARGEST_SVG:
        write_atomic(path.with_name(f"{path.name}.svg"), drawing)
    return picture


def file_name(text: str) -> str:
    """A name from outside as the name of a file or folder, without surprises."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:80] or "unnamed"
