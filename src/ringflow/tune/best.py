"""The settings of the best trial as a file that `ringflow train` takes, and the front of several objectives.

    Path("best.toml").write_text(best_settings(Path("studies/clic_small")))

A trial that was stopped early counts with its last values. Training on would make them smaller, if anything, so that what is on
the front now would not leave it for worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringflow.base.config import to_toml
from ringflow.base.errors import FailureError, UsageError
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import TrialRecord, best_of
from ringflow.tune.space import with_values

Vector = NDArray[np.float64]


def best_settings(study: Path, objective: str | None = None, trial: int | None = None) -> str:
    """Complete settings of a training as TOML: of the trial that is best in an objective (the first one), or of this trial."""
    folder = StudyFolder(study)
    trials, objectives = folder.record().trials, folder.settings.objectives
    if objective is not None and objective not in objectives:
        raise UsageError(f"{folder.path} made no {objective!r} small; choose from {', '.join(objectives)}")
    if trial is not None and not 0 <= trial < len(trials):
        there = f"there are trials 0 to {len(trials) - 1}" if trials else "there are none yet"
        raise UsageError(f"{folder.path} has no trial {trial}; {there}")
    place = objectives.index(objective) if objective is not None else 0
    chosen = best_of(trials, objectives, place) if trial is None else trials[trial]
    if chosen is None:
        raise FailureError(_nothing(folder, trials))
    pairs = zip(objectives, chosen.values(objectives), strict=True)
    told = f": {', '.join(f'{name} {value:.5g}' for name, value in pairs)} after {chosen.resource:,} events"
    settings = with_values(folder.training, chosen.point)
    origin = f"# trial {chosen.number} of {folder.path.absolute().name}"
    return f"{origin}{told if chosen.reports else ', which has no value'}\n{to_toml(settings)}"


def front_rows(study: Path) -> list[dict[str, object]]:
    """The front of several objectives, one row per trial: number, state, events, values and settings."""
    folder = StudyFolder(study)
    trials = folder.record().trials
    front = front_of(trials, folder.settings.objectives)
    if not front.trials:
        raise FailureError(_nothing(folder, trials))
    return [
        {"trial": trial.number, "state": trial.state, "events": trial.resource}
        | dict(zip(folder.settings.objectives, values, strict=True))
        | dict(trial.point)
        for trial, values in zip(front.trials, front.values.tolist(), strict=True)
    ]


def short(point: Mapping[str, object], most: int | None = None) -> str:
    """Settings in a few words, with the last part of every name: `rate=0.0012 width=128`."""
    words = [f"{name.rpartition('.')[2]}={_brief(value)}" for name, value in point.items()]
    return " ".join(words[:most]) + (" …" if most is not None and len(words) > most else "")


def _brief(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(_brief, value))
    return str(value)


def _nothing(folder: StudyFolder, trials: Sequence[TrialRecord]) -> str:
    if trials and all(trial.state == "failed" for trial in trials):
        return f"all {len(trials)} trials of {folder.path} failed, the last with: {trials[-1].reason}"
    return f"no trial of {folder.path} has a value yet; go on with `ringflow tune resume {folder.path}`"


@dataclass(frozen=True)
class Front:
    """The trials that no other trial beats in everything."""

    #: By the first objective, best first, and their values, one row per trial.
    trials: list[TrialRecord]
    values: Vector
    #: Trials compared.
    compared: int
    #: Share of the box between the best and the worst values of all trials that the front dominates.
    hypervolume: float


def front_of(trials: Sequence[TrialRecord], objectives: Sequence[str]) -> Front:
    """The front of those trials that told all values."""
    rows = [trial.values(objectives) for trial in trials]
    told = [index for index, row in enumerate(rows) if all(map(math.isfinite, row))]
    if not told:
        return Front([], np.empty((0, len(objectives))), 0, 0.0)
    values = np.array([rows[index] for index in told])
    kept = sorted(non_dominated(values), key=lambda row: rows[told[row]])
    return Front([trials[told[row]] for row in kept], values[kept], len(told), _share(values[kept], values))


def non_dominated(values: ArrayLike) -> list[int]:
    """Rows that no other row beats: at most as large everywhere and smaller somewhere. Of equal rows the first counts."""
    rows = np.asarray(values, dtype=np.float64)
    kept: list[int] = []
    # A row can only be beaten by one that comes before it in this order.
    for row in np.lexsort(rows.T[::-1]).tolist():
        if not kept or not (rows[kept] <= rows[row]).all(axis=1).any():
            kept.append(row)
    return sorted(kept)


def hypervolume(values: ArrayLike, reference: Sequence[float]) -> float:
    """Volume of all that is worse than some row and better than the reference, by slices along the last axis."""
    rows = np.asarray(values, dtype=np.float64).reshape(-1, len(reference))
    rows = rows[(rows < np.asarray(reference)).all(axis=1)]
    if not len(rows):
        return 0.0
    if len(reference) == 1:
        return float(reference[0] - rows.min())
    rows = rows[np.argsort(rows[:, -1], kind="stable")]
    edges = np.append(rows[:, -1], reference[-1])
    return math.fsum(
        thickness * hypervolume(rows[: count + 1, :-1], reference[:-1])
        for count, thickness in enumerate(np.diff(edges).tolist())
        if thickness > 0.0
    )


def _share(front: Vector, values: Vector) -> float:
    best, worst = values.min(axis=0), values.max(axis=0)
    varied = worst > best
    if not varied.any():
        return 0.0
    scaled = (front[:, varied] - best[varied]) / (worst - best)[varied]
    return hypervolume(scaled[non_dominated(scaled)], [1.0] * int(varied.sum()))
