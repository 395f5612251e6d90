"""Trials in jobs of Slurm that take work: a job trains one trial after the other, as long as there are some of its size.

    executor = SlurmExecutor(study, Job(time="4:00:00", partition="gpu", tasks_per_node=4, gpus_per_node=4), max_jobs=64)

A job that was killed takes its trial along, which is told as lost. Jobs of a driver that was killed are ended by the next one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.log import say
from ringflow.base.rundir import write_errors
from ringflow.launch.slurm import ENDED, Job
from ringflow.tune.desk import Tray
from ringflow.tune.executor import Ended, Message, Order
from ringflow.tune.executors import slurm_queue
from ringflow.tune.executors.slurm_jobs import Jobs, State, shape

#: Between two looks at the desk, and between two questions to Slurm, which has others to answer.
_SECONDS_BETWEEN_LOOKS, _SECONDS_BETWEEN_QUESTIONS = 0.1, 5.0
#: In the queue, until that is worth a line.
_SECONDS_TO_TELL = 30.0
#: Jobs in a row that end without having taken anything, until it is no use to submit more.
_MOST_IN_VAIN = 3
#: Exit codes above this are signals.
_SIGNAL = 128


@dataclass
class _Pilot:
    """A job that was submitted and has not ended."""

    workers: int
    since: float
    #: Whether it has ever taken an order, and whether it was told to end.
    useful: bool = False
    dismissed: bool = False


@dataclass
class _Running:
    """An order; None: no job has taken it."""

    tray: Tray
    job: str | None = None
    ended: Ended | None = None


class SlurmExecutor:
    """Up to `max_jobs` jobs at a time; `job` says what they ask for, its `tasks_per_node` how many processes fit on a node.

    A job without work ends after `idle` seconds.
    """

    def __init__(self, study: Path, job: Job, max_jobs: int, idle: int = 60) -> None:
        if max_jobs < 1:
            raise UsageError(f"--max-jobs {max_jobs} leaves nothing to train in; give at least 1")
        if idle < 1:
            raise UsageError(f"jobs that wait {idle} seconds for a trial take none; give at least 1")
        self._study, self._job, self._max_jobs = study, job, max_jobs
        self._jobs = Jobs(study, job, idle)
        folder = slurm_queue.slurm_folder(study)
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._running: dict[int, _Running] = {}
        self._pilots: dict[str, _Pilot] = {}
        #: How jobs that had taken something ended.
        self._ends: dict[str, str] = {}
        #: Whether it was said that jobs wait.
        self._told = False
        #: Jobs without an order when Slurm was last asked.
        self._idle: set[str] = set()
        self._offered, self._in_vain, self._asked = 0, 0, time.monotonic()
        self._end_earlier()

    def _end_earlier(self) -> None:
        slurm_queue.clear(self._study)
        earlier = self._jobs.alive()
        if earlier is None:
            raise FailureError("Slurm does not answer; look at what `squeue` says, then resume the study")
        if earlier:
            say(f"ending {len(earlier)} jobs of an earlier start of this study")
            self._jobs.end_all()

    def room(self, workers: int) -> bool:
        """Whether a job of this size waits for work, or another one may be submitted."""
        shape(self._job, workers)
        self._ask_slurm()
        return (
            self._spare(workers) > 0
            or self._wanted_jobs() < self._max_jobs
            or self._idle_of_others(workers) is not None
        )

    def _wanted_jobs(self) -> int:
        return sum(not pilot.dismissed for pilot in self._pilots.values())

    def _spare(self, workers: int) -> int:
        """Jobs of a size for which there is no order, whether they run or still wait in the queue."""
        wanted = sum(one.job is None for one in self._running.values() if one.tray.order.workers == workers)
        return len(self._without_order(workers)) - wanted

    def _without_order(self, workers: int) -> list[str]:
        busy = {one.job for one in self._running.values()}
        wanted = [number for number, pilot in self._pilots.items() if pilot.workers == workers and not pilot.dismissed]
        return [number for number in wanted if number not in busy]

    def _idle_of_others(self, workers: int) -> str | None:
        """A job of another size that nobody needs."""
        sizes = {pilot.workers for pilot in self._pilots.values()} - {workers}
        return next((self._without_order(size)[0] for size in sizes if self._spare(size) > 0), None)

    def start(self, order: Order) -> None:
        """Offer an order to the jobs, and submit one if none of them is free."""
        self._running[order.trial] = _Running(Tray(order))
        self._offered += 1
        slurm_queue.post(self._study, order.workers, self._offered, order.ticket)
        self._submit_what_is_missing()

    def _submit_what_is_missing(self) -> None:
        for workers in sorted({one.tray.order.workers for one in self._running.values() if one.job is None}):
            while self._spare(workers) < 0:
                if self._wanted_jobs() >= self._max_jobs:
                    idle = self._idle_of_others(workers)
                    if idle is None:
                        return
                    self._dismiss(idle)
                self._pilots[self._jobs.submit(workers)] = _Pilot(workers, time.monotonic())

    def answer(self, trial: int, until: int) -> None:
        """What a trial that waits is told."""
        self._running[trial].tray.answer(until)

    def poll(self, seconds: float) -> Sequence[Message]:
        """What trials said, and which have ended; jobs that ended early are submitted again."""
        until = time.monotonic() + seconds
        while True:
            self._ask_slurm()
            messages = [message for trial in [*self._running] for message in self._look(trial)]
            if messages or time.monotonic() >= until:
                return messages
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _ask_slurm(self) -> None:
        """Find out which jobs have ended, if that was not asked for a while."""
        if time.monotonic() - self._asked < _SECONDS_BETWEEN_QUESTIONS:
            return
        states = self._jobs.states()
        self._asked = time.monotonic()
        if states is None:
            return
        self._see_claims()  # after the question: a job that is gone by now claims nothing any more
        for number in [*self._pilots]:
            state = states.get(number, State("forgotten by Slurm"))
            if state.name in ENDED or number not in states:
                self._forget(number, state.name)
            elif state.name == "PENDING":
                self._tell_of_waiting(number, state.reason)
        self._submit_what_is_missing()
        self._dismiss_idle()

    def _dismiss_idle(self) -> None:
        """While an order waits for its job, end those that had nothing to do at two questions in a row: they are in its way."""
        sizes = {pilot.workers for pilot in self._pilots.values()}
        idle = {number for size in sizes for number in self._without_order(size)[: max(self._spare(size), 0)]}
        if any(one.job is None for one in self._running.values()):
            for number in idle & self._idle:
                self._dismiss(number)
        self._idle = idle

    def _dismiss(self, number: str) -> None:
        self._jobs.cancel(number)
        self._pilots[number].dismissed = True  # until Slurm says that it has ended, it may take something

    def _tell_of_waiting(self, number: str, reason: str) -> None:
        """Say so if nothing was taken for a while; a job that asks for what the cluster does not have may wait for ever."""
        if not self._told and time.monotonic() - self._pilots[number].since > _SECONDS_TO_TELL:
            self._told = True
            say(f"job {number} waits in the queue of Slurm ({reason})")

    def _see_claims(self) -> None:
        for one in self._running.values():
            if one.job is None and (job := slurm_queue.claimant(one.tray.order.ticket)) is not None:
                one.job, self._in_vain, self._told = job, 0, False
                if job in self._pilots:
                    self._pilots[job].useful = True

    def _forget(self, number: str, state: str) -> None:
        pilot = self._pilots.pop(number)
        self._ends[number] = state
        self._in_vain += not pilot.useful and not pilot.dismissed and state != "COMPLETED"
        if self._in_vain >= _MOST_IN_VAIN:
            raise FailureError(
                f"{self._in_vain} jobs in a row ended before they took a trial, the last one as {state}; see "
                f"{self._jobs.output(number)}, then resume the study"
            )

    def _look(self, trial: int) -> Iterator[Message]:
        one = self._running[trial]
        ticket = one.tray.order.ticket
        if one.job is None:
            self._see_claims()
            if one.job is None:
                return
        gone, code = one.job not in self._pilots, slurm_queue.released(ticket)
        if gone:
            os.listdir(ticket)  # lets a network file system forget which files were not there
        for message in one.tray.look():
            if isinstance(message, Ended):
                one.ended = message
            else:
                yield message
        if code is not None or gone:
            del self._running[trial]
            yield self._verdict(one, code)

    def _verdict(self, one: _Running, code: int | None) -> Ended:
        """What an order ended with: what its first process said, unless it said nothing, or only noticed the end of others."""
        said, trial = one.ended, one.tray.order.trial
        if said is not None and (said.trouble != "failed" or (code or 0) <= _SIGNAL):
            return said
        if code is None:
            return Ended(
                trial,
                "lost",
                f"job {one.job} ended as {self._ends.get(one.job or '')}; see {self._jobs.output(one.job or '')}",
            )
        if code > _SIGNAL:
            return Ended(trial, "lost", f"a process of the trial was ended by signal {code - _SIGNAL} in job {one.job}")
        return Ended(
            trial, "failed", f"its processes ended with exit code {code}; see {one.tray.order.run.with_suffix('.log')}"
        )

    def close(self) -> None:
        """End all jobs, after checkpoints; orders that nobody has are taken back."""
        slurm_queue.clear(self._study)
        self._running = {}
        if self._pilots:
            self._pilots = {}
            self._jobs.end_all()
