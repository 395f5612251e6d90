"""Reconstruct events that are in a Spark DataFrame, or shards on the executors of Spark.

    from ringflow.infer.spark import read_events, reconstruct_frame

    events = read_events(spark, "data/ttbar")
    candidates = reconstruct_frame(events, model="runs/first/model.safetensors")
    candidates.write.parquet("candidates")

One row per event, `event_number` and list columns named as in a dataset: `track_pt`, `cluster_energy` and so on in,
`candidate_px` and so on out. Rows stay in their partition and in their order. Events travel as Arrow; every Python worker opens
the model once, whatever the number of partitions, and computes on one thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from ringflow.base.errors import FailureError, UsageError
from ringflow.data.read import Dataset
from ringflow.infer.frames import EVENTS_AT_ONCE, TableReconstruction, shard_tables, source_schema
from ringflow.infer.remote import Answer, CarriedModel, ShardSource, ShardTask, carry, reconstruct_shard
from ringflow.launch.frameworks import one_line
from ringflow.launch.spark import await_workers, explained, open_spark, quiet_about_pandas

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
    work = TableReconstruction.of(carried, events_at_once, frame.columns)
    make = partial(_reconstruct, work=work, beside=beside)
    if not beside:
        return mapped(frame.select(*work.columns), make, _sql_schema(work.schema))
    new = pa.schema(list(work.schema)[1:])
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
    read = partial(_read, source=ShardSource.of(dataset, split), collections=tuple(collections))
    return mapped(spark.range(0, shards, 1, shards), read, _sql_schema(source_schema(dataset, collections)))


def mapped(frame: DataFrame, make: Callable[[Batches], Batches], schema: StructType | str) -> DataFrame:
    """The rows that a function makes of those of every partition, as Arrow."""
    with quiet_about_pandas():
        return frame.mapInArrow(make, schema)


def _reconstruct(batches: Batches, work: TableReconstruction, beside: bool) -> Batches:
    """What an executor does with the events of a partition."""
    for events, made in work.run(batches):
        if beside:
            names = [*events.schema.names, *made.column_names[1:]]
            made = pa.Table.from_arrays([*events.columns, *made.columns[1:]], names)
        yield from made.to_batches()


def _read(batches: Batches, source: ShardSource, collections: Sequence[str]) -> Batches:
    """What an executor does with the number of a shard."""
    for batch in batches:
        for table in shard_tables(source, batch.column("id").to_pylist(), collections):
            yield from table.to_batches()


def _sql_schema(schema: pa.Schema) -> str:
    """An Arrow schema of numbers and lists of numbers in the words of Spark."""

    def words(kind: Any) -> str:
        return f"array<{words(kind.value_type)}>" if pa.types.is_list(kind) else _SQL_TYPES[kind]

    return ", ".join(f"{field.name} {words(field.type)}" for field in schema)


def _with_fields(schema: StructType, new: pa.Schema) -> StructType:
    from pyspark.sql.types import StructType

    fields: Any = StructType.fromDDL(_sql_schema(new))
    return StructType([*schema.fields, *fields])


class SparkCluster:
    """The workers of a Spark master, or of a session that is open in this process, which then stays open.

    Every shard is a Spark job of its own, so that results can be taken in order while others are made.
    """

    def __init__(self, master: str | None, workers: int | None, source: ShardSource, model: CarriedModel) -> None:
        self._session, self._ours = open_spark(master, workers)
        self._context = self._session.sparkContext
        self._asked = workers
        try:
            await_workers(self._context)
            self._sent = self._context.broadcast((source, model))
        except BaseException:
            self._end()
            raise
        self._group = f"ringflow-{uuid.uuid4().hex}"
        self._threads = ThreadPoolExecutor(256, "ringflow-spark")

    @property
    def workers(self) -> int:
        """Tasks that Spark runs at a time; it grows while workers come."""
        return self._asked or int(self._context.defaultParallelism)

    @property
    def at_once(self) -> int:
        """Twice as many: a job takes a tenth of a second to start, and nobody shall wait for it."""
        return 2 * self.workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if not self._stopped():
            if self._ours:
                self._context.setLogLevel("OFF")  # jobs that end with it complain on many lines
            self._context.cancelJobGroup(self._group)
        self._end()

    def submit(self, task: ShardTask) -> Future[Answer]:
        """Start a job."""
        return self._threads.submit(self._run, task)

    def explain(self, error: Exception) -> FailureError:
        """What went wrong, in one line."""
        again = "run the same command again: it goes on where it stopped"
        died = f"workers died again and again, perhaps for want of memory; use fewer --workers and {again}"
        failed = "was stopped meanwhile" if self._stopped() else f"failed ({one_line(str(error))})"
        return explained(str(error), died, f"Spark {failed}; {again}")

    def _run(self, task: ShardTask) -> Answer:
        self._context.setJobGroup(self._group, "ringflow reconstruct", interruptOnCancel=True)
        [answer] = self._context.runJob(self._context.parallelize([task], 1), partial(_work, self._sent))
        made: Answer = answer
        return made

    def _stopped(self) -> bool:
        return self._context._jsc is None or bool(self._context._jsc.sc().isStopped())

    def _end(self) -> None:
        if self._ours:
            self._session.stop()


def _work(sent: Any, tasks: Iterable[ShardTask]) -> list[Answer]:
    """What an executor does."""
    source, model = sent.value
    return [reconstruct_shard(source, model, task) for task in tasks]
