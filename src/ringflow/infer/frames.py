"""Events and candidates as Arrow tables: one row per event, one list column per column of the schema.

The columns are named as in datasets: `event_number`, `track_pt`, `cluster_energy`, and `candidate_px` for what comes out.
Tables may come from anywhere, so types are put right and what cannot be is told. This is what Spark and Ray share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringflow.base.errors import DatasetError
from ringflow.data.manifest import Columns
from ringflow.data.read import Dataset, select_columns
from ringflow.data.write import EVENT_NUMBER, arrow_schema, columns_of, to_table
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.event.schema import CANDIDATE_ERRORS, COLLECTIONS, parquet_name
from ringflow.infer.reconstruct import made_of
from ringflow.infer.remote import CarriedModel, ShardSource, worker_session
from ringflow.infer.runtime import ERRORS, Reconstructor

#: Those that every reconstruction gives.
CANDIDATES: Columns = {
    "candidate": tuple(column.name for column in COLLECTIONS["candidate"] if column not in CANDIDATE_ERRORS)
}
#: Events computed together: as many as `ringflow simulate` puts into a block.
EVENTS_AT_ONCE = 50


@dataclass(frozen=True)
class TableReconstruction:
    """What workers do with tables of events: each opens the model once."""

    model: CarriedModel
    events_at_once: int
    columns: tuple[str, ...]  # of the events, that it needs; empty where they are not known yet
    schema: pa.Schema  # of the candidates

    @classmethod
    def of(
        cls, model: CarriedModel, events_at_once: int = EVENTS_AT_ONCE, names: Iterable[str] | None = None
    ) -> TableReconstruction:
        """The work with events that have columns of these names, if they are those that it takes."""
        session = model.open()
        columns = {} if names is None else event_columns(names, session.kinds)
        if columns:
            require_columns(session, columns)
        wanted = [parquet_name(kind, name) for kind, present in columns.items() for name in present]
        return cls(model, events_at_once, (EVENT_NUMBER, *wanted), plain_schema(candidate_columns(session)))

    def run(self, tables: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[tuple[pa.Table | pa.RecordBatch, pa.Table]]:
        """Some events and their candidates, in the order of the tables."""
        return reconstruct_tables(tables, worker_session(self.model), self.events_at_once)


def reconstruct_tables(
    tables: Iterable[pa.Table | pa.RecordBatch], session: Reconstructor, events_at_once: int = EVENTS_AT_ONCE
) -> Iterator[tuple[pa.Table | pa.RecordBatch, pa.Table]]:
    """Events and tables of their candidates, `events_at_once` at a time."""
    for table in tables:
        for start in range(0, table.num_rows, events_at_once):
            events = table.slice(start, events_at_once)
            for made in made_of(session, [block_of(events, session.kinds)]):
                yield events, table_of(made, candidate_columns(session))


def source_schema(dataset: Dataset, collections: Sequence[str]) -> pa.Schema:
    """Names and types of the columns of `shard_tables`."""
    return plain_schema(select_columns(dataset.columns, list(collections)))


def shard_tables(source: ShardSource, shards: Iterable[int], collections: Sequence[str]) -> Iterator[pa.Table]:
    """The events of some shards."""
    for shard in shards:
        for block in source.blocks(shard, collections):
            yield table_of(block, columns_of(block))


def candidate_columns(session: Reconstructor) -> Columns:
    """Columns of what a session gives: with uncertainties, if it knows them."""
    return {"candidate": (*CANDIDATES["candidate"], *(ERRORS if session.has_errors else ()))}


def table_of(block: EventBlock, columns: Columns) -> pa.Table:
    """A block as a plain table, without what only our own files need."""
    table = to_table(block, columns)
    return table.cast(plain_schema(columns))


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


def block_of(table: pa.Table | pa.RecordBatch, kinds: Sequence[str]) -> EventBlock:
    """The events of a table that has list columns for every collection of `kinds`."""
    columns = event_columns(table.schema.names, kinds)
    number = _plain(table, EVENT_NUMBER)
    if not pa.types.is_integer(number.type):
        raise DatasetError(f"the column {EVENT_NUMBER!r} is {number.type}; give integers")
    numbers = number.to_numpy(zero_copy_only=False).astype(np.int64)
    collections = {kind: _collection(table, kind, present, numbers) for kind, present in columns.items()}
    return EventBlock(numbers, collections)


def require_columns(session: Reconstructor, columns: Columns) -> None:
    """Find out that a network lacks a column before any event is read."""
    nothing = {
        kind: cast(kind, np.zeros(0, np.int64), {name: np.zeros(0) for name in present})
        for kind, present in columns.items()
    }
    session.reconstruct(EventBlock(np.zeros(0, np.int64), nothing))


def _collection(
    table: pa.Table | pa.RecordBatch, kind: str, columns: Sequence[str], numbers: npt.NDArray[np.int64]
) -> Collection:
    counts: npt.NDArray[np.int64] | None = None
    values: dict[str, npt.NDArray[Any]] = {}
    for column in columns:
        name = parquet_name(kind, column)
        lists = _plain(table, name)
        if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
            raise DatasetError(f"the column {name!r} is {lists.type}; give a list of numbers per event")
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        if counts is None:
            first, counts = name, lengths
        elif not np.array_equal(counts, lengths):
            event = int(np.argmax(counts != lengths))
            raise DatasetError(
                f"event {numbers[event]} has {lengths[event]} values in {name!r} but {counts[event]} in {first!r}; "
                f"give one value per {kind}"
            )
        values[column] = _numbers(lists.flatten(), name)
    assert counts is not None, "a collection has columns"
    return cast(kind, counts, values)


def _plain(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """A column in one piece and without nulls."""
    column = table.column(name)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        raise DatasetError(f"the column {name!r} has null values; fill them, an event of nothing has empty lists")
    return array


def _numbers(values: pa.Array, name: str) -> npt.NDArray[Any]:
    if values.null_count:
        raise DatasetError(f"the column {name!r} has null values; fill them")
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise DatasetError(f"the column {name!r} has lists of {values.type}; give numbers")
    return np.array(values.to_numpy(zero_copy_only=False))  # a copy: torch wants memory that may be written to
