"""The queue: what waits is computed together, in order, within limits, and no request can harm or answer another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

import pytest

from ringflow.infer.serve.served import Batcher, BatchSettings, QueueFullError

PATIENCE = 30.0


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Doubling:
    """Twice the number, once the gate is open; notes what was computed together. Negative numbers break."""

    def __init__(self, is_open: bool = True) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.batches: list[list[int]] = []
        if is_open:
            self.gate.set()

    def __call__(self, events: Sequence[int], /) -> list[int]:
        self.batches.append(list(events))
        self.begun.release()
        assert self.gate.wait(PATIENCE)
        if any(event < 0 for event in events):
            raise ValueError("broken\nevent")
        return [2 * event for event in events]


async def begun(work: Doubling) -> None:
    assert await asyncio.to_thread(work.begun.acquire, timeout=PATIENCE)


@in_a_loop
async def test_waiting_requests_are_computed_together() -> None:
    work = Doubling(is_open=False)
    batcher = Batcher(work, BatchSettings(max_elements=10))
    answers = [batcher.submit(0, 1)]
    await begun(work)
    answers += [batcher.submit(number, 4) for number in range(1, 6)]
    assert len(batcher) == 5
    work.gate.set()
    assert await asyncio.gather(*answers) == [0, 2, 4, 6, 8, 10]
    assert work.batches == [[0], [1, 2], [3, 4], [5]]  # of ten elements at most
    assert len(batcher) == 0
    batcher.close()


@in_a_loop
async def test_what_comes_in_one_breath_is_one_batch() -> None:
    work = Doubling()
    batcher = Batcher(work, BatchSettings())
    assert await asyncio.gather(*(batcher.submit(number, 1) for number in range(5))) == [0, 2, 4, 6, 8]
    assert work.batches == [[0, 1, 2, 3, 4]]
    batcher.close()


@in_a_loop
async def test_a_large_event_is_computed_alone() -> None:
    work = Doubling()
    batcher = Batcher(work, BatchSettings(max_elements=10))
    sizes = [3, 50, 3]
    assert await asyncio.gather(*(batcher.submit(number, size) for number, size in enumerate(sizes))) == [0, 2, 4]
    assert work.batches == [[0], [1], [2]]
    batcher.close()


@in_a_loop
async def test_a_free_worker_waits_for_more() -> None:
    work = Doubling()
    batcher = Batcher(work, BatchSettings(max_delay=PATIENCE, max_elements=3))
    first = batcher.submit(1, 1)
    await asyncio.sleep(0.01)
    assert work.batches == []
    rest = [batcher.submit(2, 1), batcher.submit(3, 1)]  # now it is full
    assert await asyncio.gather(first, *rest) == [2, 4, 6]
    assert work.batches == [[1, 2, 3]]
    short = Batcher(work, BatchSettings(max_delay=0.001))
    assert await short.submit(4, 1) == 8
    batcher.close()
    short.close()


@in_a_loop
async def test_workers_compute_at_the_same_time() -> None:
    work = Doubling(is_open=False)
    batcher = Batcher(work, BatchSettings(workers=2, max_elements=1))
    answers = [batcher.submit(number, 1) for number in range(3)]
    await begun(work)
    await begun(work)  # both, though the gate is closed
    assert len(batcher) == 1
    work.gate.set()
    assert await asyncio.gather(*answers) == [0, 2, 4]
    batcher.close()


@in_a_loop
async def test_a_full_queue_refuses() -> None:
    work = Doubling(is_open=False)
    batcher = Batcher(work, BatchSettings(max_waiting=2))
    answers = [batcher.submit(0, 1)]
    await begun(work)
    answers += [batcher.submit(1, 1), batcher.submit(2, 1)]
    with pytest.raises(QueueFullError):
        batcher.submit(3, 1)
    answers[1].cancel()  # who goes makes place
    await asyncio.sleep(0)
    answers.append(batcher.submit(4, 1))
    work.gate.set()
    assert await asyncio.gather(*answers, return_exceptions=True)
    assert [answer.result() for answer in answers if not answer.cancelled()] == [0, 4, 8]
    assert work.batches == [[0], [2, 4]]
    batcher.close()


@in_a_loop
async def test_one_that_breaks_harms_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    work = Doubling()
    batcher = Batcher(work, BatchSettings())
    answers = [batcher.submit(number, 1) for number in (1, -2, 3)]
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert (outcomes[0], outcomes[2]) == (2, 6)
    assert isinstance(outcomes[1], ValueError)
    assert work.batches == [[1, -2, 3], [1], [-2], [3]]
    assert "could not be computed: ValueError: broken event" in capsys.readouterr().err
    assert await batcher.submit(5, 1) == 10
    batcher.close()


@in_a_loop
async def test_a_missing_answer_is_nobody_elses() -> None:
    batcher: Batcher[int, int] = Batcher(lambda events: [2 * event for event in events[:1]], BatchSettings())
    assert await asyncio.gather(*(batcher.submit(number, 1) for number in range(3))) == [0, 2, 4]
    batcher.close()


@in_a_loop
async def test_an_answer_that_nobody_wants_is_dropped() -> None:
    work = Doubling(is_open=False)
    seen: list[tuple[int, int]] = []
    batcher = Batcher(work, BatchSettings(), lambda events, elements, seconds: seen.append((events, elements)))
    gone = batcher.submit(1, 7)
    await begun(work)
    gone.cancel()
    work.gate.set()
    assert await batcher.submit(2, 5) == 4
    assert gone.cancelled()
    assert seen == [(1, 7), (1, 5)]
    batcher.close()
