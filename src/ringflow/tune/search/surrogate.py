"""Searches that learn what scores to expect, and try the point with the highest expected improvement (J. Mockus 1975).

The points compared are random ones and neighbours of the best trials. Points of trials that run are learnt with the median
score, as if they had come to nothing much: what is expected there sinks, and nobody else is sent there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from ringflow.tune.schedulers import Finished, Point
from ringflow.tune.search.domain import Domain
from ringflow.tune.search.history import History, read_history
from ringflow.tune.space import Space, Vector

#: Trials that begin the search.
BEGINNERS = 8


class Surrogate(Protocol):
    """A model of scores."""

    #: Trials that it learns from at most.
    most: int
    #: Share of the trials that go where nobody was, for a model that is surer of itself than it should be.
    curiosity: float
    #: Random points, and neighbours of the best trials, that are compared.
    candidates: tuple[int, int]

    def fit(self, features: Vector, scores: Vector, seed: int) -> None:
        """Learn."""

    def predict(self, features: Vector) -> tuple[Vector, Vector]:
        """Expected scores and their standard deviations."""


class SurrogateSearch:
    """The point that is expected to improve most upon the best."""

    def __init__(self, domain: Domain, model: Surrogate, beginners: int = BEGINNERS) -> None:
        self._domain, self._model, self._beginners = domain, model, beginners

    def ask(self, trial: int, known: Sequence[Finished]) -> Point | None:
        """The best of about a hundred points, as far as the model can tell, once it has trials to learn from."""
        rng = self._domain.rng(trial)
        space = self._domain.space
        history = read_history(space, known, self._model.most)
        if len(history) < self._beginners or rng.random() < self._model.curiosity:
            return self._domain.spread(known, rng)
        vectors = np.concatenate([history.vectors, history.pending])
        scores = np.concatenate([history.scores, np.zeros(len(history.pending))])
        self._model.fit(features_of(space, vectors), scores, int(rng.integers(2**31)))
        points = self._candidates(history, rng)
        candidates = np.concatenate([history.vectors, [space.encode(point) for point in points]])
        mean, deviation = self._model.predict(features_of(space, candidates))
        tried = len(history)
        improvement = expected_improvement(mean[tried:], deviation[tried:], best=float(mean[:tried].min()))
        best_first = iter(np.argsort(-improvement, kind="stable").tolist())
        found = next((points[index] for index in best_first if self._domain.fresh(points[index], known)), None)
        return found or self._domain.draw(known, rng)

    def _candidates(self, history: History, rng: np.random.Generator) -> list[dict[str, object]]:
        domain, best = self._domain, history.vectors[history.best_first[:5]]
        anywhere, neighbours = self._model.candidates
        near = [domain.mutate(best[row % len(best)], rng, rng.choice([0.05, 0.2]), 0.4) for row in range(neighbours)]
        return [domain.space.decode(vector) for vector in near] + [domain.space.sample(rng) for _ in range(anywhere)]


def expected_improvement(mean: Vector, deviation: Vector, best: float) -> Vector:
    """How much below the best a normally distributed value is on average, counting 0 where it is above."""
    deviation = np.maximum(deviation, 1e-9)
    reach = (best - mean) / deviation
    improvement: Vector = deviation * (reach * ndtr(reach) + np.exp(-(reach**2) / 2) / np.sqrt(2 * np.pi))
    return improvement


def features_of(space: Space, vectors: Vector) -> Vector:
    """Columns that a model understands: positions, in the middle if not active, and a column per value of a choice without
    an order, all of them 0 if not active."""
    columns = []
    for parameter, positions in zip(space.parameters, vectors.T, strict=True):
        if getattr(parameter, "ordered", True):
            columns.append(np.where(np.isnan(positions), 0.5, positions))
        else:
            count = parameter.count or 1
            cells = np.where(np.isnan(positions), -1, np.minimum(np.floor(positions * count), count - 1))
            columns.extend((cells == cell).astype(np.float64) for cell in range(count))
    return np.column_stack(columns)
