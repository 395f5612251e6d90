"""Which settings matter: how much of what trials differ in comes from each parameter.

A random forest learns scores from settings, see `search.history` for what a score is: stopped and diverged trials count. Asked
at points from all over the space it tells what part of the variance of its scores would stay if everything but one parameter
were known (total effect, I. Sobol 1993, estimated as by M. Jansen 1999). What several parameters do together counts for each.
A parameter that is not active does nothing; the choice that makes it active counts for what comes with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringflow.launch.frameworks import framework
from ringflow.tune.parameter import same
from ringflow.tune.record import TrialRecord
from ringflow.tune.schedulers import Finished
from ringflow.tune.search.history import read_history
from ringflow.tune.space import Space, Vector

#: Trials from which something can be learnt.
FEWEST = 8
#: Trials to learn from at most, and points that the forest is asked about.
_MOST, _ASKED = 1000, 1024
_TREES = 40


@dataclass(frozen=True)
class Importances:
    """What a forest found."""

    #: By name, most important first; they add up to 1, or are all 0 if no setting makes a difference.
    shares: dict[str, float]
    #: Share of the variance of scores that the forest predicts of trials it did not learn from; 0 or less: it knows nothing.
    explained: float
    #: Trials it learnt from.
    trials: int


def importances(space: Space, trials: Sequence[TrialRecord]) -> dict[str, float]:
    """Share of each parameter, most important first; empty if there are too few trials."""
    found = find_importances(space, trials)
    return found.shares if found else {}


def find_importances(space: Space, trials: Sequence[TrialRecord], seed: int = 1) -> Importances | None:
    """Shares, and how much they are worth; None if there are too few trials. An error without scikit-learn."""
    ensemble = framework("sklearn.ensemble", "tune")
    from ringflow.tune.search.surrogate import features_of

    history = read_history(space, [_finished(trial) for trial in _latest(trials)], _MOST)
    if len(history) < FEWEST:
        return None
    leaf = 1 if len(history) < 100 else 3
    forest = ensemble.RandomForestRegressor(
        _TREES, min_samples_leaf=leaf, max_features=0.8, oob_score=True, random_state=seed
    )
    forest.fit(features_of(space, history.vectors), history.scores)
    rng = np.random.default_rng(seed)
    here, there = rng.random((2, _ASKED, len(space)))
    moved = [here]
    for column in range(len(space)):
        moved.append(here.copy())
        moved[-1][:, column] = there[:, column]
    scores = forest.predict(features_of(space, _with_gaps(space, np.concatenate(moved)))).reshape(len(moved), _ASKED)
    effects = ((scores[1:] - scores[0]) ** 2).mean(axis=1)
    shares = effects / (effects.sum() or 1.0)
    names = [parameter.name for parameter in space.parameters]
    ranked = sorted(zip(names, shares.tolist(), strict=True), key=lambda named: -named[1])
    return Importances(dict(ranked), float(forest.oob_score_), len(history))


def _latest(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Of very many trials the best and as many others, spread evenly: what counts is where the good ones are."""
    told = [trial for trial in trials if trial.reports]
    if len(told) <= _MOST:
        return told
    ranked = sorted(told, key=lambda trial: _finite(trial.reports[-1].value))
    rest = ranked[_MOST // 2 :]
    step = len(rest) / (_MOST - _MOST // 2)
    return [*ranked[: _MOST // 2], *(rest[int(step * index)] for index in range(_MOST - _MOST // 2))]


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _finished(trial: TrialRecord) -> Finished:
    complete = trial.state == "complete"
    return Finished(trial.number, trial.point, trial.value, trial.resource, complete, trial.earlier_values)


def _with_gaps(space: Space, positions: Vector) -> Vector:
    """NaN for every parameter that is not active where the others are."""
    columns: dict[str, Vector] = {}
    for parameter, column in zip(space.parameters, positions.T, strict=True):
        active = np.ones(len(column), dtype=bool)
        for parent, values in parameter.when.items():
            active &= _has_one_of(space, parent, values, columns[parent])
        columns[parameter.name] = np.where(active, column, np.nan)
    return np.column_stack(list(columns.values()))


def _has_one_of(space: Space, name: str, values: Sequence[object], positions: Vector) -> NDArray[np.bool_]:
    parameter = next(parameter for parameter in space.parameters if parameter.name == name)

    def fits(position: float) -> bool:
        return not math.isnan(position) and any(same(parameter.value(position), value) for value in values)

    return np.fromiter(map(fits, positions.tolist()), dtype=bool, count=len(positions))
