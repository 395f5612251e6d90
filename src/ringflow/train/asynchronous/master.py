"""The master: takes what workers bring, in the order in which it comes, and answers them.

It alone validates and writes; what workers bring meanwhile waits for it. When the end has come, by the number of events, for
want of progress or by a signal, what every worker brings next is still taken, and answered with the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from ringflow.base.errors import StoppedError
from ringflow.base.log import say
from ringflow.train.asynchronous.account import Account, Staleness, Stopwatch, write_accounts
from ringflow.train.asynchronous.messages import Answer, Post, Report, row_for
from ringflow.train.keeper import Keeper
from ringflow.train.monitor import Monitor, Silence
from ringflow.train.settings import TrainSettings
from ringflow.train.signals import Wish, stopped
from ringflow.train.snapshot import snapshot
from ringflow.train.step import Record, TrainingStep


class Rule(Protocol):
    """What the weights of the master do when a row arrives."""

    @property
    def needs_states(self) -> bool:
        """Whether a checkpoint needs what the workers have."""

    def take_in(self, row: Tensor, number: int, rate: float) -> float | None:
        """Move the weights, for the time number `number`, and put the answer into the row; the length of the gradient."""


class Master:
    """Has the weights that are validated and saved."""

    def __init__(
        self,
        settings: TrainSettings,
        keeper: Keeper,
        step: TrainingStep,
        rule: Rule,
        rate: Callable[[int], float],
        wish: Wish,
    ) -> None:
        """`rate` is that of a move after which so many events have been shown."""
        self._settings, self._keeper, self._state = settings, keeper, keeper.state
        self._step, self._rule, self._rate, self._wish = step, rule, rate, wish
        self._row = row_for(step.model)
        self._staleness, self._phases = Staleness(), Stopwatch()
        self._ending = self._wants_states = self._validation_due = False
        self._states: dict[int, dict[str, Tensor]] = {}
        self._seconds_before, self._started = self._state.seconds, time.perf_counter()
        self._mark = self._checkpointed = self._started

    def go(self, post: Post, workers: Sequence[int]) -> StoppedError | None:
        """Train to the end; the error to raise if it was stopped before."""
        post.phases = self._phases
        with self._keeper.monitor() as monitor:
            accounts: dict[int, Account] = {}
            while len(accounts) < len(workers):
                worker, report = post.receive(self._row)
                self._take_in(report, monitor)
                late = time.perf_counter() - self._checkpointed >= self._settings.length.checkpoint_seconds
                self._ending |= self._keeper.finished or self._wish.signal_name is not None
                self._answer(worker, post, monitor, len(workers))
                if self._ending:
                    accounts[worker] = post.receive(by=worker)[1]  # at once, or it would be taken for a report
                elif late or self._validation_due:
                    self._validate_if_due(monitor)
                    self._begin_checkpoint(monitor)
            self._end(monitor)
        own = Account(self._phases.seconds, post.bytes_sent, post.bytes_received)
        write_accounts(
            self._keeper.folder, self._settings.sync, self._staleness, [own, *(accounts[worker] for worker in workers)]
        )
        return self._stopped()

    def _take_in(self, report: Report, monitor: Monitor | Silence) -> None:
        """Let a report have its effect."""
        state, every = self._state, self._settings.length.validate_every
        before = state.events
        self._staleness.add(state.step - report.version)
        state.events += report.events
        rate = self._rate(state.events)
        with self._phases("optimizer"):
            self._step.redraw(state.step)
            length = self._rule.take_in(self._row, state.step, rate)
        state.step += 1
        state.computed += report.computed
        state.padding += report.computed - report.real
        for lane, position in report.positions.items():
            state.positions[lane] = position
        state.shape = report.shape
        self._wish.signal_name = self._wish.signal_name or report.signal
        now = time.perf_counter()
        state.step_seconds += now - self._mark
        self._mark = now
        values = report.values if length is None else {**report.values, "gradient": length}
        monitor.steps([Record(state.step, (), values)], state, rate)
        self._validation_due |= state.events // every > before // every

    def _answer(self, worker: int, post: Post, monitor: Monitor | Silence, workers: int) -> None:
        wants_state = self._rule.needs_states and (self._wants_states or self._ending)
        answer = Answer(self._state.step, self._state.events, not self._ending, wants_state)
        post.send(worker, answer, self._row)
        if wants_state:
            self._states[worker] = post.receive(by=worker)[1]
            # From now on all are asked with every answer, so that each state is as of the last row that its worker brought.
            if len(self._states) == workers and not self._ending:
                self._write_checkpoint(monitor)

    def _begin_checkpoint(self, monitor: Monitor | Silence) -> None:
        """Write a checkpoint, now or when all workers have told what belongs into it."""
        if self._rule.needs_states:
            self._wants_states = True
            self._checkpointed = time.perf_counter()
        else:
            self._write_checkpoint(monitor)

    def _write_checkpoint(self, monitor: Monitor | Silence) -> None:
        state = self._state
        state.seconds = self._seconds_before + time.perf_counter() - self._started
        with self._phases("checkpoint"):
            tensors = snapshot(self._step)
            for worker, theirs in self._states.items():
                tensors |= {worker_prefix(worker) + name: value for name, value in theirs.items()}
            self._keeper.checkpoint(tensors, monitor)
        self._wants_states = False
        self._states = {}
        self._mark = self._checkpointed = time.perf_counter()

    def _validate_if_due(self, monitor: Monitor | Silence) -> None:
        if not self._validation_due:
            return
        with self._phases("validation"):
            self._keeper.validate(self._step.average.model(), monitor)
        self._validation_due = False
        self._mark = time.perf_counter()
        self._ending |= self._keeper.stopped_early

    def _end(self, monitor: Monitor | Silence) -> None:
        """After all workers have ended."""
        if self._keeper.stopped_early:
            say(f"stopped early: {self._state.since_best} validations without a better one")
        else:
            self._validation_due |= self._keeper.finished
            self._validate_if_due(monitor)
        self._write_checkpoint(monitor)

    def _stopped(self) -> StoppedError | None:
        if self._keeper.finished:
            return None
        return stopped(self._wish.signal_name or "a signal", self._state.events)


def worker_prefix(rank: int) -> str:
    """What the names of a worker's tensors begin with in a checkpoint."""
    return f"worker-{rank}/"
