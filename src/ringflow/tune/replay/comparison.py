"""Schedulers against each other on simulated clusters of several sizes.

    compared = compare(curves, ["asha", "rasda"], [64, 256, 1024], ladder=ladder, costs=costs)
    compared.speedup("rasda", "asha")[256].equal_quality

A training of a study is one of the curves, chosen at random. The same trainings in the same order are given to all schedulers,
and all is repeated for several orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import NamedTuple

from ringflow.base.errors import UsageError
from ringflow.tune.replay.curves import Curve
from ringflow.tune.replay.simulation import Costs, ReplayResult, Setting, replay
from ringflow.tune.schedulers import Ladder


class Speedup(NamedTuple):
    """Of one scheduler over another: means over all orders of trials, of ratios geometric ones."""

    #: Of the time that the whole study takes.
    makespan: float
    #: Of the time until a trial reports a value that both of them find: the worse of their two best ones.
    equal_quality: float
    #: The best values that were found; if they differ much, the makespans do not compare the same thing.
    best: float
    other_best: float


@dataclass
class Comparison:
    """Replays by scheduler and number of devices, one for each order of the trials."""

    results: dict[tuple[str, int], list[ReplayResult]] = field(default_factory=dict)

    def speedup(self, scheduler: str, over: str) -> dict[int, Speedup]:
        """By number of devices."""
        return {
            devices: _speedup(results, self.results[over, devices])
            for (name, devices), results in self.results.items()
            if name == scheduler and (over, devices) in self.results
        }

    def scaling(self, scheduler: str) -> dict[int, float]:
        """Device-time of the smallest cluster against that of each, for the same study: above 1 is better than linear."""
        spent = {
            devices: fmean(devices * result.makespan for result in results)
            for (name, devices), results in self.results.items()
            if name == scheduler
        }
        return {devices: spent[min(spent)] / value for devices, value in spent.items()}


def compare(
    curves: Sequence[Curve],
    schedulers: Sequence[str],
    devices: Sequence[int],
    *,
    ladder: Ladder,
    costs: Costs,
    setting: Setting | None = None,
    trials: int | None = None,
    orders: int = 5,
    advance: Callable[[int], None] = lambda replays: None,
) -> Comparison:
    """Replay a study with every scheduler on every cluster.

    Without `trials` a study has as many as can begin at once, as in the publication of RASDA; so it grows with the cluster.
    `advance` is called after every replay.
    """
    setting = setting or Setting()
    if not curves:
        raise UsageError("no curves to replay; give at least one")
    compared = Comparison()
    for number in devices:
        count = trials or max(number // setting.initial_workers, 1)
        for order in range(orders):
            chosen = Random(setting.seed + order).choices(curves, k=count)
            for name in schedulers:
                result = replay(chosen, name, devices=number, ladder=ladder, costs=costs, setting=setting)
                compared.results.setdefault((name, number), []).append(result)
                advance(1)
    return compared


def _speedup(ours: Sequence[ReplayResult], others: Sequence[ReplayResult]) -> Speedup:
    makespan, quality = [], []
    for result, other in zip(ours, others, strict=True):
        target = max(result.best, other.best)
        makespan.append(other.makespan / result.makespan)
        quality.append(other.seconds_to(target) / result.seconds_to(target))
    return Speedup(
        _geometric(makespan),
        _geometric(quality),
        fmean(r.best for r in ours),
        fmean(r.best for r in others),
    )


def _geometric(ratios: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, ratios)))
