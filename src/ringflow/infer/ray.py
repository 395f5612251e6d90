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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringflow.base.errors import FailureError
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
    reconstruct_shard,
)
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
    carried = carry(Path(model) if model else None, engine)
    # Where the columns are known only after some work, the actors tell what is missing.
    if schema := events.schema(fetch_if_missing=False):
        TableReconstruction(carried).plan(schema.names)
    actors = framework("ray.data", "ray").ActorPoolStrategy(size=concurrency)
    given = (carried, events_at_once)
    return _mapped(events, TableReconstruction, fn_constructor_args=given, compute=actors, num_cpus=1)


def read_events(
    path: Path | str, split: str | None = None, collections: Sequence[str] = ("track", "cluster")
) -> ray.data.Dataset:
    """The events of a dataset, one block per shard, in order; the workers read them, so they must see the path."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    dataset = Dataset(path)
    shards = len(dataset.manifest.shards)
    numbers = framework("ray.data", "ray").range(shards, override_num_blocks=shards)
    return _mapped(numbers, ShardReading.of(dataset, split, collections).__call__)


def _mapped(dataset: ray.data.Dataset, make: Any, **options: Any) -> ray.data.Dataset:
    """What a function makes of the blocks of a dataset, as Arrow and in order."""
    made = dataset.map_batches(make, batch_size=None, batch_format="pyarrow", zero_copy_batch=True, **options)
    made.context.execution_options.preserve_order = True
    return made


@contextmanager
def ray_cluster(place: Place, source: ShardSource, model: CarriedModel) -> Iterator[Cluster]:
    """The workers of a Ray cluster, or of the one that this process is connected to, which then stays connected.

    Every shard is a Ray task; its workers keep the model between tasks, and are replaced when they die.
    """
    ray, ours = open_ray(place.address, place.workers)
    workers = place.workers or max(int(ray.cluster_resources().get("CPU", 1)), 1)
    sent = [ray.put(part) for part in (source, model)]
    work = ray.remote(num_cpus=1, max_retries=_NEW_TRIES)(reconstruct_shard)
    under_way: set[Any] = set()

    def run(task: ShardTask) -> Answer:
        under_way.add(reference := work.remote(*sent, task))
        try:
            made: Answer = ray.get(reference)
            return made
        except Exception as error:
            raise _explained(error) from error
        finally:
            under_way.discard(reference)  # whoever holds one keeps the result in Ray's memory

    try:
        yield Cluster(run, lambda: workers)
    finally:
        for reference in list(under_way):
            ray.cancel(reference)
        if ours:
            ray.shutdown()


def _explained(error: Exception) -> FailureError:
    """What went wrong, in one line."""
    from ray.exceptions import OutOfMemoryError, WorkerCrashedError

    again = "run the same command again: it goes on where it stopped"
    if "No module named 'ringflow'" in str(error):
        return FailureError("the workers' Python has no ringflow; install it on every node of the cluster")
    if isinstance(error, (WorkerCrashedError, OutOfMemoryError)):
        return FailureError(
            f"workers died again and again, perhaps for want of memory; use fewer --workers and {again}"
        )
    return FailureError(f"Ray failed ({one_line(str(error))}); {again}")
