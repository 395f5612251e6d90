"""Figures of pages: drawn into files, and into the page itself, which then needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from ringflow.evaluate.plots.files import save_figure

#: Title, caption and drawing of a figure.
Picture = tuple[str, str, Callable[[], Figure]]


class Shown(NamedTuple):
    """A figure in a page."""

    title: str
    caption: str
    source: str  # data: address


def draw(pictures: Mapping[str, Picture], folder: Path) -> list[Shown]:
    """Draw figures into a folder, each under its name; the same as a page holds them."""
    return [_shown(folder / name, *picture) for name, picture in pictures.items()]


def _shown(path: Path, title: str, caption: str, drawing: Callable[[], Figure]) -> Shown:
    picture = base64.b64encode(save_figure(drawing(), path)).decode("ascii")
    return Shown(title, caption, f"data:image/png;base64,{picture}")
