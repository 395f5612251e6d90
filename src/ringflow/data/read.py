"""Read a dataset: blocks of numpy columns, awkward arrays, or packed columns for training.

    dataset = Dataset(Path("data/ttbar"))
    for block in dataset.events(split="train", columns=["track", "cluster_energy"]):
        block["track"]["pt"], block["track"].counts
    events = dataset.to_awkward(columns=["cluster"])
    packed = dataset.packed(["track", "cluster"], split="train")

A column is asked for by its name on disk (`track_pt`), or all of a collection by the collection's name (`track`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ringflow.base.errors import DatasetError, UsageError
from ringflow.base.rundir import atomic_path, write_errors
from ringflow.base.words import did_you_mean
from ringflow.data.manifest import PACKED_FOLDER, Columns, Manifest, Shard, manifest_hash, read_manifest
from ringflow.data.write import EVENT_NUMBER, VERSION_KEY, arrow_schema, to_table
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.event.schema import COLLECTIONS, SCHEMA_VERSION, parquet_name

#: What Arrow raises for a broken file; a ValueError is, for example, a column name that is no text any more.
UNREADABLE = (pa.ArrowException, OSError, ValueError)

#: Columns of a dataset that hold the truth an evaluation needs.
TRUTH_COLUMNS = (
    *(f"particle_{name}" for name in ("px", "py", "pz", "energy", "pdg", "target")),
    *(f"target_{name}" for name in ("label", "px", "py", "pz", "energy")),
)


class Dataset:
    """A dataset on disk. Opening it reads the manifest and looks at the sizes of the shards, not at their content."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.manifest: Manifest = read_manifest(self.path)
        _verify_files(self.path, self.manifest)

    def __len__(self) -> int:
        return self.manifest.num_events

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}: {len(self)} {self.manifest.sample} events, {self.manifest.detector})"

    @property
    def columns(self) -> Columns:
        """The collections and columns it has."""
        return self.manifest.columns

    def events(self, split: str | None = None, columns: Sequence[str] | None = None) -> Iterator[EventBlock]:
        """All events of a split (default: of the dataset) in order, as blocks of at most one row group."""
        wanted = select_columns(self.columns, columns)
        for shard in self.manifest.shards:
            for block in read_shard(self.path, shard, wanted):
                if split is not None:
                    block = keep_events(block, self.manifest.split_rule.select(block.event_number, split))
                if len(block):
                    yield block

    def one_shard(self, shard: Shard) -> Dataset:
        """The dataset as if it had this shard only."""
        part = copy(self)
        part.manifest = self.manifest.model_copy(update={"shards": (shard,)})
        return part

    def to_awkward(self, split: str | None = None, columns: Sequence[str] | None = None) -> Any:
        """All events at once as an awkward array: `events.track.pt`, `events.event_number`."""
        blocks = list(self.events(split, columns))
        if not blocks:
            raise DatasetError(f"{self.path} has no events in split {split!r}; its {len(self)} events are in others")
        return to_awkward(concatenate(blocks))

    def packed(
        self, columns: Sequence[str] | None = None, split: str | None = None, *, cache: Path | None = None
    ) -> PackedEvents:
        """Memory-mapped columns with random access by event, converted once and kept under `packed/` (or `cache`)."""
        wanted = select_columns(self.columns, columns)
        folder = cache or self.path / PACKED_FOLDER
        key = hashlib.sha256(f"{manifest_hash(self.path)} {json.dumps(wanted)}".encode()).hexdigest()[:16]
        file = folder / f"{key}.arrow"
        if not file.is_file():
            names = [parquet_name(name, column) for name, present in wanted.items() for column in present]
            with write_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            with atomic_path(file) as temporary, pa.ipc.new_file(temporary, arrow_schema(wanted)) as writer:
                for block in self.events(columns=names):
                    writer.write_table(to_table(block, wanted))
        packed = PackedEvents(file, wanted)
        return packed if split is None else packed.select(self.manifest.split_rule.select(packed.event_number, split))


class PackedEvents:
    """Random access to memory-mapped events: `packed[i]["track"]["pt"]` is a slice without a copy.

    The file is in Arrow's format, uncompressed, a batch per block of the shards; processes on one machine share its pages.
    """

    def __init__(self, file: Path, columns: Columns) -> None:
        self.columns = columns
        self._table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
        self._rows: npt.NDArray[np.int64] = np.arange(len(self._table))

    @property
    def event_number(self) -> npt.NDArray[np.int64]:
        """Number of every event, in the order of access."""
        return np.asarray(_numbers(self._table[EVENT_NUMBER].combine_chunks())[self._rows])

    def counts(self, collection: str) -> npt.NDArray[np.int64]:
        """Objects per event, in the order of access: what a sampler needs to make batches of even size."""
        lists = self._table[parquet_name(collection, self.columns[collection][0])].chunks
        return np.asarray(np.concatenate([np.diff(_numbers(part.offsets)) for part in lists])[self._rows])

    def select(self, mask: npt.NDArray[np.bool_]) -> PackedEvents:
        """The events under a mask."""
        selected = copy(self)
        selected._rows = self._rows[mask]
        return selected

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> EventBlock:
        return to_block(self._table.slice(int(self._rows[index]), 1), self.columns)


