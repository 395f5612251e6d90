"""Requests that wait are computed together: a bounded queue, and workers that take from its head what fits.

While the workers compute, requests gather by themselves; a worker that is free takes them at once, or after a delay in which
more may come. The work is done in threads, everything else in the event loop, so that nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ringflow.base.log import say

E = TypeVar("E")
A = TypeVar("A")
E_contra = TypeVar("E_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class Compute(Protocol[E_contra, A_co]):
    """Answers to events, in their order."""

    def __call__(self, events: Sequence[E_contra], /) -> Sequence[A_co]: ...


class QueueFullError(Exception):
    """As many wait as may."""


@dataclass(frozen=True)
class BatchSettings:
    """How events are put together."""

    workers: int = 1  # batches computed at a time
    max_elements: int = 8192  # of a batch; a larger event is computed alone
    max_delay: float = 0.0  # seconds that a free worker waits for more
    max_waiting: int = 256  # requests


@dataclass(frozen=True)
class _Waiting(Generic[E]):
    event: E
    elements: int
    since: float


class Batcher(Generic[E, A]):
    """Gives every event a future of its answer. To be used from one event loop."""

    def __init__(
        self,
        compute: Compute[E, A],
        settings: BatchSettings,
        computed: Callable[[int, int, float], None] = lambda events, elements, seconds: None,
    ) -> None:
        self._compute, self._settings, self._computed = compute, settings, computed
        self._threads = ThreadPoolExecutor(settings.workers, thread_name_prefix="ringflow-compute")
        self._idle = settings.workers
        self._waiting: dict[asyncio.Future[A], _Waiting[E]] = {}  # in the order they came
        self._running: set[asyncio.Task[None]] = set()
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.Handle | None = None

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def submit(self, event: E, elements: int) -> asyncio.Future[A]:
        """A future of the answer. Whoever does not want it any more cancels it, and it leaves the queue."""
        if len(self._waiting) >= self._settings.max_waiting:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        answer.add_done_callback(lambda done: self._waiting.pop(done, None))
        self._waiting[answer] = _Waiting(event, elements, time.monotonic())
        if self._idle and self._soon is None:
            self._soon = loop.call_soon(self._dispatch)  # after all that came in the same breath
        return answer

    def close(self) -> None:
        """Take no more work; what is being computed ends in its thread."""
        for planned in (self._soon, self._later):
            if planned is not None:
                planned.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        if self._later is not None:
            self._later.cancel()
        self._soon = self._later = None
        while self._idle and self._waiting:
            chosen, full = self._head()
            rest = self._waiting[chosen[0]].since + self._settings.max_delay - time.monotonic()
            if rest > 0 and not full:
                self._later = loop.call_later(rest, self._dispatch)
                return
            self._idle -= 1
            batch = [(answer, self._waiting.pop(answer)) for answer in chosen]
            task = loop.create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _head(self) -> tuple[list[asyncio.Future[A]], bool]:
        """The first that fit together, and whether no more would."""
        chosen: list[asyncio.Future[A]] = []
        total = 0
        for answer, waiting in self._waiting.items():
            total += waiting.elements
            if chosen and total > self._settings.max_elements:
                return chosen, True
            chosen.append(answer)
        return chosen, total >= self._settings.max_elements

    async def _run(self, batch: list[tuple[asyncio.Future[A], _Waiting[E]]]) -> None:
        events = [waiting.event for _, waiting in batch]
        started = time.perf_counter()
        outcomes = await asyncio.get_running_loop().run_in_executor(self._threads, self._outcomes, events)
        self._computed(len(batch), sum(waiting.elements for _, waiting in batch), time.perf_counter() - started)
        self._idle += 1
        for (answer, _), outcome in zip(batch, outcomes, strict=True):
            if answer.done():  # nobody wants it any more
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
        self._dispatch()

    def _outcomes(self, events: list[E]) -> list[A | Exception]:
        """Answers, or what went wrong; where a batch fails, its members are tried one by one, so that none harms another."""
        try:
            answers = self._compute(events)
            if len(answers) != len(events):
                raise RuntimeError(f"{len(answers)} answers to {len(events)} events")
            return list(answers)
        except Exception as error:
            if len(events) == 1:
                say(f"an event could not be computed: {' '.join(f'{type(error).__name__}: {error}'.split())[:300]}")
                return [error]
        return [outcome for event in events for outcome in self._outcomes([event])]
