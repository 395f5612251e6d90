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
import io
import json
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ringflow.base.errors import DatasetError, UsageError
from ringflow.base.rundir import sync, temporary_beside, write_errors
from ringflow.base.words import did_you_mean, size_in_words
from ringflow.data.manifest import (
    PACKED_FOLDER,
    Columns,
    Manifest,
    Shard,
    inside,
    manifest_hash,
    read_manifest,
    reason_of,
    schema_columns,
)
from ringflow.data.write import EVENT_NUMBER, VERSION_KEY, arrow_schema, file_hash, to_table
from ringflow.event.block import Collection, EventBlock, concatenate, dangling
from ringflow.event.schema import COLLECTIONS, SCHEMA_VERSION, parquet_name

#: What reading a broken file raises; a ValueError is, for example, a column name that is no text any more.
UNREADABLE = (pa.ArrowException, OSError, ValueError, RecursionError, struct.error)

#: What a row group may unpack into: so many bytes, or so many times the size of its file.
_MODEST, _MOST_PACKED = 1 << 28, 200
#: Of a column in a row group.
_MOST_PAGES = 1 << 16
#: Seconds after a write in which another one may leave the time of a file as it is.
_SETTLED = 2.0
#: Of the sha256 of a cached file, in its name.
_DIGITS = 32

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
        folder = cache or inside(self.path, PACKED_FOLDER)
        key = hashlib.sha256(f"{manifest_hash(self.path)} {json.dumps(wanted)}".encode()).hexdigest()[:16]

        def make(path: Path) -> None:
            names = [parquet_name(name, column) for name, present in wanted.items() for column in present]
            with pa.ipc.new_file(path, arrow_schema(wanted)) as writer:
                for block in self.events(columns=names):
                    writer.write_table(to_table(block, wanted))

        packed = PackedEvents(whole_cache(folder, f"{key}.arrow", make), wanted, len(self))
        return packed if split is None else packed.select(self.manifest.split_rule.select(packed.event_number, split))


