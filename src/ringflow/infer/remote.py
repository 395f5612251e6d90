"""Reconstruct on a cluster, whichever it is: a model that travels, shards as pieces of work, results in order.

carried = carry(Path("runs/first/model.safetensors"))
with open_cluster(Place("spark"), ShardSource.of(dataset), carried) as cluster:
    blocks = reconstruct_on(cluster, shard_tasks(dataset, None, len(dataset)))

A shard holds whole blocks, and a block is computed as a whole; so the numbers are those of one process that takes the blocks
one after the other. Workers need ringflow, but no path to the model's file. They read the shards themselves: they see the
dataset at the same path as the driver does. Results come as workers finish; few are kept waiting for those before them, so that
memory does not grow with the dataset.

Events that are in a frame of Spark or a dataset of Ray already are reconstructed as Arrow tables, by `TableReconstruction`:
each of the two maps a function from a table to a table over its own.
"""

from __future__ import annotations

import hashlib
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringflow import __version__
from ringflow.base.errors import DatasetError, FailureError, InputFileError, RingflowError
from ringflow.data.manifest import MANIFEST_FILE, Columns, manifest_hash
from ringflow.data.read import Dataset, select_columns
from ringflow.data.write import EVENT_NUMBER, arrow_schema, to_table
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.event.schema import COLLECTIONS, parquet_name
from ringflow.infer.reconstruct import after, made_of
from ringflow.infer.runtime import ERRORS, ROW, OnnxSession, Reconstructor

#: Where a reconstruction can run.
PLACES = ("here", "spark", "ray")
#: Tasks per worker that are given out, or done and wait for those before them.
_AHEAD = 3


@dataclass(frozen=True)
class CarriedModel:
    """The content of a model file and of its uncertainties, if there are any, and what computes it."""

    file: str
    engine: str
    sha256: str
    content: bytes = field(compare=False, repr=False)
    uncertainty: bytes | None = field(default=None, repr=False)
    detector: str | None = None  # that events are of, where the model can take those of any
    ringflow: str = __version__

    def open(self) -> Reconstructor:
        """A new session of it."""
        with tempfile.TemporaryDirectory(prefix="ringflow-model-") as folder:
            path = Path(folder) / self.file
            path.write_bytes(self.content)
            if self.engine == "onnx":
                return OnnxSession(path)  # without torch, which takes seconds to load in every worker
            from ringflow.infer.session import open_session

            if self.uncertainty is None:
                return open_session(path, detector=self.detector)
            (errors := path.with_name("uncertainty")).write_bytes(self.uncertainty)
            return open_session(path, uncertainty=errors, detector=self.detector)


def carry(
    model: Path | None = None,
    engine: str | None = None,
    uncertainty: Path | None = None,
    detector: str | None = None,
) -> CarriedModel:
    """A model file, or the model that comes with the package; for the engine `onnx` it is exported once, here.

    It is for events of a detector. The file of uncertainties is the one beside the model unless given; `onnx` computes none.
    """
    from ringflow.infer.session import as_onnx, choose_engine, load_for
    from ringflow.models.uncertainty import found_beside, head_for

    path, engine = choose_engine(model, engine)
    if not path.is_file():
        raise InputFileError(f"no model at {path}; give a model file")
    errors = None
    if engine == "torch":  # what no worker could do is told here
        load_for(path, detector)
        if file := uncertainty or found_beside(path):
            head_for(file, path)
            errors = file.read_bytes()
    with as_onnx(path, detector) if engine == "onnx" else nullcontext(path) as carried:
        content = carried.read_bytes()
    return CarriedModel(carried.name, engine, hashlib.sha256(content).hexdigest(), content, errors, detector)


@lru_cache(maxsize=2)
def worker_session(model: CarriedModel) -> Reconstructor:
    """The session of this process, opened once for all that it is asked to do.

    It computes on one thread: there are as many workers as cores.
    """
    if model.ringflow != __version__:
        raise FailureError(
            f"the workers have ringflow {__version__}, and here is {model.ringflow}; install the same version on both"
        )
    if model.engine == "torch":
        import torch

        torch.set_num_threads(1)
    return model.open()


