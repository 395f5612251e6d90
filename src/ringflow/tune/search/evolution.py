"""Evolution with ageing (E. Real et al., arXiv:1802.01548), without generations, so that nobody waits for anybody.

The population is the newest trials that have a value. A parent is the best of a few drawn from it; a second one may give half
of the settings; some settings then change. Old trials die however good they were: what is good must be found again, so that one
lucky value does not lead the search for ever. Trials that still run have no children, and are not tried again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringflow.tune.schedulers import Finished, Point
from ringflow.tune.search.domain import Domain
from ringflow.tune.search.history import History, read_history
from ringflow.tune.space import Vector

#: Trials that begin the population, that live in it, and of which the best becomes a parent.
BEGINNERS, POPULATION, TOURNAMENT = 8, 40, 12
MATING = 0.4


class EvolutionSearch:
    """Children of good trials."""

    def __init__(self, domain: Domain, beginners: int = BEGINNERS) -> None:
        self._domain, self._beginners = domain, beginners

    def ask(self, trial: int, known: Sequence[Finished]) -> Point | None:
        """A child of the population, once there is one."""
        rng = self._domain.rng(trial)
        history = read_history(self._domain.space, newest(known, POPULATION), POPULATION)
        if len(history) < self._beginners:
            return self._domain.spread(known, rng)
        return self._domain.draw(known, rng, lambda: self._domain.space.decode(self._child(history, rng)))

    def _child(self, history: History, rng: np.random.Generator) -> Vector:
        mother = self._parent(history, rng)
        if rng.random() < MATING:
            father = self._parent(history, rng)
            swapped = np.where(rng.random(len(mother)) < 0.5, mother, father)
            mother = np.where(np.isnan(swapped), np.where(np.isnan(mother), father, mother), swapped)
        return self._domain.mutate(mother, rng, width=0.12, rate=1.0 / len(mother))

    def _parent(self, history: History, rng: np.random.Generator) -> Vector:
        drawn = rng.choice(len(history), size=min(TOURNAMENT, len(history)), replace=False)
        parent: Vector = history.vectors[drawn[np.argmin(history.scores[drawn])]]
        return parent


def newest(known: Sequence[Finished], count: int) -> list[Finished]:
    """The last trials that have a value."""
    return sorted((trial for trial in known if trial.value is not None), key=lambda trial: trial.trial)[-count:]
