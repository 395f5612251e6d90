"""HTML pages: rendered from a template, with their figures inside, so that a page needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jinja2

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Title, caption and drawing of a figure.
Picture = tuple[str, str, "Callable[[], Figure]"]

_SHARED = Path(__file__).parent / "templates"


class Shown(NamedTuple):
    """A figure in a page."""

    title: str
    caption: str
    source: str  # data: address


def draw(pictures: Mapping[str, Picture], folder: Path) -> list[Shown]:
    """Draw figures into a folder, each under its name; the same as a page holds them."""
    from ringflow.evaluate.plots.style import save_figure

    return [
        Shown(title, caption, inline(save_figure(drawing(), folder / name)))
        for name, (title, caption, drawing) in pictures.items()
    ]


def inline(png: bytes) -> str:
    """A picture as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def render(template: Path, **values: object) -> str:
    """The page; the template may include those beside it and those that all pages share. A missing value is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _SHARED]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**values)
