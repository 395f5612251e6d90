"""Elements of many events packed one after the other, as a network takes them: no padding, one table of rows.

Letters of tensor names: B event, N element (over all events of the batch), F feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

#: What an element can be, in the order of the codes in `ElementBatch.kind_N`.
KINDS = ("track", "cluster", "hit")
TRACK, CLUSTER, HIT = range(3)

#: Label of rows that only fill up a batch; they are part of no event's loss.
PADDING = -1


@dataclass(frozen=True)
class ElementTargets:
    """The truth assigned to every element; label 0 where it is not the primary element of a particle."""

    label_N: Tensor  # int64, see PARTICLE_CLASSES; PADDING for rows that fill up a batch
    charge_N: Tensor  # int64
    momentum_N4: Tensor  # px, py, pz, energy in GeV

    def rows(self, index: Tensor) -> ElementTargets:
        """Some of the rows."""
        return ElementTargets(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True)
class ElementBatch:
    """Elements of B events, on one device."""

    kind_N: Tensor  # int64, index into KINDS
    features_NF: Tensor  # float32, NaN where a detector does not provide the feature or it is of another kind
    position_N2: Tensor  # eta and phi of where the element is in the calorimeter
    reference_N4: Tensor  # pt, eta, phi and energy as measured: what a prediction is relative to
    charge_N: Tensor  # int64, as measured; 0 for a cluster
    offsets_B: Tensor  # int64, B + 1 numbers: event b is rows offsets_B[b] to offsets_B[b + 1]
    targets: ElementTargets | None = None

    @property
    def num_events(self) -> int:
        """B."""
        return len(self.offsets_B) - 1

    @property
    def num_elements(self) -> int:
        """N."""
        return len(self.kind_N)

    @property
    def counts_B(self) -> Tensor:
        """Elements per event."""
        return self.offsets_B.diff()

    @property
    def event_N(self) -> Tensor:
        """Number of the event of each element."""
        events = torch.arange(self.num_events, device=self.offsets_B.device)
        return torch.repeat_interleave(events, self.counts_B, output_size=self.num_elements)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> ElementBatch:
        """The same on another device."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        targets = self.targets
        if targets is not None:
            targets = ElementTargets(move(targets.label_N), move(targets.charge_N), move(targets.momentum_N4))
        moved = {field.name: move(getattr(self, field.name)) for field in fields(self) if field.name != "targets"}
        return ElementBatch(**moved, targets=targets)

    def take(self, events: Tensor, fill_to: int | None = None) -> ElementBatch:
        """Chosen events in the given order; `fill_to` adds rows marked PADDING, as one more event, for a fixed shape."""
        events = events.to(self.offsets_B.device)
        counts = self.counts_B[events]
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        total = int(offsets[-1])
        rows = torch.repeat_interleave(self.offsets_B[events] - offsets[:-1], counts, output_size=total)
        rows = rows + torch.arange(total, device=rows.device)
        if fill_to is None or fill_to == total:
            return self._rows(rows, offsets)
        if fill_to < total:
            raise ValueError(f"{total} elements do not fit into {fill_to}")
        rows = torch.cat([rows, rows.new_zeros(fill_to - total)])
        filled = self._rows(rows, torch.cat([offsets, offsets.new_full((1,), fill_to)]))
        if filled.targets is not None:
            filled.targets.label_N[total:] = PADDING
        return filled

    def _rows(self, index: Tensor, offsets: Tensor) -> ElementBatch:
        names = [field.name for field in fields(self) if field.name not in ("offsets_B", "targets")]
        chosen = {name: getattr(self, name)[index] for name in names}
        targets = None if self.targets is None else self.targets.rows(index)
        return replace(self, **chosen, offsets_B=offsets, targets=targets)


def join(batches: Sequence[ElementBatch]) -> ElementBatch:
    """Batches one after the other, all with or all without targets."""
    names = [field.name for field in fields(ElementBatch) if field.name not in ("offsets_B", "targets")]
    joined = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in names}
    counts = torch.cat([batch.counts_B for batch in batches])
    given = [batch.targets for batch in batches if batch.targets is not None]
    targets = None
    if given:
        targets = ElementTargets(
            torch.cat([part.label_N for part in given]),
            torch.cat([part.charge_N for part in given]),
            torch.cat([part.momentum_N4 for part in given]),
        )
    return ElementBatch(**joined, offsets_B=torch.cat([counts.new_zeros(1), counts.cumsum(0)]), targets=targets)
