"""Events simulated while a training goes on: every chunk is new, and none is ever stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ringflow.base.errors import FailureError
from ringflow.base.log import progress
from ringflow.data.chunks import ALL, Ahead, Lane, from_tensors
from ringflow.elements.batch import ElementBatch, build, join, target_collection
from ringflow.event.block import EventBlock, concatenate
from ringflow.sim.detector import Detector
from ringflow.sim.generator import GeneratedEvents, block_seed
from ringflow.train import collisions
from ringflow.train.collisions import Stream


class SimulatedChunks:
    """Chunks of new events, all samples in equal shares. Lanes take the blocks of the streams in turn.

    Worker processes make the collisions and run ahead by one chunk. On a CPU they also run the detector; an accelerator is
    given the collisions in the background thread, and events never leave it.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        workers: ProcessPoolExecutor,
        *,
        calorimeter: str,
        chunk_events: int,
        detector: Detector | None,
        lane: Lane = ALL,
    ) -> None:
        self._streams, self._workers, self._lane = tuple(streams), workers, lane
        self._calorimeter, self._detector = calorimeter, detector
        size = sum(stream.block_events for stream in streams)
        self._blocks = max(-(-chunk_events // (size * lane.of)), 1)  # of every sample
        self._begun: dict[int, list[Future[Any]]] = {}
        self._ahead = Ahead(self._make)

    def chunk(self, index: int) -> ElementBatch:
        """Elements with targets."""
        return self._ahead.chunk(index)

    def prefetch(self, index: int) -> None:
        """Begin to make a chunk."""
        self._ahead.prefetch(index)

    def close(self) -> None:
        """Drop what was begun; whoever started the workers ends them, first."""
        self._ahead.close()

    def _make(self, index: int) -> ElementBatch:
        futures = self._begun.pop(index, None) or self._begin(index)
        self._begun = {index + 1: self._begin(index + 1)}
        with _worker_errors():
            parts = [
                self._finish(task, future.result()) for task, future in zip(self._tasks(index), futures, strict=True)
            ]
        return join(parts)

    def _tasks(self, index: int) -> list[tuple[Stream, int]]:
        numbers = range(index * self._blocks, (index + 1) * self._blocks)
        shared = [number * self._lane.of + self._lane.number for number in numbers]
        return [(stream, number) for number in shared for stream in self._streams]

    def _begin(self, index: int) -> list[Future[Any]]:
        work: Callable[..., Any] = collisions.generate
        if self._detector is None:
            work = partial(collisions.elements, calorimeter=self._calorimeter)
        return [self._workers.submit(work, stream, number) for stream, number in self._tasks(index)]

    def _finish(self, task: tuple[Stream, int], made: Any) -> ElementBatch:
        if self._detector is None:
            return from_tensors({name: torch.from_numpy(column) for name, column in made.items()})
        stream, number = task
        return measured_elements(self._detector, made, block_seed(stream.seed, number), self._calorimeter)


def measured_elements(detector: Detector, events: GeneratedEvents, seed: int, calorimeter: str) -> ElementBatch:
    """Collisions through the detector to elements with targets, without leaving the detector's device."""
    simulated = detector.simulate(events, seed).collections
    names = ("track", calorimeter, target_collection(calorimeter))
    counts = {name: torch.bincount(simulated[name].event, minlength=len(events)) for name in names}
    return build({name: simulated[name].columns for name in names}, counts, calorimeter, with_targets=True)


def validation_blocks(
    streams: Sequence[Stream], events: int, workers: ProcessPoolExecutor, calorimeter: str
) -> dict[str, EventBlock]:
    """`events` events of every stream with what an evaluation needs."""
    kept = ("track", "cluster", "target", "particle", *(("hit", "hit_target") if calorimeter == "hit" else ()))
    futures = {
        stream.sample: [
            workers.submit(collisions.simulate, stream, index) for index in range(-(-events // stream.block_events))
        ]
        for stream in streams
    }
    blocks = {}
    with progress(events * len(streams), "simulating validation events") as advance, _worker_errors():
        for name, parts in futures.items():
            made = []
            for future in parts:
                block = future.result()
                made.append(EventBlock(block.event_number, {part: block[part] for part in kept}))
                advance(len(block))
            blocks[name] = concatenate(made).take(0, events)
    return blocks


@contextmanager
def _worker_errors() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise FailureError(
            "a process that simulates ended unexpectedly, perhaps for want of memory; use fewer source.workers"
        ) from None
