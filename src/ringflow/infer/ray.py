"""Reconstruct events that are in a Ray Dataset.

    from ringflow.infer.ray import read_events, reconstruct_dataset

    events = read_events("data/ttbar")
    candidates = reconstruct_dataset(events, model="runs/first/model.safetensors", concurrency=2)
    candidates.write_parquet("candidates")

One row per event, `event_number` and list columns named as in a dataset: `track_pt`, `cluster_energy` and so on in,
`candidate_px` and so on out, in the same order. Events travel as Arrow; every actor opens the model once and computes on one
thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ringflow.data.read import Dataset, select_columns
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
from ringflow.launch.frameworks import framework

if TYPE_CHECKING:
    import ray.data


class Reconstruct:
    """What an actor is: a model, ready for tables of events."""

    def __init__(self, model: CarriedModel, events_at_once: int) -> None:
        self._session = worker_session(model)
        self._events_at_once = events_at_once

    def __call__(self, events: pa.Table) -> pa.Table:
        """The candidates of events."""
        made = list(reconstruct_tables([events], self._session, self._events_at_once))
        return pa.concat_tables(made) if made else plain_schema(candidate_columns(self._session)).empty_table()


class ReadShards:
    """Reads the shards whose numbers come in."""

    def __init__(self, source: ShardSource, collections: Sequence[str], schema: pa.Schema) -> None:
        self._source, self._collections, self._schema = source, tuple(collections), schema

    def read(self, numbers: pa.Table) -> pa.Table:
        """The events of shards."""
        tables = [self._schema.empty_table()]
        for shard in numbers.column("shard").to_pylist():
            for block in self._source.blocks(shard, self._collections):
                columns = {name: tuple(part.columns) for name, part in block.collections.items()}
                tables.append(table_of(block, columns))
        return pa.concat_tables(tables)


def reconstruct_dataset(
    events: ray.data.Dataset,
    model: Path | str | None = None,
    engine: str | None = None,
    concurrency: int = 1,
    events_at_once: int = EVENTS_AT_ONCE,
) -> ray.data.Dataset:
    """The candidates of events, by a model file or the model that comes with the package, on `concurrency` actors.

    Events are computed in blocks of `events_at_once`, counted from the beginning of a block of Ray. The engine `onnx` takes
    every event for itself; with `torch` the last bit of a number can depend on the block.
    """
    carried = carry(Path(model) if model else None, engine)
    session = carried.open()
    # Where the columns are known only after some work, the actors tell what is missing.
    if (schema := events.schema(fetch_if_missing=False)) is not None:
        require_columns(session, event_columns(schema.names, session.kinds))
    made = events.map_batches(
        Reconstruct,
        fn_constructor_args=(carried, events_at_once),
        batch_size=None,
        batch_format="pyarrow",
        zero_copy_batch=True,
        compute=framework("ray.data", "ray").ActorPoolStrategy(size=concurrency),
        num_cpus=1,
    )
    made.context.execution_options.preserve_order = True
    return made


def read_events(
    path: Path | str, split: str | None = None, collections: Sequence[str] = ("track", "cluster")
) -> ray.data.Dataset:
    """The events of a dataset, one block per shard, in order; the workers read them, so they must see the path."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    data = framework("ray.data", "ray")
    dataset = Dataset(path)
    schema = plain_schema(select_columns(dataset.columns, list(collections)))
    reader = ReadShards(ShardSource.of(dataset, split), collections, schema)
    numbers = [{"shard": shard} for shard in range(len(dataset.manifest.shards))]
    made: ray.data.Dataset = data.from_items(numbers, override_num_blocks=len(numbers)).map_batches(
        reader.read, batch_size=None, batch_format="pyarrow", zero_copy_batch=True
    )
    made.context.execution_options.preserve_order = True
    return made
