"""Reconstruct events that are in a Ray Dataset, or shards on the workers of a Ray cluster.

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
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from ringflow.base.errors import FailureError
from ringflow.data.read import Dataset
from ringflow.infer.frames import EVENTS_AT_ONCE, TableReconstruction, shard_tables, source_schema
from ringflow.infer.remote import Answer, CarriedModel, ShardSource, ShardTask, carry, reconstruct_shard
from ringflow.launch.frameworks import framework, one_line
from ringflow.launch.ray import open_ray

if TYPE_CHECKING:
    import ray.data

#: How often a task is given to another worker when the first one dies.
_NEW_TRIES = 3


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
    # Where the columns are known only after some work, the actors tell what is missing.
    schema = events.schema(fetch_if_missing=False)
    carried = carry(Path(model) if model else None, engine)
    work = TableReconstruction.of(carried, events_at_once, schema.names if schema else None)
    return _mapped(
        events,
        _Actor,
        fn_constructor_args=(work,),
        compute=framework("ray.data", "ray").ActorPoolStrategy(size=concurrency),
        num_cpus=1,
    )


def read_events(
    path: Path | str, split: str | None = None, collections: Sequence[str] = ("track", "cluster")
) -> ray.data.Dataset:
    """The events of a dataset, one block per shard, in order; the workers read them, so they must see the path."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    data = framework("ray.data", "ray")
    dataset = Dataset(path)
    source, schema = ShardSource.of(dataset, split), source_schema(dataset, collections)

    def read(numbers: pa.Table) -> pa.Table:
        shards = numbers.column("shard").to_pylist()
        return pa.concat_tables([schema.empty_table(), *shard_tables(source, shards, collections)])

    numbers = [{"shard": shard} for shard in range(len(dataset.manifest.shards))]
    return _mapped(data.from_items(numbers, override_num_blocks=len(numbers)), read)


class _Actor:
    def __init__(self, work: TableReconstruction) -> None:
        self._work = work

    def __call__(self, events: pa.Table) -> pa.Table:
        made = [candidates for _, candidates in self._work.run([events])]
        return pa.concat_tables(made) if made else self._work.schema.empty_table()


def _mapped(dataset: ray.data.Dataset, make: Any, **options: Any) -> ray.data.Dataset:
    """What a function makes of the blocks of a dataset, as Arrow and in order."""
    made = dataset.map_batches(make, batch_size=None, batch_format="pyarrow", zero_copy_batch=True, **options)
    made.context.execution_options.preserve_order = True
    return made


class RayCluster:
    """The workers of a Ray cluster, or of the one that this process is connected to, which then stays connected.

    Every shard is a Ray task; its workers keep the model between tasks, and are replaced when they die.
    """

    def __init__(self, address: str | None, workers: int | None, source: ShardSource, model: CarriedModel) -> None:
        self._ray, self._ours = open_ray(address, workers)
        self.workers = workers or max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        self.at_once = self.workers
        self._sent = self._ray.put((source, model))
        self._work = self._ray.remote(num_cpus=1, max_retries=_NEW_TRIES)(_work)
        self._under_way: set[Any] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for task in list(self._under_way):
            self._ray.cancel(task)
        if self._ours:
            self._ray.shutdown()

    def submit(self, task: ShardTask) -> Future[Answer]:
        """Start a task."""
        reference = self._work.remote(self._sent, task)
        self._under_way.add(reference)
        future: Future[Answer] = reference.future()
        # Whoever holds a reference keeps the result in Ray's memory.
        future.add_done_callback(lambda _: self._under_way.discard(reference))
        return future

    def explain(self, error: Exception) -> FailureError:
        """What went wrong, in one line."""
        if "No module named 'ringflow'" in str(error):
            return FailureError("the workers' Python has no ringflow; install it on every node of the cluster")
        if isinstance(error, (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.OutOfMemoryError)):
            return FailureError(
                "workers died again and again, perhaps for want of memory; use fewer --workers and run the same command "
                "again: it goes on where it stopped"
            )
        reason = one_line(str(error))
        return FailureError(f"Ray failed ({reason}); run the same command again: it goes on where it stopped")


def _work(sent: tuple[ShardSource, CarriedModel], task: ShardTask) -> Answer:
    """What a worker does."""
    return reconstruct_shard(*sent, task)
