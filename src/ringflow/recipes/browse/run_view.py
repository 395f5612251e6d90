"""What the page tells of a run: its state, its best figures, its curves, its settings, and what lies beside it."""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ringflow.base.rundir import SETTINGS_FILE
from ringflow.recipes.runs import HISTORY_FILE, RUN_FILE, read_history

#: Figures with a curve: name -> kind of line, name in it, what people call it, whether small is good.
FIGURES: dict[str, tuple[str, str, str, bool]] = {
    "loss": ("validation", "loss", "loss (validation)", True),
    "train_loss": ("train", "loss", "loss (training)", True),
    "jets": ("validation", "jet_iqr_over_median", "jet width", True),
    "f1": ("validation", "particle_f1", "particle F1", False),
    "met": ("validation", "met_iqr_over_median", "missing pT width", True),
    "energy": ("validation", "visible_energy_resolution", "energy width", True),
}
#: Points of a curve on the page.
MOST_POINTS = 80
#: A run that wrote this many seconds ago is taken to be running, where nothing else tells.
_FRESH = 120.0
#: What may lie beside a run to be looked at.
_PAGES = (("report", "report/index.html"), ("profile", "profile/index.html"), ("card", "README.md"))

Line = dict[str, Any]


def view_run(folder: Path, top: Path, locked: frozenset[int]) -> dict[str, Any]:
    """A run, ready for JSON; what cannot be read is left out."""
    stamps = tuple(_stamp(folder / name) for name in (HISTORY_FILE, RUN_FILE, SETTINGS_FILE))
    told = dict(_read(folder, stamps))
    settings = told["settings"]
    length = settings.get("length.events")
    told["state"] = _state(folder, told, settings, locked)
    told["name"] = str(folder.relative_to(top)) if folder != top else folder.absolute().name
    told["of"] = length
    told["pages"] = [[label, name] for label, name in _PAGES if (folder / name).is_file()]
    return told


@lru_cache(maxsize=20_000)
def _read(folder: Path, stamps: tuple[Any, ...]) -> dict[str, Any]:
    """What depends on the content of the files only; read again when one of them changes."""
    history, record = read_history(folder), _record(folder)
    code = record.get("code") or {}
    return {
        "events": history[-1].get("events", 0) if history else 0,
        "steps": history[-1].get("step", 0) if history else 0,
        "when": max((stamp[0] for stamp in stamps if stamp), default=0.0),
        "commit": str(code.get("commit", ""))[:12] + ("*" if code.get("dirty") else ""),
        "settings": dict(_flat(_settings(folder, record))),
        "best": _best(history),
        "curves": {name: curve for name in FIGURES if (curve := _curve(history, name))},
        "since_best": _since_best(history),
    }


def locked_folders() -> frozenset[int]:
    """Inodes that a process of this machine holds a lock on, as a training does on its folder."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return frozenset()
    inodes = [word.rsplit(":", 1)[-1] for line in lines for word in line.split() if word.count(":") == 2]
    return frozenset(int(inode) for inode in inodes if inode.isdigit())


def _state(folder: Path, told: Mapping[str, Any], settings: Mapping[str, Any], locked: frozenset[int]) -> str:
    """Finished, running or interrupted; `begun` before the first line of its history."""
    patience, length = settings.get("length.patience") or 0, settings.get("length.events")
    if (length and told["events"] >= length) or 0 < patience <= told["since_best"]:
        return "finished"
    with suppress(OSError):
        if os.stat(folder).st_ino in locked or time.time() - told["when"] < _FRESH:
            return "running"
    return "interrupted" if told["events"] else "begun"


def _best(history: Sequence[Line]) -> dict[str, float]:
    found = {}
    for name, (kind, figure, _, small) in FIGURES.items():
        values = [line[figure] for line in history if line["kind"] == kind and _is_number(line.get(figure))]
        if values:
            found[name] = min(values) if small else max(values)
    return found


def _since_best(history: Sequence[Line]) -> int:
    """Validations since the best one, by its jets or by its loss, as the training counts them."""
    lines = [line for line in history if line["kind"] == "validation"]
    figure = "jet_iqr_over_median" if any(_is_number(line.get("jet_iqr_over_median")) for line in lines) else "loss"
    values = [line[figure] if _is_number(line.get(figure)) else float("inf") for line in lines]
    return len(values) - 1 - values.index(min(values)) if values else 0


def _curve(history: Sequence[Line], name: str) -> list[list[float]] | None:
    """Events and values, thinned out evenly; the last point is always there."""
    kind, figure, _, _ = FIGURES[name]
    points = [
        [line["events"], line[figure]]
        for line in history
        if line["kind"] == kind and _is_number(line.get(figure)) and _is_number(line.get("events"))
    ]
    if not points:
        return None
    if len(points) > MOST_POINTS:
        last = len(points) - 1
        points = [points[round(number * last / (MOST_POINTS - 1))] for number in range(MOST_POINTS)]
    return [[point[0] for point in points], [float(f"{point[1]:.5g}") for point in points]]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _record(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads((folder / RUN_FILE).read_bytes())
        if isinstance(found, dict):
            return found
    return {}


def _settings(folder: Path, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """From the record, which is read faster than TOML."""
    if isinstance(found := record.get("settings"), Mapping):
        return found
    with suppress(OSError, ValueError):
        return tomllib.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    return {}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif value is not None:
        yield name, value


def _stamp(path: Path) -> tuple[float, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime, found.st_size
