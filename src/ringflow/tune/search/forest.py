"""A random forest as model of scores (F. Hutter et al., SMAC): for many trials, many settings, and choices that change all."""

from __future__ import annotations

import numpy as np

from ringflow.launch.frameworks import framework
from ringflow.tune.space import Vector

TREES = 30


class RandomForest:
    """The mean over trees is what is expected, their disagreement how sure that is."""

    #: Beyond, fitting takes seconds.
    most = 2000
    #: Trees split where trials are: of what is between and beyond them they know nothing, and all of them the same.
    curiosity = 0.15
    candidates = (32, 96)

    def __init__(self) -> None:
        self._ensemble = framework("sklearn.ensemble", "tune")

    def fit(self, features: Vector, scores: Vector, seed: int) -> None:
        """Grow the trees, each from trials drawn anew."""
        self._forest = self._ensemble.RandomForestRegressor(TREES, max_features=0.8, random_state=seed).fit(
            features, scores
        )

    def predict(self, features: Vector) -> tuple[Vector, Vector]:
        """Expected scores and their standard deviations."""
        trees = np.array([tree.predict(features) for tree in self._forest.estimators_])
        return trees.mean(axis=0), np.sqrt(trees.var(axis=0) + 0.01)  # trees that agree may still err
