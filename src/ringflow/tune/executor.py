"""Where trials run. An executor starts orders, brings back what their trainings say, and carries answers to them.

All executors share a desk (see `desk`): a folder per order in the study, on a file system that all processes see. The first
process of a trial lays its reports there and waits for the answer; so whoever is killed finds everything when it comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

#: The processes died; an error that another start may not meet again; the loss is not finite; settings or data are wrong; no
#: room on the disk; told to stop by a signal.
Trouble = Literal["lost", "failed", "diverged", "refused", "full", "interrupted"]


@dataclass(frozen=True)
class Order:
    """A trial is to be trained on so many processes, from where it is, until somebody says otherwise."""

    trial: int
    #: Folder of the order on the desk, made by the driver, different for every start of a trial.
    ticket: Path
    #: Folder of the trial's run.
    run: Path
    #: Of the training, complete, as JSON.
    settings: dict[str, Any]
    #: Resource of its next report.
    until: int
    workers: int
    #: Figures beside those of a validation that its reports are to hold, see `objective`.
    extras: tuple[str, ...] = ()


@dataclass(frozen=True)
class Begun:
    """An order has its processes."""

    trial: int


@dataclass(frozen=True)
class Said:
    """A trial came to the resource it was to report at, and waits for an answer."""

    trial: int
    resource: int
    figures: dict[str, float | None]


@dataclass(frozen=True)
class Ended:
    """The processes of an order are done with it, as they were told (no trouble), or because something went wrong."""

    trial: int
    trouble: Trouble | None = None
    reason: str = ""


Message = Begun | Said | Ended


class Executor(Protocol):
    """Starts trials and listens to them."""

    def room(self, workers: int) -> bool:
        """Whether a trial of so many processes can be started now; an error if it never can."""

    def start(self, order: Order) -> None:
        """Begin with an order, which lies on the desk already; there is room. At most one order of a trial at a time."""

    def answer(self, trial: int, until: int) -> None:
        """What a trial that waits is told: the resource of its next report, or 0 to end."""

    def poll(self, seconds: float) -> Sequence[Message]:
        """What happened since the last call; waits up to so long for something to happen."""

    def close(self) -> None:
        """End all that runs, after a checkpoint where it can write one; safe to call twice."""
