"""What the trials so far say, as one number per trial that any model can learn from.

A score is a value on a scale of its study: -1 is the best, 0 the median, and the worse half is pressed together below 1. So
differences among the good count, and a diverged trial is just a bad one, however large its loss.

Stopped trials count, with the value that they would have come to (see `expected`); none is left out because none of its kind
lived to the end.

An earlier study (negative trial numbers) has a scale of its own: its data and the length of its trials may have been others;
what it tells is which settings were better than which.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringflow.tune.schedulers import Finished
from ringflow.tune.search.expected import expected_ends
from ringflow.tune.space import Space, Vector

#: Beyond, a value says nothing but that the training failed.
DIVERGED = 1e100


@dataclass(frozen=True)
class History:
    """Trials of a space, in the order of their numbers."""

    #: One row per trial that has a value, and its score, of which the lowest is the best.
    vectors: Vector
    scores: Vector
    #: One row per trial that runs.
    pending: Vector

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def best_first(self) -> NDArray[np.intp]:
        """Rows of the trials that have a value."""
        return np.argsort(self.scores, kind="stable")


def read_history(space: Space, known: Sequence[Finished], most: int) -> History:
    """What is known, of at most so many trials: of more, the better half and the newest of the rest.

    Points that are not of this space, as an earlier study may have them, are left out.
    """
    known = sorted((trial for trial in known if space.holds(trial.point)), key=lambda trial: trial.trial)
    scored = _keep([*_scored([t for t in known if t.trial < 0]), *_scored([t for t in known if t.trial >= 0])], most)
    return History(
        _rows(space, [trial for trial, _ in scored]),
        np.array([score for _, score in scored], dtype=np.float64),
        _rows(space, [trial for trial in known if trial.value is None]),
    )


def _scored(known: Sequence[Finished]) -> list[tuple[Finished, float]]:
    """Trials that have a value, and their scores."""
    finished = [trial for trial in known if trial.value is not None]
    values = np.array([value if abs(value) < DIVERGED else math.inf for value in expected_ends(finished)])
    told = values[values < DIVERGED]
    if not len(told):
        return [(trial, 1.0) for trial in finished]
    away = (values - np.median(told)) / ((np.median(told) - told.min()) or 1.0)
    scores = np.where(away > 0, np.tanh(away), away).tolist()
    return list(zip(finished, scores, strict=True))


def _keep(scored: list[tuple[Finished, float]], most: int) -> list[tuple[Finished, float]]:
    if len(scored) <= most:
        return scored
    better = set(sorted(range(len(scored)), key=lambda row: scored[row][1])[: most // 2])
    newest = [row for row in range(len(scored)) if row not in better][-(most - most // 2) :]
    return [scored[row] for row in sorted([*better, *newest])]


def _rows(space: Space, trials: Sequence[Finished]) -> Vector:
    return np.array([space.encode(trial.point) for trial in trials]).reshape(len(trials), len(space))
