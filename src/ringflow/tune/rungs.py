"""Rungs: the resources at which trials are compared, and who reached them."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ringflow.base.errors import UsageError

#: A rung nearer to the end than this saves nothing, and putting trials aside there costs a start each.
_NEARLY_THE_END = 0.9
#: One in so many goes on, unless told.
ETA = 4


def first_rung(most: int, eta: int) -> int:
    """Events after which trials of so many are compared first, unless told: two rungs are before the end."""
    return max(most // eta**2, 1)


@dataclass(frozen=True)
class Ladder:
    """Trials live from `least` to `most` events; of those at a rung one in `eta` goes on to the next."""

    least: int
    most: int
    eta: int = ETA

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UsageError(f"trials cannot live from {self.least} to {self.most} events; give 1 <= least <= most")
        if self.eta < 2:
            raise UsageError(f"one in {self.eta} trials cannot go on; give eta of at least 2")

    @cached_property
    def rungs(self) -> tuple[int, ...]:
        """`least`, `least * eta`, `least * eta**2` ... and `most`, which is the end; none just before it."""
        rungs, resource = [], self.least
        while resource <= _NEARLY_THE_END * self.most:
            rungs.append(resource)
            resource *= self.eta
        return (*rungs, self.most)

    @cached_property
    def from_the_end(self) -> tuple[int, ...]:
        """... `most / eta**2`, `most / eta`, `most`, as long as it is not below `least`: the rungs of Hyperband."""
        rungs, power = [self.most], self.eta
        while self.most >= self.least * power:
            rungs.append(self.most // power)
            power *= self.eta
        return tuple(reversed(rungs))


class Place(NamedTuple):
    """Of a trial at a rung; the smallest is the best."""

    value: float
    arrival: int
    trial: int


class Rung:
    """The trials that reached a rung, best first; of equal ones the first to come."""

    def __init__(self) -> None:
        self.arrived = 0
        self._ranked: list[Place] = []
        self._place: dict[int, Place] = {}

    def put(self, trial: int, value: float) -> None:
        """A trial arrives. One whose value is not finite counts, but has no place among the others."""
        if math.isfinite(value):
            self._place[trial] = Place(value, self.arrived, trial)
            insort(self._ranked, self._place[trial])
        self.arrived += 1

    def drop(self, trial: int) -> None:
        """A trial does not exist any more: those behind it move up."""
        place = self._place.pop(trial, None)
        if place is not None:
            del self._ranked[bisect_left(self._ranked, place)]

    def among_best(self, trial: int, count: int) -> bool:
        """Whether a trial is one of the so many best."""
        place = self.place(trial)
        return place is not None and bisect_left(self._ranked, place) < count

    def place(self, trial: int) -> Place | None:
        """Where a trial stands; None for one that did not come, has no finite value or does not exist any more."""
        return self._place.get(trial)

    @property
    def ranked(self) -> list[int]:
        """Trials with a finite value, best first."""
        return [place.trial for place in self._ranked]
