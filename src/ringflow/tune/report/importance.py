"""Which settings matter: how much of what trials differ in comes from each parameter, as Optuna tells (PED-ANOVA,
arXiv:2304.10255): in which settings the best tenth of the trials differs from the others."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from ringflow.launch.frameworks import framework
from ringflow.tune.record import TrialRecord
from ringflow.tune.space import Space

#: Trials from which something can be learnt.
FEWEST = 8


def importances(space: Space, trials: Sequence[TrialRecord]) -> dict[str, float]:
    """Share of each parameter, most important first; empty if there are too few trials, all 0 if nothing makes a difference.

    Stopped and diverged trials count by their place: who came further is better, and of those who came as far the lower value.
    """
    optuna = framework("optuna", "tune")
    told = [trial for trial in trials if trial.reports]
    if len(told) < FEWEST:
        return {}
    places = [(-trial.resource, _or_infinite(trial.reports[-1].value)) for trial in told]
    rank = {place: number for number, place in enumerate(sorted(set(places)))}
    names = {parameter.name: parameter for parameter in space.parameters}
    if len(rank) == 1:
        return dict.fromkeys(names, 0.0)
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study()
        study.add_trials(
            optuna.trial.create_trial(
                params={name: names[name].plain(value) for name, value in trial.point.items()},
                distributions={name: names[name].distribution for name in trial.point},
                value=float(rank[place]),
            )
            for trial, place in zip(told, places, strict=True)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = {str(name): float(share) for name, share in optuna.importance.get_param_importances(study).items()}
    finally:
        optuna.logging.set_verbosity(level)
    return {**found, **dict.fromkeys(names.keys() - found.keys(), 0.0)}


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf
