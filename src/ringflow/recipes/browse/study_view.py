"""What the page tells of a study, from its files; rows of its log are described in `ringflow.tune.record`."""

from __future__ import annotations

import json
import math
import sqlite3
import tomllib
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from ringflow.base.rundir import SETTINGS_FILE
from ringflow.recipes.browse.scan import STUDY_FILE

LOG_FILE, OPTUNA_FILE, REPORT = "study.db", "optuna.db", "report/index.html"
_SECONDS_TO_WAIT = 2.0


def view_study(folder: Path, top: Path) -> dict[str, Any]:
    """A study, ready for JSON; what cannot be read is left out."""
    settings, training = _toml(folder / STUDY_FILE), _toml(folder / SETTINGS_FILE)
    most = (training.get("length") or {}).get("events")
    trials, closed, problem = _trials(folder / LOG_FILE)
    told = {number: trial for number, trial in trials.items() if trial["value"] is not None}
    lived = {number: trial for number, trial in told.items() if most and trial["resource"] >= most}
    best = min((lived or told).items(), key=lambda item: item[1]["value"], default=None)
    return {
        "name": str(folder.relative_to(top)) if folder != top else folder.absolute().name,
        "state": "finished" if closed else "unfinished",
        "objective": ", ".join(settings.get("objectives") or ()),
        "search": settings.get("search"),
        "scheduler": settings.get("scheduler"),
        "trials": len(trials),
        "of": settings.get("trials"),
        "best": best[1]["value"] if best else None,
        "best_trial": best[0] if best else None,
        "problem": problem,
        "pages": [["report", REPORT]] if (folder / REPORT).is_file() else [],
        "optuna": (folder / OPTUNA_FILE).is_file(),
        "stopped": [number for number, trial in trials.items() if trial["stopped"]],
    }


def _trials(path: Path) -> tuple[dict[int, dict[str, Any]], bool, str]:
    """Trials with their last value and resource, whether the study is closed, and what went wrong in reading."""
    trials: dict[int, dict[str, Any]] = {}
    closed = False
    if not path.is_file():
        return trials, closed, ""
    try:
        address = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_SECONDS_TO_WAIT)) as file:
            for kind, trial, data in file.execute("SELECT kind, trial, data FROM log ORDER BY number"):
                if kind == "closed":
                    closed = True
                elif kind == "added":
                    trials[trial] = {"value": None, "resource": 0, "stopped": False}
                elif kind == "reported" and trial in trials:
                    trials[trial] = _reported(json.loads(data))
    except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
        return trials, closed, " ".join(str(error).split())[:200]
    return trials, closed, ""


def _reported(said: dict[str, Any]) -> dict[str, Any]:
    value = said["value"]
    return {
        "value": value if value is not None and math.isfinite(value) else None,
        "resource": said["resource"],
        "stopped": said.get("verdict") == "stop",
    }


def _toml(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return tomllib.loads(path.read_text(encoding="utf-8"))
    return {}
