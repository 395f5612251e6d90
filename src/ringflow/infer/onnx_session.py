"""An exported file ready to reconstruct, event by event on the CPU; gives what a session of the network gives.

Free of torch, so that it starts fast and runs where torch is not installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ringflow.event.block import Collection, EventBlock
from ringflow.export.runtime import EventRuntime
from ringflow.infer.made import ROW, clusters_of_hits, collection


class OnnxSession:
    """An open ONNX file, computed on so many threads."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._runtime = EventRuntime(path, threads)
        self.description = self._runtime.description
        self.threshold = self.description.threshold
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
        answers = [self._runtime.run(event, self._asked) for event in self._runtime.events(block)]
        rows = [np.column_stack([answer[name] for name in self._asked]).astype(np.float64) for answer in answers]
        counts = np.array([len(part) for part in rows], np.int64)
        made = collection(counts, rows or [np.zeros((0, len(ROW)))])
        if self.kinds[1] == "hit" and len(made):
            made.columns["cluster"] = clusters_of_hits(block, made)
        return made
