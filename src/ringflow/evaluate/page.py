"""Pages: one HTML file that needs nothing else, made from a template, with its figures inside and beside it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jinja2
from matplotlib.figure import Figure

from ringflow.evaluate.plots.files import save_figure

_SHARED = Path(__file__).parent / "templates"

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


def render(template: Path, **values: object) -> str:
    """A page of a template, which may include those that all pages share."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _SHARED]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**values)
