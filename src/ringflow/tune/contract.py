"""The words that search, schedulers and executors share, so that one scheduler serves a laptop, a cluster and a simulation.

    search      ask for settings to try, tell what came of them
    scheduler   a pure state machine: a report in, a decision out
    executor    starts, stops and resizes trials, and yields their reports

A value is what is made small. Resource is what a trial is given to live: events shown to its network, counted from its start.
A scheduler knows nothing of clocks, processes or files. Its state is a function of what it was told, in that order, so a study
that was interrupted is gone on with by telling it the same again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

#: Settings of a trial: names as in `ringflow train NAME=VALUE`, and values.
Point = Mapping[str, object]

Verdict = Literal["continue", "stop", "pause", "resize"]


@dataclass(frozen=True)
class Decision:
    """What becomes of a trial that reported."""

    verdict: Verdict
    #: Resource up to which it goes on, and the processes it has from now on; of no meaning if it does not go on.
    until: int = 0
    workers: int = 1


@dataclass(frozen=True)
class Report:
    """What a trial says of itself when it has used some of its resource."""

    trial: int
    resource: int
    value: float
    #: Further figures, for several objectives.
    figures: Mapping[str, float] = field(default_factory=dict)
    #: Events that one process could have been shown while a start of the trial takes; None where that is not known.
    restart: float | None = None


class Scheduler(Protocol):
    """Decides how long trials live, and on how many processes."""

    #: Resource that the longest trials get.
    most: int

    def add(self, trial: int) -> Decision:
        """A new trial: it goes on from nothing, up to its first report."""

    def report(self, report: Report) -> Decision:
        """A trial reached the resource it was to go on to. A value that is not finite is worse than all others."""

    def promoted(self) -> Sequence[tuple[int, Decision]]:
        """Paused trials about which is decided now, each told once: they go on, or stop."""

    def gone(self, trial: int) -> None:
        """A trial ended without a report: failed too often, or was stopped by somebody else."""

    def close(self) -> None:
        """No trial will be added any more."""


@dataclass(frozen=True)
class Finished:
    """A trial as a search sees it: its settings, and the last value it had."""

    trial: int
    point: Point
    #: None while it runs.
    value: float | None
    resource: int = 0
    #: Whether it lived to the end; the last value of one that did not is information, too.
    complete: bool = False
    #: Resource and value of its reports before the last one.
    earlier: tuple[tuple[int, float], ...] = ()
    #: The last values of all objectives, where there are several.
    values: tuple[float, ...] = ()


class Search(Protocol):
    """Chooses what to try."""

    def ask(self, trial: int, known: Sequence[Finished]) -> Point | None:
        """Settings of a new trial, given all trials so far, running ones too; None when there is nothing left to try.

        The same seed, trial and history give the same answer.
        """