def select_columns(available: Columns, wanted: Sequence[str] | None) -> Columns:
    """The columns asked for by collection or by name on disk, in schema order; all of them for None."""
    if wanted is None:
        return available
    schema = {name: tuple(column.name for column in columns) for name, columns in COLLECTIONS.items()}
    present, known = (
        {*columns, *(parquet_name(name, column) for name in columns for column in columns[name])}
        for columns in (available, schema)
    )
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"unknown column {name!r}; {did_you_mean(name, sorted(known)) or 'see the schema'}".strip()
            )
        if name not in present:
            raise DatasetError(f"this dataset has no {name!r}; it has {', '.join(available)}")
    chosen = {
        name: tuple(column for column in columns if name in wanted or parquet_name(name, column) in wanted)
        for name, columns in available.items()
    }
    return {name: columns for name, columns in chosen.items() if columns}


def has_truth(dataset: Dataset) -> bool:
    """Whether there is something to compare with."""
    present = {f"{collection}_{column}" for collection, columns in dataset.columns.items() for column in columns}
    return set(TRUTH_COLUMNS) <= present


def read_shard(folder: Path, shard: Shard, columns: Columns) -> Iterator[EventBlock]:
    """The row groups of a shard, one block each."""
    path = folder / shard.file
    names = [EVENT_NUMBER, *(parquet_name(c, column) for c, present in columns.items() for column in present)]
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _verify_shard(path, shard, file, names)
            for group in range(file.num_row_groups):
                yield to_block(file.read_row_group(group, columns=names, use_threads=False), columns)
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise DatasetError(f"{path} is corrupted ({reason}); run `ringflow check`, then make it again") from None


def _verify_shard(path: Path, shard: Shard, file: pq.ParquetFile, names: Sequence[str]) -> None:
    schema = file.schema_arrow  # made anew whenever it is asked for
    version = (schema.metadata or {}).get(VERSION_KEY, b"none").decode()
    if version != str(SCHEMA_VERSION):
        raise DatasetError(f"{path} has schema version {version}, this ringflow reads {SCHEMA_VERSION}; make it again")
    present = set(schema.names)
    if missing := [name for name in names if name not in present]:
        raise DatasetError(f"{path} lacks the column {missing[0]!r} that the manifest names; make the dataset again")
    if file.metadata.num_rows != shard.num_events:
        raise DatasetError(
            f"{path} has {file.metadata.num_rows} events, the manifest says {shard.num_events}; make the dataset again"
        )


def to_block(table: pa.Table, columns: Columns) -> EventBlock:
    """A table with these columns as numpy over the same memory."""
    collections = {}
    for name, present in columns.items():
        lists = {column: _array(table, parquet_name(name, column)) for column in present}
        counts = np.diff(_numbers(next(iter(lists.values())).offsets)).astype(np.int64)
        collections[name] = Collection(counts, {column: _numbers(values.flatten()) for column, values in lists.items()})
    return EventBlock(_numbers(_array(table, EVENT_NUMBER)), collections)


def _array(table: pa.Table, name: str) -> pa.Array:
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _numbers(array: pa.Array) -> npt.NDArray[Any]:
    """An Arrow array without nulls as numpy over the same memory; `to_numpy` would load pandas where it is installed."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.zeros(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def keep_events(block: EventBlock, mask: npt.NDArray[np.bool_]) -> EventBlock:
    """The events of a block under a mask."""
    collections = {}
    for name, part in block.collections.items():
        objects = np.repeat(mask, part.counts)
        kept = {column: values[objects] for column, values in part.columns.items()}
        collections[name] = Collection(part.counts[mask], kept)
    return EventBlock(block.event_number[mask], collections)


def to_awkward(block: EventBlock) -> Any:
    """A block as an awkward array of events: one record per event, one list of records per collection."""
    import awkward as ak

    fields: dict[str, Any] = {EVENT_NUMBER: block.event_number}
    for name, part in block.collections.items():
        fields[name] = ak.unflatten(ak.zip(dict(part.columns), depth_limit=1), part.counts)
    return ak.zip(fields, depth_limit=1)


def _verify_files(folder: Path, manifest: Manifest) -> None:
    for shard in manifest.shards:
        path = folder / shard.file
        if not path.is_file():
            raise DatasetError(f"{path} is missing but in the manifest; put it back or make the dataset again")
        if (size := path.stat().st_size) != shard.bytes:
            raise DatasetError(f"{path} has {size} bytes, the manifest says {shard.bytes}; make the dataset again")
    if strays := {path.name for path in folder.glob("*.parquet")} - {shard.file for shard in manifest.shards}:
        raise DatasetError(f"{folder / min(strays)} is not in the manifest; move it out of the dataset")
