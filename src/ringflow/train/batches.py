"""Batches by element budget: events are packed until a batch is full, whatever their sizes.

A training goes through chunks of events, through each chunk `reuse` times (turns), each turn in a new order. Where it is
in the data is three numbers, `DataPosition`, from which the next batch can be made again.

On an accelerator all batches have one shape, so that a compiled step is compiled once: rows marked PADDING fill a batch up
to the budget, and empty events fill up the list of its events. On a CPU nothing is filled.

Letters of tensor names: B event, N element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ringflow.base.errors import FailureError, UsageError
from ringflow.elements.batch import PADDING, ElementBatch, ElementTargets
from ringflow.models.attention import Layout
from ringflow.train.device import is_out_of_memory, undisturbed

#: Events tried for the rest of a batch that the next one does not fit into.
_LOOK_AHEAD = 64
#: The bound of an event's length is at least this, so that few different ones occur.
_LEAST_BOUND = 512
#: The number of events of a filled batch is a multiple of this.
_SLOTS = 64
#: Room for more events than the fullest batch so far has.
_SPARE = 1.1


class ChunkSource(Protocol):
    """Events for a training, chunk after chunk; chunk `index` is a pure function of the settings and the index."""

    def chunk(self, index: int) -> ElementBatch:
        """The events of a chunk, with targets, on any device."""

    def prefetch(self, index: int) -> None:
        """Begin to prepare a chunk in the background; may do nothing."""

    def close(self) -> None:
        """Let go of what it holds."""


class DataPosition(NamedTuple):
    """The batch that comes next."""

    chunk: int
    turn: int
    batch: int


#: The first batch of all.
BEGINNING = DataPosition(0, 0, 0)


class FixedShape(NamedTuple):
    """Shape of every batch on an accelerator, beside its number of elements."""

    #: Events, empty ones counted.
    slots: int
    #: Upper bound of the elements of an event.
    longest: int


@dataclass(frozen=True)
class TrainingBatch:
    """A batch ready for a step, and what in it is real."""

    elements: ElementBatch
    layout: Layout
    position: DataPosition
    num_events: int
    num_elements: int
    #: For whatever is drawn while it is computed, which then depends on nothing else.
    seed: int


def pack(counts: Tensor, budget: int, seed: tuple[int, ...]) -> list[Tensor]:
    """Shuffled events, as indices into `counts` (elements per event), in batches of at most `budget` elements.

    Every event is in exactly one batch, and the same seed gives the same batches. The rest of a batch that the next event
    does not fit into goes to one of those that follow.
    """
    if len(counts) == 0:
        return []
    most = int(counts.max())
    if most > budget:
        raise UsageError(
            f"an event has {most} elements, more than compute.batch_elements={budget}; "
            f"try compute.batch_elements={1 << (most - 1).bit_length()}"
        )
    order = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))).permutation(len(counts))
    sizes = counts.cpu().numpy()
    span = budget // max(int(sizes.min()), 1) + _LOOK_AHEAD
    batches, passed_over, head = [], order[:0], 0
    while len(passed_over) or head < len(order):
        window = np.concatenate([passed_over, order[head : head + span]])
        chosen = _fill(sizes[window], budget)
        reach = max(chosen[-1] + 1, len(passed_over))
        batches.append(torch.from_numpy(window[chosen]))
        head += reach - len(passed_over)
        passed_over = np.delete(window[:reach], chosen)
    return batches


def _fill(sizes: NDArray[np.int64], budget: int) -> list[int]:
    """Events for one batch: the first ones, as many as there is room for, then those behind them that still fit."""
    ends = sizes.cumsum()
    fitting = int(np.searchsorted(ends, budget, side="right"))
    room = budget - int(ends[fitting - 1])
    chosen = list(range(fitting))
    for number, size in enumerate(sizes[fitting : fitting + _LOOK_AHEAD].tolist(), start=fitting):
        if size <= room:
            chosen.append(number)
            room -= size
    return chosen


class Turn:
    """One pass through a chunk, in the order of a plan. On an accelerator all batches are filled up to one `shape`; all that
    needs numbers on the host is worked out before the first batch."""

    def __init__(
        self, chunk: ElementBatch, plan: Sequence[Tensor], counts: Tensor, budget: int, seed: tuple[int, ...]
    ) -> None:
        self._chunk, self._plan, self._counts, self._budget, self._seed = chunk, plan, counts, budget, seed
        self._totals = [int(counts[events].sum()) for events in plan]
        self._shape: FixedShape | None = None

    def __len__(self) -> int:
        return len(self._plan)

    def fix(self, shape: FixedShape | None) -> FixedShape:
        """Fill batches up to a shape: the one given, or a larger one if a batch does not fit into it. Returns it."""
        longest = max(_LEAST_BOUND, 1 << (int(self._counts.max()) - 1).bit_length())
        if shape is not None:
            longest = max(longest, shape.longest)
        plan, totals, counts, device = self._plan, self._totals, self._counts, self._chunk.kind_N.device
        needed = max(
            len(events) + -(-(self._budget - total) // longest) for events, total in zip(plan, totals, strict=True)
        )
        if shape is None or shape.slots < needed or shape.longest < longest:
            shape = FixedShape(-(-int(_SPARE * needed) // _SLOTS) * _SLOTS, longest)
        events = torch.cat(list(plan))
        ends = counts[events].cumsum(0)
        first_B = self._chunk.offsets_B[events.to(device)] - (ends - counts[events]).to(device)
        rows = torch.repeat_interleave(first_B, counts[events].to(device), output_size=sum(totals))
        self._rows = torch.split(rows + torch.arange(sum(totals), device=device), totals)
        offsets = torch.full((len(plan), shape.slots + 1), self._budget)
        for line, chosen, total in zip(offsets, plan, totals, strict=True):
            line[0] = 0
            line[1 : len(chosen) + 1] = counts[chosen].cumsum(0)
            # What fills the batch is cut into events that keep to the bound, too.
            fill = torch.arange(total, self._budget, shape.longest)[1:]
            line[len(chosen) + 1 : len(chosen) + 1 + len(fill)] = fill
        self._offsets, self._shape = offsets.to(device), shape
        return shape

    def batch(self, position: DataPosition) -> TrainingBatch:
        """The batch at a position of this turn."""
        number = position.batch
        events, total = self._plan[number], self._totals[number]
        elements = self._chunk.take(events) if self._shape is None else self._filled(number)
        layout = Layout.of(elements) if self._shape is None else Layout.of(elements, self._shape.longest)
        return TrainingBatch(elements, layout, position, len(events), total, mixed_seed(*self._seed, *position))

    def _filled(self, number: int) -> ElementBatch:
        """The elements of a batch, without a word to the host."""
        total, targets = self._totals[number], self._chunk.targets
        assert targets is not None, "a chunk for training has targets"
        rows = pad(self._rows[number], (0, self._budget - total))
        names = [field.name for field in fields(ElementBatch) if field.name not in ("offsets_B", "targets")]
        chosen = {name: getattr(self._chunk, name).index_select(0, rows) for name in names}
        aims = ElementTargets(*(getattr(targets, aim.name).index_select(0, rows) for aim in fields(ElementTargets)))
        aims.label_N[total:] = PADDING
        return ElementBatch(**chosen, offsets_B=self._offsets[number], targets=aims)


def mixed_seed(*numbers: int) -> int:
    """One seed out of several numbers, for a generator of torch."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


