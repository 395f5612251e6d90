"""Every combination, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from ringflow.base.errors import SettingsError, UsageError
from ringflow.tune.schedulers import Finished, Point
from ringflow.tune.search.domain import Domain


class GridSearch:
    """The points of a grid in their order, without those that the settings refuse; None when all were tried."""

    def __init__(self, domain: Domain, steps: int = 3) -> None:
        if steps < 1:
            raise UsageError(f"a grid of {steps} values per range is empty; give at least 1")
        self._domain, self._steps = domain, steps

    def ask(self, trial: int, known: Sequence[Finished]) -> Point | None:
        """The first point of the grid that was not tried."""
        allowed = False
        for point in self._domain.space.grid(self._steps):
            if self._domain.fresh(point, known):
                return point
            allowed = allowed or self._domain.allows(point)
        if not allowed:
            raise SettingsError(f"no point of the grid of {self._steps} values per range is allowed; change the ranges")
        return None
