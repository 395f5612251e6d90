"""What stopped trials would have come to, so that they compare with those that went on.

A trial that was stopped early has a higher value than one that went on, however good it is. To compare last values as they are
would call every trial good that was let through while few had come, and every stopped one bad. So a stopped trial is carried on
as those went on that were shown more, relative to their values where it was stopped. Since it was worse than they were there,
its way is one of their worse ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ringflow.tune.schedulers import Finished

#: Trials end a step apart; who was shown less than so many times as much went no further.
_FURTHER = 1.05
#: Share of those that went on who came down further than a stopped trial is expected to.
_CAUTION = 0.8


def expected_ends(trials: Sequence[Finished]) -> list[float]:
    """Of trials that have a value, the one at the end, or where it can be expected there."""
    ends = [math.nan if trial.value is None else trial.value for trial in trials]
    if any(value <= 0.0 for trial in trials for _, value in _path(trial)):
        return ends  # no share of what is below zero
    order = sorted(
        (row for row in range(len(trials)) if math.isfinite(ends[row])), key=lambda row: -trials[row].resource
    )
    shares: dict[int, float] = {}  # many trials are stopped at the same place
    for row in order:  # those that went furthest first, so that the others can follow them
        if trials[row].complete:
            continue
        stopped = trials[row].resource
        if stopped not in shares:
            shares[stopped] = _share_left(trials, ends, order, stopped)
        ends[row] *= shares[stopped]
    return ends


def _share_left(trials: Sequence[Finished], ends: Sequence[float], order: Sequence[int], stopped: int) -> float:
    """What remains at the end of a value, as those tell who were shown more."""
    told: list[float] = []
    for row in order:
        if trials[row].resource <= _FURTHER * stopped:
            break
        if trials[row].earlier:
            told.append(ends[row] / _value_at(trials[row], stopped))
    return float(np.quantile(told, _CAUTION)) if told else 1.0


def _path(trial: Finished) -> list[tuple[int, float]]:
    last = [] if trial.value is None else [(trial.resource, trial.value)]
    return [(resource, value) for resource, value in (*trial.earlier, *last) if math.isfinite(value)]


def _value_at(trial: Finished, resource: int) -> float:
    """Between two reports, by the logarithm of the resource."""
    places, values = zip(*_path(trial), strict=True)
    return float(np.interp(math.log(max(resource, 1)), np.log(np.maximum(places, 1)), values))
