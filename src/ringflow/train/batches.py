"""Batches by element budget: events are packed until a batch is full, whatever their sizes.

A training goes through chunks of events, through each chunk `reuse` times (turns), each turn in a new order. Where it is
in the data is three numbers, `DataPosition`, from which the next batch can be made again.

On an accelerator all batches have one shape, so that a compiled step is compiled once: rows marked PADDING fill a batch up
to the budget, and empty events fill up the list of its events. On a CPU nothing is filled.

Letters of tensor names: B event, N element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ringflow.base.errors import FailureError, UsageError
from ringflow.elements.batch import PADDING, ElementBatch
from ringflow.models.attention import Layout
from ringflow.train.device import memory_advice, undisturbed

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


class DataPosition(NamedTuple):
    """The batch that comes next."""

    chunk: int
    turn: int
    batch: int

    def next_turn(self, reuse: int) -> DataPosition:
        """The first batch of the next turn, which is in the next chunk after `reuse` turns."""
        following = DataPosition(self.chunk, self.turn + 1, 0)
        return following if following.turn < reuse else DataPosition(self.chunk + 1, 0, 0)


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


class Feed:
    """The batches of a lane one after the other, from a position on. Several lanes of one seed are in different orders.

    On an accelerator (`fill`) all that needs numbers on the host is worked out once per turn.
    """

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
        self._seed, self._fill = (seed, lane), device.type != "cpu" if fill is None else fill
        self.position, self.shape = position, shape
        self._prefetched = position.chunk
        self._chunk: ElementBatch | None = None
        #: Events of every batch of the present turn, none before it has begun.
        self._plan: list[Tensor] = []

    def chunk(self) -> ElementBatch:
        """The events of the present chunk."""
        if self._chunk is None:
            self._chunk = self._load(self.position.chunk)
        return self._chunk

    def next(self, events_left: int) -> TrainingBatch:
        """The next batch; the chunk after this one is prepared meanwhile if `events_left` is more than this one gives."""
        chunk, position = self.chunk(), self.position
        if not self._plan:
            self._begin_turn(chunk)
            following = position.chunk + 1
            if following > self._prefetched and events_left > chunk.num_events * (self._reuse - position.turn):
                self._source.prefetch(following)
                self._prefetched = following
        events, total = self._plan[position.batch], self._totals[position.batch]
        if self._fill and self.shape is not None:
            elements = self._filled(chunk, position.batch)
            layout = Layout.of(elements, self.shape.longest)
        else:
            elements = chunk.take(events)
            layout = Layout.of(elements)
        if position.batch + 1 < len(self._plan):
            self.position = position._replace(batch=position.batch + 1)
        else:
            self.position, self._plan = position.next_turn(self._reuse), []
            self._chunk = chunk if self.position.chunk == position.chunk else None
        return TrainingBatch(elements, layout, position, len(events), total, mixed_seed(*self._seed, *position))

    def again(self, position: DataPosition) -> ElementBatch:
        """A batch that was given before, made once more, without what filled it up."""
        chunk = self.chunk() if position.chunk == self.position.chunk else self._load(position.chunk)
        return chunk.take(self._order(chunk.counts_B.cpu(), position)[position.batch])

    def _load(self, index: int) -> ElementBatch:
        with (
            memory_advice("with a chunk of events; try a smaller source.chunk_events"),
            undisturbed(self._device),
        ):
            chunk = self._source.chunk(index).to(self._device, non_blocking=True)
        if chunk.num_events == 0:
            raise FailureError(f"chunk {index} of the training data has no events; give data with events")
        return chunk

    def _order(self, counts: Tensor, position: DataPosition) -> list[Tensor]:
        return pack(counts, self._budget, (*self._seed, position.chunk, position.turn))

    def _begin_turn(self, chunk: ElementBatch) -> None:
        counts = chunk.counts_B.cpu()
        self._plan = self._order(counts, self.position)
        self._totals = [int(counts[events].sum()) for events in self._plan]
        if self._fill:
            self._fix_shape(counts)
            self._place_rows(chunk, counts)

    def _fix_shape(self, counts: Tensor) -> None:
        """Let the shape be as it was, or a larger one if a batch does not fit into it."""
        longest = max(_LEAST_BOUND, 1 << (int(counts.max()) - 1).bit_length(), self.shape.longest if self.shape else 0)
        slots = max(
            len(events) + -(-(self._budget - total) // longest)
            for events, total in zip(self._plan, self._totals, strict=True)
        )
        if self.shape is None or self.shape.slots < slots or self.shape.longest < longest:
            self.shape = FixedShape(-(-int(_SPARE * slots) // _SLOTS) * _SLOTS, longest)

    def _place_rows(self, chunk: ElementBatch, counts: Tensor) -> None:
        """Work out which rows of the chunk every batch of the turn takes, and where its events begin."""
        assert self.shape is not None, "the shape is fixed before"
        events = torch.cat(self._plan)
        ends, rows = counts[events].cumsum(0), sum(self._totals)
        first_B = chunk.offsets_B[events.to(self._device)] - (ends - counts[events]).to(self._device)
        row_N = torch.repeat_interleave(first_B, counts[events].to(self._device), output_size=rows)
        self._rows = torch.split(row_N + torch.arange(rows, device=self._device), self._totals)
        offsets = torch.full((len(self._plan), self.shape.slots + 1), self._budget)
        for line, chosen, total in zip(offsets, self._plan, self._totals, strict=True):
            # What fills the batch is cut into events that keep to the bound, too.
            fill = torch.arange(total, self._budget, self.shape.longest)[1:]
            begun = torch.cat([counts.new_zeros(1), counts[chosen].cumsum(0), fill])
            line[: len(begun)] = begun
        self._offsets = offsets.to(self._device)

    def _filled(self, chunk: ElementBatch, number: int) -> ElementBatch:
        """The elements of a batch and rows that fill it up, without a word to the host."""
        total = self._totals[number]
        filled = chunk.rows(pad(self._rows[number], (0, self._budget - total)), self._offsets[number])
        assert filled.targets is not None, "a chunk for training has targets"
        filled.targets.label_N[total:] = PADDING
        return filled


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


def mixed_seed(*numbers: int) -> int:
    """One seed out of several numbers, for a generator of torch."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
