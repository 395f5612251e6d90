"""Several things made small at once: the trials that no other one beats, and how much of the plane they dominate.

A trial that was stopped early counts with its last values. Training on would make them smaller, if anything, so that what is on
the front now would not leave it for worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringflow.tune.objective import ALIASES
from ringflow.tune.record import TrialRecord

Vector = NDArray[np.float64]


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


def objective_values(trial: TrialRecord, objectives: Sequence[str]) -> list[float]:
    """Last values of a trial; NaN for what it did not tell."""
    if len(objectives) == 1:
        return [math.nan if trial.value is None else trial.value]
    return [float(trial.figures.get(ALIASES.get(name, name), math.nan)) for name in objectives]


def front_of(trials: Sequence[TrialRecord], objectives: Sequence[str]) -> Front:
    """The front of those trials that told all values."""
    rows = [objective_values(trial, objectives) for trial in trials]
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
