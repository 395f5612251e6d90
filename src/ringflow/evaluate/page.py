"""A page with figures: drawn into files, and into the page itself, which then needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ringflow.base.output import finite_or_null
from ringflow.base.page import PAGE_FILE, Shown, inline, render
from ringflow.base.rundir import prepared, write_atomic, write_errors
from ringflow.evaluate.plots import save_figure

FIGURES_FOLDER = "figures"

#: Title, caption and drawing of a figure.
Picture = tuple[str, str, Callable[[], Figure]]


def write_page(
    out: Path,
    template: Path,
    pictures: Mapping[str, Picture],
    result: Mapping[str, Any],
    result_file: str,
    **values: object,
) -> Path:
    """Write a page, its figures by name and the numbers behind it as JSON into a folder; the path of the page."""
    folder = out / FIGURES_FOLDER
    with prepared(out, marks=(PAGE_FILE, result_file)):
        with write_errors(folder):
            folder.mkdir(exist_ok=True)
        shown = [
            Shown(title, caption, inline(save_figure(drawing(), folder / name)))
            for name, (title, caption, drawing) in pictures.items()
        ]
        write_atomic(out / result_file, json.dumps(finite_or_null(result), indent=1) + "\n")
        write_atomic(out / PAGE_FILE, render(template, result=result, pictures=shown, **values))
    return out / PAGE_FILE
