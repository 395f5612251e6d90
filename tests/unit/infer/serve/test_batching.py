"""The queue: what waits is computed together, in order, within limits. What becomes of requests is in `test_load`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

from ringflow.infer.serve.served import Batcher, BatchSettings

PATIENCE = 30.0


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Doubling:
    """Twice the number, once the gate is open; notes what was computed together."""

    def __init__(self, is_open: bool = True) -> None:
        self.gate, self.begun = threading.Event(), threading.Semaphore(0)
        self.batches: list[list[int]] = []
        if is_open:
            self.gate.set()

    def __call__(self, events: Sequence[int], /) -> list[int]:
        self.batches.append(list(events))
        self.begun.release()
        assert self.gate.wait(PATIENCE)
        return [2 * event for event in events]

    async def wait_until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=PATIENCE)


@in_a_loop
async def test_waiting_requests_are_computed_together() -> None:
    work = Doubling(is_open=False)
    batcher = Batcher(work, BatchSettings(max_elements=10))
    answers = [batcher.submit(0, 1)]
    await work.wait_until_begun()
    sizes = [4, 4, 4, 4, 50, 3]
    answers += [batcher.submit(number, size) for number, size in enumerate(sizes, 1)]
    assert len(batcher) == 6
    work.gate.set()
    assert await asyncio.gather(*answers) == [0, 2, 4, 6, 8, 10, 12]
    assert work.batches == [[0], [1, 2], [3, 4], [5], [6]]  # of ten elements at most, a larger event alone
    assert len(batcher) == 0
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
    await work.wait_until_begun()
    await work.wait_until_begun()  # both, though the gate is closed
    assert len(batcher) == 1
    work.gate.set()
    assert await asyncio.gather(*answers) == [0, 2, 4]
    batcher.close()


@in_a_loop
async def test_a_missing_answer_is_nobody_elses() -> None:
    batcher = Batcher(lambda events: [2 * event for event in events[:1]], BatchSettings())
    assert await asyncio.gather(*(batcher.submit(number, 1) for number in range(3))) == [0, 2, 4]
    batcher.close()
