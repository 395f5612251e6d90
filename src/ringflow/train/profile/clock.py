"""Measures every step of a process, and hands in what it measured together with all others.

    clock = Clock(team, device, "replicate", keep)
    trainer.train(..., phases=clock)
    clock.hand_in()

Handing in is work between steps, done every few tens of them: it is in no step's time, and its bytes are in no step's bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ringflow.train.device import is_accelerator
from ringflow.train.phases import PHASES, Phases
from ringflow.train.profile.buckets import Buckets
from ringflow.train.profile.offsets import meet
from ringflow.train.profile.records import Bucket, Circumstances, RankLog, Span, StepRecord
from ringflow.train.profile.traffic import Bytes, Traffic
from ringflow.train.profile.watches import watch_for
from ringflow.train.team import Team

#: Steps between two times of handing in.
STEPS_HELD = 50

#: What the first process does with the logs of all, by rank.
Keep = Callable[[Circumstances, Sequence[RankLog]], None]


class Clock(Phases):
    """Phases with a clock."""

    def __init__(self, team: Team, device: torch.device, strategy: str, keep: Keep) -> None:
        self._team, self._device, self._strategy, self._keep = team, device, strategy, keep
        self._watch = watch_for(device)
        self._contexts = {name: _Context(self, name) for name in PHASES}
        self._open: list[_Open] = []
        self._spans: list[Span] = []
        self._steps: list[StepRecord] = []
        self._sums: Buckets | None = None
        self._buckets: tuple[Bucket, ...] = ()
        self._traffic = Traffic()
        self._begun: tuple[int, Bytes | None] | None = None
        #: Seconds spent on handing in.
        self.seconds = 0.0

    def __call__(self, name: str) -> AbstractContextManager[None]:
        return self._contexts[name]

    def watch(self, network: nn.Module) -> None:
        if isinstance(network, DistributedDataParallel):
            self._sums = Buckets(network, self._watch)
        else:
            from ringflow.train.profile.layers import watch_layers

            watch_layers(network, self)

    def enter(self, name: str) -> None:
        """A phase begins."""
        if self._begun is None and name == "data":  # what is done between steps belongs to none
            bytes_before = self._traffic.look()
            self._begun = self._watch.now(), bytes_before
        if name == "backward":
            self._watch.start()
        self._open.append(_Open(self._watch.now()))

    def exit(self, name: str) -> None:
        """The phase that began last is over."""
        now = self._watch.now()
        opened = self._open.pop()
        duration = now - opened.start
        if self._begun is not None:
            self._spans.append(Span(name, opened.start, now, duration - opened.inner))
        if self._open:
            self._open[-1].inner += duration
        if name == "backward" and self._sums is not None:
            self._buckets += self._sums.take()

    def end_step(self, step: int, events: int) -> None:
        assert self._begun is not None, "a step begins with its data"
        end, after = self._watch.now(), self._traffic.look()
        start, before = self._begun
        sent, received = None, None
        if before and after and not self._no_bytes_because:
            sent, received = after.sent - before.sent, after.received - before.received
        self._steps.append(StepRecord(step, events, start, end, sent, received, tuple(self._spans), self._buckets))
        self._spans.clear()
        self._buckets, self._begun = (), None
        if len(self._steps) >= STEPS_HELD:
            self.hand_in()

    def hand_in(self) -> None:
        """Give all that was measured to the first process; all processes have to."""
        start = time.perf_counter()
        log = RankLog(meet(self._team), tuple(self._steps))
        self._steps.clear()
        logs = self._team.bring(log)
        if logs and log.steps:
            self._keep(self.circumstances, logs)
        self.seconds += time.perf_counter() - start

    @property
    def circumstances(self) -> Circumstances:
        """What is the same in all steps."""
        size = None if self._sums is None else self._sums.size
        return Circumstances(self._team.size, self._strategy, str(self._device), size, self._no_bytes_because)

    @property
    def _no_bytes_because(self) -> str:
        if self._team.size == 1:
            return "a process alone sends nothing"
        if is_accelerator(self._device):
            return "what accelerators send each other does not go through sockets"
        return self._traffic.reason


class _Open:
    """A phase that is not over yet, and the time that phases within it took."""

    __slots__ = ("inner", "start")

    def __init__(self, start: int) -> None:
        self.start, self.inner = start, 0


class _Context(AbstractContextManager[None]):
    """One for each phase: what is open is known to the clock."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._clock.enter(self._name)

    def __exit__(self, *error: object) -> None:
        self._clock.exit(self._name)
