"""Pages: one HTML skeleton for all of them, `templates/page.html.j2`, whose style they share.

A page is one file that loads nothing. A value that its template lacks is an error, not a gap.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import NamedTuple

PAGE_FILE = "index.html"
_SHARED = Path(__file__).parent / "templates"


class Shown(NamedTuple):
    """A figure in a page."""

    title: str
    caption: str
    source: str  # data: address


def inline(png: bytes) -> str:
    """A picture as the address of itself."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def render(template: Path, **values: object) -> str:
    """The page; the template extends `page.html.j2` and may include what lies beside it."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _SHARED]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**values)
