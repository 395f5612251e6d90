"""Reconstruct events that are in a Spark DataFrame.

    from ringflow.infer.spark import read_events, reconstruct_frame

    events = read_events(spark, "data/ttbar")
    candidates = reconstruct_frame(events, model="runs/first/model.safetensors")
    candidates.write.parquet("candidates")

One row per event, `event_number` and list columns named as in a dataset: `track_pt`, `cluster_energy` and so on in,
`candidate_px` and so on out. Rows stay in their partition and in their order. Events travel as Arrow; every Python worker opens
the model once, whatever the number of partitions, and computes on one thread.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ringflow.base.errors import UsageError
from ringflow.data.read import Dataset, select_columns
from ringflow.data.write import EVENT_NUMBER
from ringflow.event.schema import parquet_name
from ringflow.infer.carried import CarriedModel, carry, worker_session
from ringflow.infer.frames import (
    EVENTS_AT_ONCE,
    candidate_columns,
    event_columns,
    plain_schema,
    reconstruct_tables,
    require_columns,
    table_of,
)
from ringflow.infer.shards import ShardSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Batches = Iterator[pa.RecordBatch]

#: Collections of the events of a training: with the truth that it learns, and the particles that it is validated with.
TO_LEARN = ("track", "cluster", "target", "particle")

_SQL_TYPES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
}


def reconstruct_frame(
    frame: DataFrame,
    model: Path | str | CarriedModel | None = None,
    engine: str | None = None,
    events_at_once: int = EVENTS_AT_ONCE,
    *,
    beside: bool = False,
) -> DataFrame:
    """The candidates of a frame of events: a model file, or the model that comes with the package, on every worker.

    Events are computed in blocks of `events_at_once`, counted from the beginning of a partition. The engine `onnx` takes every
    event for itself; with `torch` the last bit of a number can depend on the block. With `beside` the columns of the frame
    stay, and those of the candidates come after them.
    """
    carried = model if isinstance(model, CarriedModel) else carry(Path(model) if model else None, engine)
    session = carried.open()
    columns = event_columns(frame.columns, session.kinds)
    require_columns(session, columns)
    wanted = [EVENT_NUMBER, *(parquet_name(kind, name) for kind, present in columns.items() for name in present)]
    make = partial(_reconstruct, model=carried, events_at_once=events_at_once, beside=beside)
    made = plain_schema(candidate_columns(session))
    if not beside:
        return mapped(frame.select(*wanted), make, _sql_schema(made))
    new = pa.schema(list(made)[1:])
    if taken := [name for name in new.names if name in frame.columns]:
        raise UsageError(f"the events have a column {taken[0]!r} already; drop the candidates they have")
    return mapped(frame, make, _with_fields(frame.schema, new))


def read_events(
    spark: SparkSession,
    path: Path | str,
    split: str | None = None,
    collections: Sequence[str] = ("track", "cluster"),
) -> DataFrame:
    """The events of a dataset, one partition per shard, in order; the executors read them, so they must see the path.

    `collections` may also name single columns. To learn from events, ask for what `TO_LEARN` names.
    """
    dataset = Dataset(path)
    shards = len(dataset.manifest.shards)
    columns = select_columns(dataset.columns, list(collections))
    read = partial(_read, source=ShardSource.of(dataset, split), collections=tuple(collections))
    return mapped(spark.range(0, shards, 1, shards), read, _sql_schema(plain_schema(columns)))


def mapped(frame: DataFrame, make: Callable[[Batches], Batches], schema: StructType | str) -> DataFrame:
    """The rows that a function makes of those of every partition, as Arrow."""
    with warnings.catch_warnings():
        # Said of pandas 3 whenever Spark meets Arrow; pandas has no part in what is done here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        return frame.mapInArrow(make, schema)


def _reconstruct(batches: Batches, model: CarriedModel, events_at_once: int, beside: bool) -> Batches:
    """What an executor does with the events of a partition."""
    session = worker_session(model)
    for batch in batches:
        for start in range(0, batch.num_rows, events_at_once):
            events = batch.slice(start, events_at_once)
            for made in reconstruct_tables([events], session, events_at_once):
                yield from (_joined(events, made) if beside else made).to_batches()


def _joined(events: pa.RecordBatch, made: pa.Table) -> pa.Table:
    names = [*events.schema.names, *made.column_names[1:]]
    return pa.Table.from_arrays([*events.columns, *made.columns[1:]], names)


def _read(batches: Batches, source: ShardSource, collections: Sequence[str]) -> Batches:
    """What an executor does with the number of a shard."""
    for batch in batches:
        for shard in batch.column("id").to_pylist():
            for block in source.blocks(shard, collections):
                columns = {name: tuple(part.columns) for name, part in block.collections.items()}
                yield from table_of(block, columns).to_batches()


def _sql_schema(schema: pa.Schema) -> str:
    """An Arrow schema of numbers and lists of numbers in the words of Spark."""

    def words(kind: Any) -> str:
        return f"array<{words(kind.value_type)}>" if pa.types.is_list(kind) else _SQL_TYPES[kind]

    return ", ".join(f"{field.name} {words(field.type)}" for field in schema)


def _with_fields(schema: StructType, new: pa.Schema) -> StructType:
    from pyspark.sql.types import StructType

    fields: Any = StructType.fromDDL(_sql_schema(new))
    return StructType([*schema.fields, *fields])
