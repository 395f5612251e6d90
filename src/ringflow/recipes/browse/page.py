"""The page: one HTML file that holds its data and a script of its own, and loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from ringflow.evaluate import template
from ringflow.recipes.browse.run_view import FIGURES, locked_folders, view_run
from ringflow.recipes.browse.scan import TRIALS, scan
from ringflow.recipes.browse.study_view import view_study

_OWN = Path(__file__).parent / "templates"

Link = Callable[[Path], str]


def collect(folder: Path, link: Link) -> dict[str, Any]:
    """All that the page shows; `link` says how a page finds a file."""
    found, locked = scan(folder), locked_folders()
    runs = [_linked(view_run(path, folder, locked), path, link) for path in found.runs]
    studies = [_linked(view_study(path, folder), path, link) for path in found.studies]
    stopped = {study["name"]: set(study.pop("stopped")) for study in studies}
    for run in runs:
        parts = run["name"].split("/")
        study = "/".join(parts[:-2]) if len(parts) > 2 and parts[-2] == TRIALS else None
        run["study"] = study if study in stopped else None
        if parts[-1].isdigit() and int(parts[-1]) in stopped.get(run["study"], ()):
            run["state"] = "stopped"
    return {
        "folder": str(folder),
        "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "figures": {name: {"title": title, "small": small} for name, (_, _, title, small) in FIGURES.items()},
        "common": _take_common(runs),
        "runs": runs,
        "studies": studies,
    }


def beside(out: Path) -> Link:
    """Links of a page that lies in a folder."""
    return lambda path: quote(os.path.relpath(path, out))


def render(data: Mapping[str, Any], *, live: bool) -> str:
    """The page; a live one asks its server for newer data."""
    script = (_OWN / "browse.js").read_text(encoding="utf-8")
    return template.render(
        _OWN / "browse.html.j2",
        folder=data["folder"],
        figures=data["figures"],
        live=live,
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=Markup(as_json(data).replace("<", "\\u003c")),
    )


def as_json(data: Mapping[str, Any]) -> str:
    """Compact JSON, without numbers that are none."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _linked(told: dict[str, Any], folder: Path, link: Link) -> dict[str, Any]:
    return {**told, "pages": [[label, link(folder / name)] for label, name in told["pages"]]}


def _take_common(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Settings that all runs share, taken out of them: what is left tells them apart, and the page stays small."""
    if len(runs) < 2:
        return {}
    first = runs[0]["settings"]
    common = {
        name: value
        for name, value in first.items()
        if all(name in run["settings"] and run["settings"][name] == value for run in runs)
    }
    for run in runs:
        run["settings"] = {name: value for name, value in run["settings"].items() if name not in common}
    return common
