"""What a replay is given and what it tells."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol


class Costs(Protocol):
    """What a training costs; `launch.scaling.CostModel` is one."""

    def throughput(self, devices: int) -> float:
        """Events per second of so many devices together."""

    @property
    def restart_seconds(self) -> float:
        """From the start of a training to its first step."""


class Segment(NamedTuple):
    """A trial on some devices, from a start to its end, with all rungs that it passed on them."""

    trial: int
    start: float
    end: float
    workers: int
    #: Events shown before and after.
    first: int
    last: int


class RungRow(NamedTuple):
    """What happened at a rung."""

    resource: int
    came: int
    went_on: int
    best: float


@dataclass(frozen=True)
class Setting:
    """What a replay assumes beside curves and costs."""

    initial_workers: int = 1
    growth: Literal["wait", "take"] = "wait"
    #: To store a network and to load it again, beside the restart.
    reload_seconds: float = 0.0
    #: How much less larger batches learn from an event, and whether trials are shown more events to make up for it.
    penalty: float = 0.0
    lengthen: bool = False
    #: Events after which a trial makes room for others; 0: none does.
    turn: int = 0
    failures_per_second: float = 0.0
    #: How often a trial may fail before it is given up.
    retries: int = 2
    seed: int = 0


@dataclass
class ReplayResult:
    """What a study costs and finds. Times are in seconds from its start."""

    scheduler: str
    devices: int
    makespan: float = 0.0
    #: Devices times the time that they belonged to a running trial.
    device_seconds: float = 0.0
    #: Times at which a trial reported a better value than all before, and that value.
    best_over_time: list[tuple[float, float]] = field(default_factory=list)
    rungs: list[RungRow] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    trials: int = 0
    complete: int = 0
    #: Times that a trial was stored and loaded again.
    reloads: int = 0
    failures: int = 0

    @property
    def utilisation(self) -> float:
        """Part of the time of all devices in which they belonged to a running trial."""
        return self.device_seconds / (self.devices * self.makespan) if self.makespan else 0.0

    @property
    def device_hours(self) -> float:
        """That running trials had."""
        return self.device_seconds / 3600.0

    @property
    def best(self) -> float:
        """The best value that a trial reported, at whatever rung."""
        return self.best_over_time[-1][1] if self.best_over_time else math.inf

    def seconds_to(self, value: float) -> float:
        """When a trial reported this value or a better one; infinite if never."""
        return next((time for time, best in self.best_over_time if best <= value), math.inf)
