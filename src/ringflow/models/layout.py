"""Where the events of a packed batch begin and end: what a backbone must know beside the rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ringflow.elements.batch import ElementBatch


@dataclass(frozen=True)
class Layout:
    """Events of a packed batch. `longest` is an upper bound of the elements of an event."""

    offsets_B: Tensor  # int32, B + 1 numbers
    event_N: Tensor  # int64
    longest: int

    @property
    def num_events(self) -> int:
        """B."""
        return len(self.offsets_B) - 1

    @property
    def counts_B(self) -> Tensor:
        """Elements per event."""
        return self.offsets_B.diff()

    @classmethod
    def of(cls, batch: ElementBatch, longest: int | None = None) -> Layout:
        """The layout of a batch; without a known bound the longest event is looked up."""
        if longest is None:
            longest = int(batch.counts_B.max()) if batch.num_events else 0
        return cls(batch.offsets_B.to(torch.int32), batch.event_N, longest)
