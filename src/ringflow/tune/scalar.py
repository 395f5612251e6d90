"""Several objectives as one, differently for every question, so that a search finds its way along the whole front.

Random weights per question and the weighted largest of the scaled objectives, with a little of their sum (ParEGO: J. Knowles,
IEEE Trans. Evol. Comput. 10, 2006): every point of a front, also of a hollow one, is the best for some weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ringflow.tune.contract import Finished

_SUM_SHARE = 0.05


def scalarised(
    known: Sequence[Finished], objectives: Mapping[int, Sequence[float]], seed: Sequence[int]
) -> Sequence[Finished]:
    """Trials with one value instead of several; as they are where there is one objective.

    Objectives are scaled by ranks, so that no unit and no outlier counts.
    """
    told = {trial: values for trial, values in objectives.items() if all(map(math.isfinite, values))}
    if len(told) < 2:
        return known
    table = np.array(list(told.values()))
    ranks = table.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable") / (len(table) - 1)
    weights = np.random.default_rng(seed).dirichlet(np.ones(table.shape[1]))
    weighted = ranks * weights
    scalars = weighted.max(axis=1) + _SUM_SHARE * weighted.sum(axis=1)
    value_of = dict(zip(told, scalars.tolist(), strict=True))
    own = [trial for trial in known if trial.trial >= 0]  # of an earlier study only one value is known
    return [
        trial
        if trial.value is None
        else replace(trial, value=value_of.get(trial.trial, math.nan), earlier=())  # values of another kind
        for trial in own
    ]
