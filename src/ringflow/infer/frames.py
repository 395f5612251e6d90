"""Events and candidates as Arrow tables: one row per event, one list column per column of the schema.

The columns are named as in datasets: `event_number`, `track_pt`, `cluster_energy`, and `candidate_px` for what comes out.
Tables may come from anywhere, so types are put right and what cannot be is told. This is what Spark and Ray share: each maps a
function from a table to a table over its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringflow.base.errors import DatasetError
from ringflow.data.manifest import Columns
from ringflow.data.read import Dataset, select_columns
from ringflow.data.write import EVENT_NUMBER, arrow_schema, to_table
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.event.schema import COLLECTIONS, parquet_name
from ringflow.infer.remote import CarriedModel, ShardSource, worker_session
from ringflow.infer.runtime import ERRORS, ROW, Reconstructor

Table: TypeAlias = pa.Table | pa.RecordBatch

#: Events computed together: as many as `ringflow simulate` puts into a block.
EVENTS_AT_ONCE = 50


@dataclass(frozen=True)
class TableReconstruction:
    """From a table of events to one of their candidates, `events_at_once` at a time; with `beside` the events stay in it."""

    model: CarriedModel
    events_at_once: int = EVENTS_AT_ONCE
    beside: bool = False

    def __call__(self, events: Table) -> pa.Table:
        """What a worker does. It opens the model once."""
        session = worker_session(self.model)
        columns = candidate_columns(session)
        made = [plain_schema(columns).empty_table()]
        for start in range(0, events.num_rows, self.events_at_once):
            block = block_of(events.slice(start, self.events_at_once), session.kinds)
            made.append(table_of(EventBlock(block.event_number, {"candidate": session.reconstruct(block)}), columns))
        table = pa.concat_tables(made)
        if self.beside:
            names = [*events.schema.names, *table.column_names[1:]]
            table = pa.Table.from_arrays([*events.columns, *table.columns[1:]], names)
        return table

    def plan(self, names: Iterable[str]) -> tuple[list[str], pa.Schema]:
        """Which columns of events it needs, and the schema of the candidates; what is missing is told before any work."""
        session = self.model.open()
        columns = event_columns(names, session.kinds)
        nothing = np.zeros(0, np.int64)
        of_nothing = {kind: cast(kind, nothing, dict.fromkeys(present, nothing)) for kind, present in columns.items()}
        session.reconstruct(EventBlock(nothing, of_nothing))
        wanted = [parquet_name(kind, name) for kind, present in columns.items() for name in present]
        return [EVENT_NUMBER, *wanted], plain_schema(candidate_columns(session))


@dataclass(frozen=True)
class ShardReading:
    """From a table of numbers of shards, in a column `id`, to one of their events."""

    source: ShardSource
    columns: Columns

    @classmethod
    def of(cls, dataset: Dataset, split: str | None, collections: Sequence[str]) -> ShardReading:
        """The reading of some collections, or single columns."""
        return cls(ShardSource.of(dataset, split), select_columns(dataset.columns, list(collections)))

    def __call__(self, numbers: Table) -> pa.Table:
        """What a worker does."""
        names = [parquet_name(kind, column) for kind, present in self.columns.items() for column in present]
        shards = numbers.column("id").to_pylist()
        blocks = (block for shard in shards for block in self.source.blocks(shard, names))
        tables = [table_of(block, self.columns) for block in blocks]
        return pa.concat_tables([plain_schema(self.columns).empty_table(), *tables])


def candidate_columns(session: Reconstructor) -> Columns:
    """Columns of what a session gives: with uncertainties, if it knows them."""
    return {"candidate": (*ROW, *(ERRORS if session.has_errors else ()))}


def table_of(block: EventBlock, columns: Columns) -> pa.Table:
    """A block as a plain table, without what only our own files need."""
    return to_table(block, columns).cast(plain_schema(columns))


def plain_schema(columns: Columns) -> pa.Schema:
    """Names and types of such a table, as frameworks make them of their own: everything may be null."""
    lists = [(field.name, pa.list_(field.type.value_type)) for field in list(arrow_schema(columns))[1:]]
    return pa.schema([(EVENT_NUMBER, pa.int64()), *lists])


def event_columns(names: Iterable[str], kinds: Sequence[str]) -> Columns:
    """Which of the named columns are those of some collections, in schema order; an error if a collection has none."""
    present = set(names)
    if EVENT_NUMBER not in present:
        raise DatasetError(f"the events have no column {EVENT_NUMBER!r}; number them")
    found = {
        kind: tuple(column.name for column in COLLECTIONS[kind] if parquet_name(kind, column.name) in present)
        for kind in kinds
    }
    for kind, columns in found.items():
        if not columns:
            example = parquet_name(kind, COLLECTIONS[kind][0].name)
            raise DatasetError(f"the events have no {kind} columns such as {example!r}; name them as in a dataset")
    return found


def block_of(table: Table, kinds: Sequence[str]) -> EventBlock:
    """The events of a table that has list columns for every collection of `kinds`."""
    columns = event_columns(table.schema.names, kinds)
    numbers = _without_nulls(table, EVENT_NUMBER)
    if not pa.types.is_integer(numbers.type):
        raise DatasetError(f"the column {EVENT_NUMBER!r} is {numbers.type}; give integers")
    event_number = numbers.to_numpy(zero_copy_only=False).astype(np.int64)
    collections = {kind: _collection(table, kind, present, event_number) for kind, present in columns.items()}
    return EventBlock(event_number, collections)


def _collection(table: Table, kind: str, columns: Sequence[str], event_number: npt.NDArray[np.int64]) -> Collection:
    counts: dict[str, npt.NDArray[np.int64]] = {}
    values: dict[str, npt.NDArray[Any]] = {}
    for column in columns:
        lists = _without_nulls(table, name := parquet_name(kind, column))
        numbers = lists.flatten() if pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type) else None
        if numbers is None or not (pa.types.is_integer(numbers.type) or pa.types.is_floating(numbers.type)):
            raise DatasetError(f"the column {name!r} is {lists.type}; give a list of numbers per event")
        if numbers.null_count:
            raise DatasetError(f"the column {name!r} has null values; fill them")
        counts[name] = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        values[column] = np.array(numbers.to_numpy(zero_copy_only=False))  # a copy: torch wants to be able to write
    first, wanted = next(iter(counts.items()))
    for name, own in counts.items():
        if not np.array_equal(own, wanted):
            event = int(np.argmax(own != wanted))
            raise DatasetError(
                f"event {event_number[event]} has {own[event]} values in {name!r} but {wanted[event]} in {first!r}; "
                f"give one value per {kind}"
            )
    return cast(kind, wanted, values)


def _without_nulls(table: Table, name: str) -> pa.Array:
    """A column in one piece."""
    column = table.column(name)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        raise DatasetError(f"the column {name!r} has null values; fill them, an event of nothing has empty lists")
    return array
