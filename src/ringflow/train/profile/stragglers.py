"""Who is waited for. A rank is named only where chance does not explain it and it costs something."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np

from ringflow.train.profile.table import KINDS, Floats, StepTable

#: Steps from which something can be told.
_FEWEST_STEPS = 10
#: Share of a step by which a rank is later than others before it counts as late, and by which a straggler is on average.
_MATTERS = 0.02
#: Standard deviations by which it is the last one more often than chance would have it.
_SIGNIFICANT = 4.0
#: What a rank does by itself: where a straggler loses its time.
_WORK = tuple(kind for kind in KINDS if kind not in ("communication", "idle"))


class Straggler(NamedTuple):
    """A rank that others wait for."""

    rank: int
    #: Share of the steps in which it is late.
    share: float
    #: By how much, on average over these steps.
    late_ms: float
    #: Share of the others' time in which they wait.
    others_wait: float
    #: What it takes longer for than others, and by how much on average.
    slower_in: str
    slower_ms: float

    def __str__(self) -> str:
        return (
            f"rank {self.rank} is late in {100 * self.share:.0f} % of the steps, by {self.late_ms:.3g} ms on average; "
            f"the others wait {100 * self.others_wait:.0f} % of the time. "
            f"Per step it needs {self.slower_ms:.3g} ms more than they for '{self.slower_in}'"
        )


def stragglers(table: StepTable) -> list[Straggler]:
    """Those that are waited for, the worst first."""
    if table.num_ranks == 1 or table.num_steps < _FEWEST_STEPS:
        return []
    found = [_looked_at(table, rank) for rank in range(table.num_ranks)]
    return sorted((one for one in found if one is not None), key=lambda one: -one.share * one.late_ms)


def _looked_at(table: StepTable, rank: int) -> Straggler | None:
    late, typical = table["late_ms"], float(np.median(table["step_ms"]))
    is_late = (late[:, rank] > _MATTERS * typical) & (late.argmax(axis=1) == rank)
    chance, steps = 1.0 / table.num_ranks, table.num_steps
    too_often = is_late.mean() > chance + _SIGNIFICANT * sqrt(chance * (1.0 - chance) / steps)
    if not too_often or late[:, rank].mean() < _MATTERS * typical:
        return None
    waited, whole = (np.delete(table[name], rank, axis=1).sum() for name in ("idle_ms", "step_ms"))
    excess = {kind: float(_beyond(table[f"{kind}_ms"], rank).mean()) for kind in _WORK}
    slower_in = max(excess, key=lambda kind: excess[kind])
    return Straggler(
        rank,
        float(is_late.mean()),
        float(late[is_late, rank].mean()),
        float(waited / whole),
        slower_in,
        excess[slower_in],
    )


def _beyond(times: Floats, rank: int) -> Floats:
    """What a rank took longer than the middle one of the others, in every step."""
    return np.asarray(times[:, rank] - np.median(np.delete(times, rank, axis=1), axis=1))