class Feed:
    """The batches of a lane one after the other, from a position on. Several lanes of one seed are in different orders."""

    def __init__(
        self,
        source: ChunkSource,
        *,
        budget: int,
        reuse: int,
        seed: int,
        device: torch.device,
        lane: int = 0,
        position: DataPosition = BEGINNING,
        shape: FixedShape | None = None,
        fill: bool | None = None,
    ) -> None:
        self._source, self._budget, self._reuse, self._device = source, budget, reuse, device
        self._seed = (seed, lane)
        self._fill = device.type != "cpu" if fill is None else fill
        self._chunk: ElementBatch | None = None
        self._turn: Turn | None = None
        self._prefetched = position.chunk
        self.position, self.shape = position, shape

    def chunk(self) -> ElementBatch:
        """The events of the present chunk."""
        if self._chunk is None:
            self._chunk = self._load(self.position.chunk)
        return self._chunk

    def next(self, events_left: int) -> TrainingBatch:
        """The next batch; the chunk after this one is prepared meanwhile if `events_left` is more than this one gives."""
        chunk = self.chunk()
        if self._turn is None:
            self._turn = self._plan(chunk, self.position)
            following = self.position.chunk + 1
            if following > self._prefetched and events_left > chunk.num_events * (self._reuse - self.position.turn):
                self._source.prefetch(following)
                self._prefetched = following
        batch = self._turn.batch(self.position)
        self._move_on(len(self._turn))
        return batch

    def again(self, position: DataPosition) -> ElementBatch:
        """A batch that was given before, made once more, without what filled it up."""
        present = position.chunk == self.position.chunk and self._chunk is not None
        chunk = self.chunk() if present else self._load(position.chunk)
        return chunk.take(self._order(chunk.counts_B.cpu(), position)[position.batch])

    def skip_turn(self) -> None:
        """Go on with the next turn."""
        self._move_on(self.position.batch + 1)

    def _move_on(self, batches: int) -> None:
        chunk, turn, batch = self.position
        if batch + 1 < batches:
            self.position = DataPosition(chunk, turn, batch + 1)
            return
        self._turn = None
        if turn + 1 < self._reuse:
            self.position = DataPosition(chunk, turn + 1, 0)
        else:
            self.position, self._chunk = DataPosition(chunk + 1, 0, 0), None

    def _plan(self, chunk: ElementBatch, position: DataPosition) -> Turn:
        counts = chunk.counts_B.cpu()
        turn = Turn(chunk, self._order(counts, position), counts, self._budget, self._seed)
        if self._fill:
            self.shape = turn.fix(self.shape)
        return turn

    def _order(self, counts: Tensor, position: DataPosition) -> list[Tensor]:
        return pack(counts, self._budget, (*self._seed, position.chunk, position.turn))

    def _load(self, index: int) -> ElementBatch:
        try:
            with undisturbed(self._device):
                chunk = self._source.chunk(index).to(self._device, non_blocking=True)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise FailureError("out of memory with a chunk of events; try a smaller source.chunk_events") from None
        if chunk.num_events == 0:
            raise FailureError(f"chunk {index} of the training data has no events; give data with events")
        return chunk
