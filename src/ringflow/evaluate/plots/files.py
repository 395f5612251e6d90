"""Figures and histograms as files: small PNG for a page, PNG and SVG to keep, JSON for the numbers behind them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hist
import matplotlib
import numpy as np
import uhi.io.json
from boost_histogram.serialization import to_uhi
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ringflow.base.rundir import write_atomic
from ringflow.evaluate.plots.style import style

#: Line drawings need few colours; a palette makes a PNG a third of its size.
_PALETTE = 96
_LARGEST_SVG = 200_000


def png(figure: Figure) -> bytes:
    """The figure as a PNG with a palette; the same figure gives the same bytes."""
    canvas = FigureCanvasAgg(figure)
    with matplotlib.rc_context(style()):
        canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    image = Image.fromarray(pixels).convert("RGB")
    small = image.quantize(_PALETTE, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    packed = io.BytesIO()
    small.save(packed, format="png", optimize=True)
    return packed.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as an SVG without a date in it."""
    drawn = io.BytesIO()
    with matplotlib.rc_context(style()):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


def save_figure(figure: Figure, path: Path) -> bytes:
    """Write `path`.png, and `path`.svg where that is small; returns the bytes of the PNG."""
    picture, drawing = png(figure), svg(figure)
    write_atomic(path.with_name(f"{path.name}.png"), picture)
    if len(drawing) <= _LARGEST_SVG:
        write_atomic(path.with_name(f"{path.name}.svg"), drawing)
    return picture


def save_histogram(histograms: Mapping[str, hist.Hist[Any]], path: Path) -> None:
    """One histogram of all reconstructions as JSON in the exchange format of UHI; `load_histogram` reads it back."""
    described = {name: to_uhi(histogram) for name, histogram in histograms.items()}
    write_atomic(path, json.dumps(described, default=uhi.io.json.default) + "\n")


def load_histogram(path: Path) -> dict[str, hist.Hist[Any]]:
    """What `save_histogram` wrote."""
    described = json.loads(path.read_text(encoding="utf-8"), object_hook=uhi.io.json.object_hook)
    return {name: hist.Hist(part) for name, part in described.items()}


def file_name(text: str) -> str:
    """A name from outside as the name of a file or folder, without surprises."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:80] or "unnamed"
