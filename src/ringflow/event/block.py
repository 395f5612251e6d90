"""A block of events in memory: flat numpy columns and the number of objects per event."""

from __future__ import annotations

from collections.abc import Collection as Names
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import DatasetError
from ringflow.event.schema import COLLECTIONS, Column


@dataclass(frozen=True)
class Collection:
    """Objects of one kind in a block: `counts` per event, every column flat over the events in order."""

    counts: npt.NDArray[np.int64]
    columns: dict[str, npt.NDArray[Any]]

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Start of each event in the flat columns, with the total appended."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self.counts.sum())

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        return self.columns[column]

    def take(self, start: int, stop: int) -> Collection:
        """Events `start` to `stop` of the block."""
        first, last = self.offsets[start], self.offsets[stop]
        return Collection(self.counts[start:stop], {name: values[first:last] for name, values in self.columns.items()})


@dataclass(frozen=True)
class EventBlock:
    """Consecutive events: their numbers and their collections. Columns a detector lacks are simply absent."""

    event_number: npt.NDArray[np.int64]
    collections: dict[str, Collection]

    def __len__(self) -> int:
        return len(self.event_number)

    def __getitem__(self, collection: str) -> Collection:
        return self.collections[collection]

    def __contains__(self, collection: str) -> bool:
        return collection in self.collections

    def take(self, start: int, stop: int) -> EventBlock:
        """Events `start` to `stop` as a block of their own."""
        return EventBlock(
            self.event_number[start:stop], {name: part.take(start, stop) for name, part in self.collections.items()}
        )


def concatenate(blocks: list[EventBlock]) -> EventBlock:
    """Join blocks that have the same collections and columns."""
    first = blocks[0]
    joined = {
        name: Collection(
            np.concatenate([block[name].counts for block in blocks]),
            {column: np.concatenate([block[name][column] for block in blocks]) for column in part.columns},
        )
        for name, part in first.collections.items()
    }
    return EventBlock(np.concatenate([block.event_number for block in blocks]), joined)


def cast(collection: str, counts: npt.NDArray[np.int64], columns: dict[str, npt.NDArray[Any]]) -> Collection:
    """Put columns into schema order and dtype."""
    ordered = {
        c.name: columns[c.name].astype(c.dtype, copy=False) for c in COLLECTIONS[collection] if c.name in columns
    }
    return Collection(counts.astype(np.int64, copy=False), ordered)


def dangling(block: EventBlock) -> Iterator[tuple[str, Column, npt.NDArray[np.bool_]]]:
    """Every column of indices into a collection that is there, and which of them are neither -1 nor in its range."""
    for name, part in block.collections.items():
        for column in COLLECTIONS[name]:
            if column.points_to in block.collections and column.name in part.columns:
                limit, index = np.repeat(block[column.points_to].counts, part.counts), part[column.name]
                yield name, column, (index < -1) | (index >= limit)


def require_finite(block: EventBlock, columns: Mapping[str, Names[str]]) -> None:
    """An error that names the first value that is none, in the given columns by collection; absent ones are no matter."""
    places = [(name, column) for name in columns if name in block for column in sorted(columns[name])]
    for name, column in places:
        part = block[name]
        if column in part.columns and not np.isfinite(values := part[column]).all():
            wrong = int(np.argmin(np.isfinite(values)))
            event = np.repeat(block.event_number, part.counts)[wrong]
            raise DatasetError(
                f"{name} {column} is {values[wrong]} in event {event}, and a network cannot do without; "
                "leave such events out"
            )
