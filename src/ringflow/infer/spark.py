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
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ringflow.base.errors import UsageError
from ringflow.data.read import Dataset
from ringflow.infer.remote import (
    EVENTS_AT_ONCE,
    Answer,
    CarriedModel,
    Cluster,
    Place,
    ShardReading,
    ShardSource,
    ShardTask,
    TableReconstruction,
    carry,
    plain_schema,
    reconstruct_shard,
)
from ringflow.launch.frameworks import one_line
from ringflow.launch.spark import await_workers, explained, open_spark, quiet_about_pandas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Batches = Iterator[pa.RecordBatch]

#: Collections of the events of a training: with the truth that it learns, and the particles that it is validated with.
TO_LEARN = ("track", "cluster", "target", "particle")


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
    work = TableReconstruction(carried, events_at_once, beside)
    wanted, made = work.plan(frame.columns)
    schema = _spark_schema(made)
    if beside:
        if taken := [name for name in made.names[1:] if name in frame.columns]:
            raise UsageError(f"the events have a column {taken[0]!r} already; drop the candidates they have")
        schema.fields = [*frame.schema.fields, *schema.fields[1:]]
        schema.names = [field.name for field in schema.fields]
    return mapped(frame if beside else frame.select(*wanted), partial(_each, work), schema)


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
    read = ShardReading.of(dataset, split, collections)
    return mapped(spark.range(0, shards, 1, shards), partial(_each, read), _spark_schema(plain_schema(read.columns)))


def mapped(frame: DataFrame, make: Callable[[Batches], Batches], schema: StructType | str) -> DataFrame:
    """The rows that a function makes of those of every partition, as Arrow."""
    with quiet_about_pandas():
        return frame.mapInArrow(make, schema)


def _each(make: Callable[[pa.RecordBatch], pa.Table], batches: Batches) -> Batches:
    """What an executor does with a partition."""
    for batch in batches:
        yield from make(batch).to_batches()


def _spark_schema(schema: pa.Schema) -> StructType:
    with quiet_about_pandas():
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(schema)


@contextmanager
def spark_cluster(place: Place, source: ShardSource, model: CarriedModel) -> Iterator[Cluster]:
    """The workers of a Spark master, or of a session that is open in this process, which then stays open.

    Every shard is a Spark job of its own, so that results can be taken in order while others are made.
    """
    session, ours = open_spark(place.address, place.workers)
    context, group = session.sparkContext, f"ringflow-{uuid.uuid4().hex}"

    def stopped() -> bool:
        return context._jsc is None or bool(context._jsc.sc().isStopped())

    def run(task: ShardTask) -> Answer:
        context.setJobGroup(group, "ringflow reconstruct", interruptOnCancel=True)
        try:
            [answer] = context.runJob(context.parallelize([task], 1), partial(_work, sent))
        except Exception as error:
            again = "run the same command again: it goes on where it stopped"
            died = f"workers died again and again, perhaps for want of memory; use fewer --workers and {again}"
            failed = "was stopped meanwhile" if stopped() else f"failed ({one_line(str(error))})"
            raise explained(str(error), died, f"Spark {failed}; {again}") from error
        made: Answer = answer
        return made

    try:
        await_workers(context)
        sent = context.broadcast((source, model))
        yield Cluster(run, lambda: place.workers or int(context.defaultParallelism))
    finally:
        if not stopped():
            if ours:
                context.setLogLevel("OFF")  # jobs that end with it complain on many lines
            context.cancelJobGroup(group)
        if ours:
            session.stop()


def _work(sent: Any, tasks: Iterable[ShardTask]) -> list[Answer]:
    """What an executor does."""
    source, model = sent.value
    return [reconstruct_shard(source, model, task) for task in tasks]
