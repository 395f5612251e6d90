"""What the time of a step goes into. Whoever measures puts a `Phases` of its own in the place of this one, which is free."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

#: Waiting for events, network and loss, gradients, sums over processes, moving the weights, waiting for other processes.
PHASES = ("data", "forward", "backward", "communication", "optimizer", "idle")


class Phases:
    """Nobody measures."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """While the context is open, a process is in this phase; contexts may be within each other.

        In an `idle` one all processes meet: it is opened by each when it is there, and ends when what they add up is known.
        """
        return nullcontext()

    def watch(self, network: nn.Module) -> None:
        """A network whose sums over processes torch begins by itself."""

    def end_step(self, step: int, events: int) -> None:
        """A step is done, and showed so many events to all processes together."""


UNMEASURED = Phases()