def whole_cache(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """A file of a cache, which is made if there is none that is whole: its name tells the hash of what is in it."""
    key, suffix = name.split(".")
    with write_errors(folder):
        for file in folder.glob(f"{key}-*.{suffix}"):
            if is_whole(file):
                return file
            file.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = temporary_beside(folder / name)
        try:
            make(temporary)
            sync(temporary)
            file = temporary.replace(folder / f"{key}-{file_hash(temporary)[:_DIGITS]}.{suffix}")
            sync(folder)
        finally:
            temporary.unlink(missing_ok=True)
    return file


def is_whole(cached: Path) -> bool:
    """Whether a file of a cache is what its name says."""
    said = cached.stem.rpartition("-")[2]
    return cached.is_file() and not cached.is_symlink() and file_hash(cached)[:_DIGITS] == said


def _mapped(file: Path, schema: pa.Schema) -> pa.Table:
    """The table in a file of Arrow's format that has this schema, over the memory of the file itself.

    Its messages are read one after the other: the footer may name other ones, and those may unpack into all memory.
    """
    source = pa.memory_map(str(file))
    source.seek(8)  # behind ARROW1
    first, *others = pa.ipc.MessageReader.open_stream(source)
    if not pa.ipc.read_schema(first).equals(schema):
        raise ValueError("it has other columns")
    if any(message.type != "record batch" or _is_compressed(message.metadata) for message in others):
        raise ValueError("it has other parts than blocks of events, or packed ones")
    return pa.Table.from_batches([pa.ipc.read_record_batch(message, schema) for message in others], schema)


def _is_compressed(message: pa.Buffer) -> bool:
    """Whether a record batch says how it is compressed (Message.header.compression of Arrow's Message.fbs)."""

    def number(at: int, form: str) -> int:
        return int(struct.unpack_from(f"<{form}", message, at)[0])

    def field(table: int, which: int) -> int:
        """Where a field of a table is, counted from the table; 0: it is not there."""
        fields = table - number(table, "i")
        return number(fields + 4 + 2 * which, "H") if 4 + 2 * which < number(fields, "H") else 0

    root = number(0, "I")
    header = root + field(root, 2)
    return field(header + number(header, "I"), 3) != 0


class PackedEvents:
    """Random access to memory-mapped events: `packed[i]["track"]["pt"]` is a slice without a copy.

    The file is in Arrow's format, uncompressed, a batch per block of the shards; processes on one machine share its pages.
    """

    def __init__(self, file: Path, columns: Columns, num_events: int) -> None:
        self.columns = columns
        try:
            self._table = _mapped(file, arrow_schema(columns))
            self._table.validate(full=True)
            if len(self._table) != num_events:
                raise ValueError(f"{len(self._table)} of {num_events}")
            to_block(self._table, columns)
        except UNREADABLE as error:  # its hash is right: somebody made it like that
            raise DatasetError(f"{file} holds no events of this dataset ({reason_of(error)}); remove it") from None
        self._rows: npt.NDArray[np.int64] = np.arange(len(self._table))

    @property
    def event_number(self) -> npt.NDArray[np.int64]:
        """Number of every event, in the order of access."""
        return to_block(self._table, {}).event_number[self._rows]

    def counts(self, collection: str) -> npt.NDArray[np.int64]:
        """Objects per event, in the order of access: what a sampler needs to make batches of even size."""
        return to_block(self._table, {collection: self.columns[collection][:1]})[collection].counts[self._rows]

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


def read_shard(folder: Path, shard: Shard, columns: Columns, *, verify: bool = True) -> Iterator[EventBlock]:
    """The row groups of a shard, one block each.

    Unless `verify` is off, the file is what the manifest says, bit by bit, event numbers rise and indices point to something.
    """
    path = inside(folder, shard.file)
    names = [EVENT_NUMBER, *(parquet_name(c, column) for c, present in columns.items() for column in present)]
    try:
        if verify and not _has_hash(path, shard.sha256):
            raise DatasetError(
                f"{path} is corrupted (its sha256 is not that of the manifest); run `ringflow check`, then make it again"
            )
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _verify_shard(path, shard, file, names)
            last = shard.first_event - 1
            for group in range(file.num_row_groups):
                block = to_block(file.read_row_group(group, columns=names, use_threads=False), columns)
                if verify:
                    last = _verify_block(path, shard, block, last)
                yield block
    except UNREADABLE as error:
        raise DatasetError(
            f"{path} is corrupted ({reason_of(error)}); run `ringflow check`, then make it again"
        ) from None


def _has_hash(path: Path, sha256: str) -> bool:
    """Whether a file has a hash, which is computed once as long as nobody writes to the file."""
    known = path.stat()
    if time.time() - known.st_mtime < _SETTLED:  # another write may not change the time
        return file_hash(path) == sha256
    return _hash_of(path, known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns) == sha256


@lru_cache(maxsize=100_000)
def _hash_of(path: Path, *_: int) -> str:
    return file_hash(path)


def require_modest(path: Path) -> None:
    """An error for a Parquet file that unpacks into more than one would ever write: it would take all memory."""
    size = path.stat().st_size
    if (needed := _largest_group(path)) > max(_MODEST, _MOST_PACKED * size):
        raise ValueError(f"{size_in_words(size)} that unpack into {size_in_words(needed)}")


def _largest_group(path: Path) -> int:
    """Bytes that the row group of a Parquet file unpacks into that takes most, as its footer and the heads of its pages say.

    Read here, by the names and numbers of parquet.thrift: Arrow ends the process when it is asked for a column whose statistics
    are damaged, and has no word on pages, which may hold more than the footer says.
    """
    try:
        with path.open("rb") as file:
            file.seek(-8, os.SEEK_END)
            length = int.from_bytes(file.read(4), "little")
            file.seek(-8 - length, os.SEEK_END)
            groups = _thrift(io.BytesIO(file.read(length)), _STRUCT)[4]  # FileMetaData.row_groups
            # .columns[].meta_data
            return max((sum(_column_bytes(file, column[3]) for column in group[1]) for group in groups), default=0)
    except (IndexError, KeyError, TypeError):
        raise ValueError("its footer or the head of a page is damaged") from None


def _column_bytes(file: BinaryIO, told: dict[int, Any]) -> int:
    """What a column of a row group unpacks into: the sum over its pages, which Arrow reads until it has all values."""
    values, length, data_page, dictionary_page = told[5], told[7], told[9], told.get(11, 0)
    at = dictionary_page if 0 < dictionary_page < data_page else data_page
    end, seen, needed = at + length, 0, 0
    for _ in range(_MOST_PAGES):
        if at >= end or seen >= values:
            return int(max(needed, 8 * values))
        file.seek(at)
        page = _thrift(file, _STRUCT)
        head = page.get(5) or page.get(7) or page.get(8) or {1: 0}  # data_page_header, dictionary_page_header, .._v2
        seen += 0 if 7 in page else head[1]
        needed += max(page[2], 8 * head[1])  # uncompressed_page_size
        if page[3] < 0:
            break
        at = file.tell() + page[3]  # compressed_page_size
    raise ValueError("a column has pages without end")


_LIST, _SET, _STRUCT = 9, 10, 12


def _thrift(text: BinaryIO, kind: int) -> Any:
    """A value in Thrift's compact protocol: structs by number of their fields, lists, whole numbers; of others their bytes."""
    if kind == _STRUCT:
        fields, number = {}, 0
        while header := text.read(1)[0]:
            number = number + (header >> 4) if header >> 4 else _zigzag(text)
            fields[number] = _thrift(text, header & 15) if header & 15 > 2 else header & 15 == 1
        return fields
    if kind in (_LIST, _SET):
        header = text.read(1)[0]
        length = header >> 4 if header >> 4 < 15 else _varint(text)
        return [_thrift(text, header & 15) for _ in range(length)]
    if kind in (4, 5, 6):
        return _zigzag(text)
    if kind not in (1, 2, 3, 7, 8):  # the footer has no maps
        raise ValueError(f"its footer has a value of kind {kind}")
    return text.read(_varint(text) if kind == 8 else 8 if kind == 7 else 1)


def _varint(text: BinaryIO) -> int:
    value, shift = 0, 0
    while shift < 70:
        byte = text.read(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
        shift += 7
    raise ValueError("its footer has a number without end")


def _zigzag(text: BinaryIO) -> int:
    value = _varint(text)
    return (value >> 1) ^ -(value & 1)


def _verify_shard(path: Path, shard: Shard, file: pq.ParquetFile, names: Sequence[str]) -> None:
    schema = file.schema_arrow  # made anew whenever it is asked for
    version = (schema.metadata or {}).get(VERSION_KEY, b"none").decode()
    if version != str(SCHEMA_VERSION):
        raise DatasetError(
            f"{path} has schema version {version[:20]!r}, this ringflow reads {SCHEMA_VERSION}; make it again"
        )
    present = set(schema.names)
    if missing := [name for name in names if name not in present]:
        raise DatasetError(f"{path} lacks the column {missing[0]!r} that the manifest names; make the dataset again")
    if file.metadata.num_rows != shard.num_events:
        raise DatasetError(
            f"{path} has {file.metadata.num_rows} events, the manifest says {shard.num_events}; make the dataset again"
        )
    require_modest(path)


def _verify_block(path: Path, shard: Shard, block: EventBlock, last: int) -> int:
    """The last event of a block, if its events come after the last one before and are those of the shard."""
    numbers = np.concatenate([[last], block.event_number])
    if np.any(numbers[1:] <= numbers[:-1]) or numbers[-1] > shard.last_event:
        raise DatasetError(
            f"{path} has events that do not rise from {shard.first_event} to {shard.last_event}; make the dataset again"
        )
    for name, column, wrong in dangling(block):
        if wrong.any():
            event = np.repeat(block.event_number, block[name].counts)[np.argmax(wrong)]
            raise DatasetError(
                f"{path}: {name}_{column.name} points to no {column.points_to} in event {event}; make the dataset again"
            )
    return int(numbers[-1])


def to_block(table: pa.Table, columns: Columns) -> EventBlock:
    """A table with these columns as numpy over the same memory; a ValueError if it holds anything else than the schema says."""
    collections = {}
    for name, described in schema_columns(columns).items():
        counts: npt.NDArray[np.int64] | None = None
        flat = {}
        for column in described:
            offsets, flat[column.name] = _lists(table, parquet_name(name, column.name), column.dtype)
            if counts is not None and not np.array_equal(np.diff(offsets), counts):
                raise ValueError(f"the columns of {name} have different numbers of objects")
            counts = np.diff(offsets).astype(np.int64)
        assert counts is not None, "a collection has columns"
        collections[name] = Collection(counts, flat)
    return EventBlock(_numbers(_array(table, EVENT_NUMBER), np.dtype(np.int64), EVENT_NUMBER), collections)


def _array(table: pa.Table, name: str) -> pa.Array:
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _lists(table: pa.Table, name: str, dtype: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Where the list of each event begins and ends, counted from the first, and the values of all of them."""
    lists = _array(table, name)
    if not pa.types.is_list(lists.type) or lists.null_count:
        raise ValueError(f"{name} holds {lists.type} and {lists.null_count} missing values, not one list per event")
    offsets = _numbers(lists.offsets, np.dtype(np.int32), name) if len(lists) else np.zeros(1, np.int32)
    values = _numbers(lists.values, np.dtype(dtype), name)
    if offsets[0] < 0 or offsets[-1] > len(values) or np.any(np.diff(offsets) < 0):
        raise ValueError(f"{name} has lists that do not follow each other")
    return offsets, values[offsets[0] : offsets[-1]]


def _numbers(array: pa.Array, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    """An Arrow array as numpy over the same memory; `to_numpy` would load pandas where it is installed."""
    if array.type != pa.from_numpy_dtype(dtype) or array.null_count:
        raise ValueError(f"{name} holds {array.type} and {array.null_count} missing values, not {dtype}")
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
        path = inside(folder, shard.file)
        if not path.is_file():
            raise DatasetError(f"{path} is missing but in the manifest; put it back or make the dataset again")
        if (size := path.stat().st_size) != shard.bytes:
            raise DatasetError(f"{path} has {size} bytes, the manifest says {shard.bytes}; make the dataset again")
    if strays := {path.name for path in folder.glob("*.parquet")} - {shard.file for shard in manifest.shards}:
        raise DatasetError(f"{folder / min(strays)} is not in the manifest; move it out of the dataset")
