"""Tree-structured Parzen estimator (J. Bergstra et al., NeurIPS 2011), as Optuna has it.

Two densities are fitted, to the best tenth of the trials and to the others; the next point is the one of several drawn from the
first whose ratio of the two is highest. Parameters that occur together are fitted together, whatever depends on a condition by
itself. Trials that run count among the others, so that nobody is sent where somebody is. Optuna's study lives in memory for one
question; it is told scores (see `history`), not that a trial was stopped.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ringflow.launch.frameworks import framework
from ringflow.tune.parameter import Parameter
from ringflow.tune.schedulers import Finished, Point
from ringflow.tune.search.domain import Domain
from ringflow.tune.search.history import History, read_history
from ringflow.tune.space import Vector

#: Trials that begin the search, at least and per parameter: from fewer, the best tenth is one point, and says nothing.
BEGINNERS, BEGINNERS_PER_PARAMETER = 8, 2
#: Trials that Optuna is told of: it takes 25 good ones at most, and forgets old ones.
MOST = 800
#: Points that are refused or were tried, until one is drawn at random.
ATTEMPTS = 20


class TpeSearch:
    """What is likely among the good and unlikely among the others."""

    def __init__(self, domain: Domain, beginners: int | None = None) -> None:
        self._optuna = framework("optuna", "tune")
        self._domain = domain
        self._beginners = beginners or max(BEGINNERS, BEGINNERS_PER_PARAMETER * len(domain.space.parameters))
        self._distributions = {p.name: self._distribution(p) for p in domain.space.parameters}

    def ask(self, trial: int, known: Sequence[Finished]) -> Point | None:
        """A point that Optuna suggests, once it has trials to learn from."""
        rng = self._domain.rng(trial)
        history = read_history(self._domain.space, known, MOST)
        if len(history) < self._beginners:
            return self._domain.spread(known, rng)
        study = self._study(history, int(rng.integers(2**31)))
        for _ in range(ATTEMPTS):
            # What is not taken stays in the study as a trial that runs, so that the next suggestion is another.
            asked = study.ask()
            point = self._domain.space.build(partial(self._suggested, asked))
            if self._domain.fresh(point, known):
                return point
        return self._domain.draw(known, rng)

    def _study(self, history: History, seed: int) -> Any:
        optuna = self._optuna
        loudness = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of `group`
                sampler = optuna.samplers.TPESampler(
                    seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=0
                )
            study = optuna.create_study(sampler=sampler)
        finally:
            optuna.logging.set_verbosity(loudness)
        for vector, score in zip(history.vectors, history.scores.tolist(), strict=True):
            study.add_trial(self._trial(vector, value=score))
        for vector in history.pending:
            study.add_trial(self._trial(vector, state=optuna.trial.TrialState.RUNNING))
        return study

    def _trial(self, vector: Vector, **outcome: Any) -> Any:
        params = {}
        for parameter, position in zip(self._domain.space.parameters, vector.tolist(), strict=True):
            if not np.isnan(position):
                params[parameter.name] = _cell(parameter, position) if parameter.even else position
        distributions = {name: self._distributions[name] for name in params}
        return self._optuna.trial.create_trial(params=params, distributions=distributions, **outcome)

    def _distribution(self, parameter: Parameter) -> Any:
        """Positions, or the number of the part where parts are equal: whole numbers in order, choices without one."""
        distributions = self._optuna.distributions
        if not parameter.even:
            return distributions.FloatDistribution(0.0, 1.0)
        count = parameter.count or 1
        if getattr(parameter, "ordered", True):
            return distributions.IntDistribution(0, count - 1)
        return distributions.CategoricalDistribution(range(count))

    def _suggested(self, asked: Any, parameter: Parameter) -> object:
        if not parameter.even:
            return parameter.value(asked.suggest_float(parameter.name, 0.0, 1.0))
        count = parameter.count or 1
        if getattr(parameter, "ordered", True):
            cell = asked.suggest_int(parameter.name, 0, count - 1)
        else:
            cell = asked.suggest_categorical(parameter.name, range(count))
        return parameter.value((cell + 0.5) / count)


def _cell(parameter: Parameter, position: float) -> int:
    count = parameter.count or 1
    return min(int(position * count), count - 1)
