"""Make the next chunk of events in the background while the present one is used."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ringflow.elements.batch import ElementBatch


class Ahead:
    """Chunks by index, made one after the other in a thread of their own; `make` is a pure function of the index."""

    def __init__(self, make: Callable[[int], ElementBatch]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chunks")
        self._begun: dict[int, Future[ElementBatch]] = {}

    def prefetch(self, index: int) -> None:
        """Begin to make a chunk."""
        if index not in self._begun:
            self._begun[index] = self._thread.submit(self._make, index)

    def chunk(self, index: int) -> ElementBatch:
        """A chunk, waited for if it is not ready; what went wrong in the background is raised here."""
        self.prefetch(index)
        return self._begun.pop(index).result()

    def close(self) -> None:
        """Drop what was begun; one that is being made is waited for."""
        self._thread.shutdown(cancel_futures=True)
        self._begun.clear()
