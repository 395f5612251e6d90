"""Several objectives as one, differently for every question, so that a search finds its way along the whole front.

Random weights per question and the weighted largest of the scaled objectives, with a little of their sum (ParEGO: J. Knowles,
IEEE Trans. Evol. Comput. 10, 2006): every point of a front, also of a hollow one, is the best for some weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ringflow.tune.schedulers import Finished

_SUM_SHARE = 0.05


def scalarised(known: Sequence[Finished], seed: Sequence[int]) -> Sequence[Finished]:
    """Trials with one value instead of several; as they are where there is one objective.

    Objectives are scaled by ranks, so that no unit and no outlier counts; those of earlier studies among themselves, as their
    data and the length of their trials may have been others.
    """
    count = max((len(trial.values) for trial in known), default=0)
    if not count:
        return known
    weights = np.random.default_rng(seed).dirichlet(np.ones(count))
    groups = ([trial for trial in known if trial.trial < 0], [trial for trial in known if trial.trial >= 0])
    return [trial for group in groups for trial in _weighted(group, weights)]


def _weighted(known: Sequence[Finished], weights: NDArray[np.float64]) -> Sequence[Finished]:
    ranked = ranks(known)
    if len(ranked) < 2:
        return known
    weighted = np.array(list(ranked.values())) * weights
    scalars = weighted.max(axis=1) + _SUM_SHARE * weighted.sum(axis=1)
    value_of = dict(zip(ranked, scalars.tolist(), strict=True))
    return [
        trial
        if trial.value is None
        else replace(trial, value=value_of.get(trial.trial, math.nan), earlier=())  # values of another kind
        for trial in known
    ]


def ranks(known: Sequence[Finished]) -> dict[int, tuple[float, ...]]:
    """By trial, where each of its objectives stands: 0 the best, 1 the worst; of those that have finite values of all."""
    told = {trial.trial: trial.values for trial in known if trial.values and all(map(math.isfinite, trial.values))}
    table = np.array(list(told.values()))
    order = table.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable") / max(len(table) - 1, 1)
    return dict(zip(told, map(tuple, order.tolist()), strict=True))
