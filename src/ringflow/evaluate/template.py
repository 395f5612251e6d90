"""One HTML page from a template. It shares its style with all pages, and a value that is missing is an error, not a gap."""

from __future__ import annotations

from pathlib import Path

import jinja2

_SHARED = Path(__file__).parent / "templates"


def render(template: Path, **values: object) -> str:
    """The page; the template may include those beside it and those that all pages share."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _SHARED]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**values)
