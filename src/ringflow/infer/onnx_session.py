"""An exported file ready to reconstruct, event by event on the CPU; gives what a session of the network gives.

Threads take whole events, which is faster than sharing one, and makes no difference to the result.

Free of torch, so that it starts fast and runs where torch is not installed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ringflow.event.block import Collection, EventBlock
from ringflow.infer.made import ROW, clusters_of_hits, collection
from ringflow.infer.runtime import EventRuntime


class OnnxSession:
    """An open ONNX file; `threads` events are computed at a time."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._runtime = EventRuntime(path, threads=1)
        self._workers = ThreadPoolExecutor(threads) if threads > 1 else None
        self.description = self._runtime.description
        self.threshold = self.description.threshold
        self.has_errors = False
        self.card: dict[str, Any] = self.description.card
        names = ("label", "charge", "momentum", "track", self.kinds[1])
        self._asked = [f"candidate_{name}" for name in names]

    @property
    def kinds(self) -> tuple[str, str]:
        """Collections it needs."""
        return self.description.kinds

    @property
    def detector(self) -> str | None:
        """Detector it was trained for, as far as its card says."""
        return self.description.detector

    def reconstruct(self, block: EventBlock) -> Collection:
        """The candidates of a block, in the order of their elements."""
        run = partial(self._runtime.run, outputs=self._asked)
        apply = map if self._workers is None else self._workers.map
        answers = list(apply(run, self._runtime.events(block)))
        rows = [np.column_stack([answer[name] for name in self._asked]).astype(np.float64) for answer in answers]
        counts = np.array([len(part) for part in rows], np.int64)
        made = collection(counts, rows or [np.zeros((0, len(ROW)))])
        if self.kinds[1] == "hit" and len(made):
            made.columns["cluster"] = clusters_of_hits(block, made)
        return made