@dataclass(frozen=True)
class ShardSource:
    """A dataset, or one of its splits, as workers find it."""

    path: str
    manifest_sha256: str
    split: str | None = None

    @classmethod
    def of(cls, dataset: Dataset, split: str | None = None) -> ShardSource:
        """That of an open dataset."""
        return cls(str(dataset.path.resolve()), manifest_hash(dataset.path), split)

    def blocks(self, shard: int, columns: Sequence[str]) -> Iterator[EventBlock]:
        """The events of one shard."""
        dataset = _open(self.path, self.manifest_sha256)
        return dataset.one_shard(dataset.manifest.shards[shard]).events(self.split, columns)

    def task_blocks(self, task: ShardTask, columns: Sequence[str]) -> Iterator[EventBlock]:
        """The events of one task; the last block is cut where the task ends."""
        left = task.stop - task.start
        for block in after(self.blocks(task.shard, columns), task.start):
            yield block.take(0, min(len(block), left))
            left -= len(block)
            if left <= 0:
                return


@lru_cache(maxsize=2)
def _open(path: str, manifest_sha256: str) -> Dataset:
    """The dataset as this process sees it, opened once."""
    folder, here = Path(path), socket.gethostname()
    if not (folder / MANIFEST_FILE).is_file():
        raise FailureError(
            f"a worker on {here} cannot see the dataset {path}; put it on a file system that all workers see at the same path"
        )
    if manifest_hash(folder) != manifest_sha256:
        raise FailureError(
            f"a worker on {here} sees another dataset at {path}; put it on a file system that all workers share"
        )
    return Dataset(folder)


class ShardTask(NamedTuple):
    """Events `start` to `stop` of one shard, counted in the source; `start` is that of a block."""

    shard: int
    start: int
    stop: int


def shard_tasks(dataset: Dataset, split: str | None, events: int, done: int = 0) -> Iterator[ShardTask]:
    """The first `events` events shard by shard, without the first `done` of them."""
    first = 0
    for index, shard in enumerate(dataset.manifest.shards):
        there = shard.num_events if split is None else shard.splits[split]
        start, stop = max(done - first, 0), min(events - first, there)
        if start < stop:
            yield ShardTask(index, start, stop)
        first += there


#: What comes back from a worker; an error as a value, because frameworks wrap what is raised and try it again.
Answer = list[EventBlock] | RingflowError


def reconstruct_shard(source: ShardSource, model: CarriedModel, task: ShardTask) -> Answer:
    """The candidates of a task, made in a worker process."""
    try:
        session = worker_session(model)
        blocks = list(made_of(session.reconstruct, source.task_blocks(task, session.kinds)))
    except RingflowError as error:
        return error
    if (found := sum(map(len, blocks))) != task.stop - task.start:
        return DatasetError(
            f"shard {task.shard} of {source.path} has {task.start + found} events instead of {task.stop}; "
            "make the dataset again"
        )
    return blocks


class Place(NamedTuple):
    """Where to reconstruct: `here`, or on `workers` of a cluster at an address, which is this machine unless given."""

    on: str = "here"
    address: str | None = None
    workers: int | None = None


HERE = Place()


class Cluster(NamedTuple):
    """Workers that reconstruct shards."""

    run: Callable[[ShardTask], Answer]  # blocks until it is done; what the framework raises is a line of ours
    workers: Callable[[], int]  # tasks that are worked on at a time; it may grow


def open_cluster(place: Place, source: ShardSource, model: CarriedModel) -> AbstractContextManager[Cluster]:
    """The workers of a place, told what to work on; leaving the context ends what was started for it."""
    if place.on == "spark":
        from ringflow.infer.spark import spark_cluster

        return spark_cluster(place, source, model)
    from ringflow.infer.ray import ray_cluster

    return ray_cluster(place, source, model)


def reconstruct_on(cluster: Cluster, tasks: Iterable[ShardTask]) -> Iterator[EventBlock]:
    """The candidates of tasks, in their order. A framework has its own queue: it gets a few more than it works on."""
    left, given = iter(tasks), deque[Future[Answer]]()
    threads = ThreadPoolExecutor(256, "ringflow-cluster")  # one waits for each task
    try:
        while True:
            given += (
                threads.submit(cluster.run, task) for task in islice(left, _AHEAD * cluster.workers() - len(given))
            )
            if not given:
                return
            answer = given.popleft().result()
            if isinstance(answer, RingflowError):
                raise answer
            yield from answer
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


# Tables: one row per event, one list column per column of the schema, named as in datasets: `event_number`, `track_pt`, and
# `candidate_px` for what comes out. They may come from anywhere, so types are put right and what cannot be is told.

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
