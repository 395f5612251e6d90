"""What the processes of a trial do: the ordinary training, which asks at every rung how far it goes.

carry_out(ticket)          # in every process of the trial, with RANK, WORLD_SIZE ... set if they are several
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from ringflow.base.errors import DivergenceError, RingflowError, StoppedError, UsageError
from ringflow.base.log import complain
from ringflow.train.run import train
from ringflow.train.settings import TrainSettings
from ringflow.tune.desk import Side, read_order
from ringflow.tune.executor import Order, Trouble
from ringflow.tune.objective import measure_extras

Figures = Mapping[str, float | None]


def carry_out(
    ticket: Path, *, ring: Callable[[], None] = lambda: None, stopped: Callable[[], bool] = lambda: False
) -> None:
    """Train as an order says. What came of it lies on the desk when this returns; only the first process writes there.

    `ring` is called when something was laid down, `stopped` tells whether to stop waiting for an answer.
    """
    order, side = read_order(ticket), Side(ticket)
    first = os.environ.get("RANK", "0") == "0"
    if first:
        side.begin()
        ring()
    pace = DeskPace(order, side, ring, stopped)
    try:
        train(TrainSettings.model_validate(order.settings), order.run, pace=pace)
        trouble, reason = (None, "") if pace.answered_end or not first else pace.unasked()
    except RingflowError as error:
        trouble, reason = trouble_of(error), str(error)
        if not error.told:
            complain(f"ringflow: error: {error}")
    except Exception as error:  # a study of days does not end for one trial; the next start may do better
        trouble, reason = "failed", " ".join(f"{type(error).__name__}: {error}".split())[:300]
        traceback.print_exc()
    if first:
        side.end(trouble, reason)


class DeskPace:
    """Lays the figures of a validation on the desk when it is one at a rung, and waits to be told how far to go."""

    def __init__(self, order: Order, side: Side, ring: Callable[[], None], stopped: Callable[[], bool]) -> None:
        self._order, self._side, self._ring, self._stopped = order, side, ring, stopped
        self._until = order.until
        self._extras: dict[str, float] = {}
        self.answered_end = False

    def ask(self, events: int, figures: Figures) -> int:
        """How far to go, after a validation."""
        if events < self._until or self.answered_end:
            return self._until
        if not self._extras:
            self._extras = measure_extras(self._order.extras, self._order.run)
        self._until = self._side.report(events, {**figures, **self._extras}, self._ring, self._stopped)
        self.answered_end = self._until == 0
        return self._until

    def unasked(self) -> tuple[Trouble, str]:
        """What to say of a training that ended although it was not told to."""
        return "failed", f"the training ended before the {self._until} events that it was to show"


def trouble_of(error: RingflowError) -> Trouble:
    """What kind of trouble an error is."""
    words = str(error)
    if isinstance(error, StoppedError):
        return "interrupted"
    if isinstance(error, UsageError):
        return "refused"
    if isinstance(error, DivergenceError):
        return "diverged"
    return "full" if "the disk is full" in words or "quota is used up" in words else "failed"
