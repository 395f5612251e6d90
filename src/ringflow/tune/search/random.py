"""Points drawn at random: the search that all others are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from ringflow.tune.schedulers import Finished, Point
from ringflow.tune.search.domain import Domain


class RandomSearch:
    """A new random point per trial, whatever came of the others."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain

    def ask(self, trial: int, known: Sequence[Finished]) -> Point | None:
        """A point that was not tried."""
        return self._domain.draw(known, self._domain.rng(trial))
