"""Packed columns for training: every column one flat `.npy` file, memory-mapped, with the start of every event beside it.

Converted once from the shards into `packed/<hash of the columns>/`, for all splits together, so that three splits share one
cache. Event i is a slice without a copy, in any order; processes on one machine share the pages. A cache made from other
shards (the manifest changed) is made again. The folder can be deleted at any time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import DatasetError
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.data.manifest import PACKED_FOLDER, Columns, manifest_hash, schema_columns
from ringflow.data.write import EVENT_NUMBER
from ringflow.event.schema import parquet_name

if TYPE_CHECKING:
    from ringflow.data.read import Dataset

Array = npt.NDArray[Any]
_SOURCE_FILE = "source.json"


class PackedEvents:
    """Random access to memory-mapped events: `packed[i]["track"]["pt"]` is a slice without a copy."""

    def __init__(self, folder: Path, columns: Columns, rows: npt.NDArray[np.int64] | None, event_number: Array) -> None:
        self._columns = columns
        self._rows = rows
        self._event_number = event_number
        self._offsets = {name: _load(_offsets_file(folder, name)) for name in columns}
        self._values = {
            name: {column: _load(_column_file(folder, name, column)) for column in present}
            for name, present in columns.items()
        }

    @property
    def columns(self) -> Columns:
        """The collections and columns it has."""
        return self._columns

    @property
    def event_number(self) -> npt.NDArray[np.int64]:
        """Number of every event, in the order of access."""
        return self._event_number if self._rows is None else self._event_number[self._rows]

    def counts(self, collection: str) -> npt.NDArray[np.int64]:
        """Objects per event, in the order of access: what a sampler needs to make batches of even size."""
        counts: npt.NDArray[np.int64] = np.diff(self._offsets[collection])
        return counts if self._rows is None else counts[self._rows]

    def __len__(self) -> int:
        return len(self._event_number) if self._rows is None else len(self._rows)

    def __getitem__(self, index: int) -> dict[str, dict[str, Array]]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"event {index} of {len(self)}")
        index %= len(self)
        row = index if self._rows is None else int(self._rows[index])
        event = {}
        for name, columns in self._values.items():
            first, last = self._offsets[name][row], self._offsets[name][row + 1]
            event[name] = {column: values[first:last] for column, values in columns.items()}
        return event


def open_packed(dataset: Dataset, columns: Columns, split: str | None, cache: Path | None) -> PackedEvents:
    """Open the cache of these columns; make it first if it is not there or made from other shards."""
    root = cache or dataset.path / PACKED_FOLDER
    key = hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]
    source = {"manifest": manifest_hash(dataset.path), "columns": {name: list(c) for name, c in columns.items()}}
    folder = root / key
    if not _is_current(folder, source):
        with write_errors(root), _lock(root, key):
            if not _is_current(folder, source):  # another process may have made it meanwhile
                _convert(dataset, columns, source, folder)
    event_number = _load(folder / f"{EVENT_NUMBER}.npy")
    rows = None
    if split is not None:
        rows = np.flatnonzero(dataset.manifest.split_rule.select(event_number, split)).astype(np.int64)
    return PackedEvents(folder, columns, rows, event_number)


def _is_current(folder: Path, source: dict[str, Any]) -> bool:
    try:
        return bool(json.loads((folder / _SOURCE_FILE).read_bytes()) == source)
    except (OSError, ValueError):
        return False


@contextmanager
def _lock(root: Path, key: str) -> Iterator[None]:
    """One process converts at a time; the kernel lets go of the lock when its holder dies."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{key}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert(dataset: Dataset, columns: Columns, source: dict[str, Any], folder: Path) -> None:
    """Stream the shards into a temporary folder and rename it."""
    temporary = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)  # we hold the lock: whoever made it is gone
    temporary.mkdir()
    try:
        _write_columns(dataset, columns, temporary)
        write_atomic(temporary / _SOURCE_FILE, json.dumps(source))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_columns(dataset: Dataset, columns: Columns, folder: Path) -> None:
    totals = dataset.manifest.counts
    numbers: list[Array] = []
    counts: dict[str, list[Array]] = {name: [] for name in columns}
    names = [parquet_name(name, column) for name, present in columns.items() for column in present]
    with ExitStack() as stack:
        files = {
            (name, column.name): stack.enter_context(
                _npy_file(_column_file(folder, name, column.name), column.dtype, totals[name])
            )
            for name, described in schema_columns(columns).items()
            for column in described
        }
        for block in dataset.events(columns=names):
            numbers.append(block.event_number)
            for name, present in columns.items():
                counts[name].append(block[name].counts)
                for column in present:
                    # Plain writes, not a writable map: on a full disk a map ends the process without a word.
                    files[name, column].write(np.ascontiguousarray(block[name][column]).data)
    np.save(folder / f"{EVENT_NUMBER}.npy", np.concatenate(numbers))
    for name, parts in counts.items():
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(parts))]).astype(np.int64)
        if offsets[-1] != totals[name]:
            raise DatasetError(
                f"{dataset.path} has {offsets[-1]} {name} objects, the manifest says {totals[name]}; make it again"
            )
        np.save(_offsets_file(folder, name), offsets)


@contextmanager
def _npy_file(path: Path, dtype: str, length: int) -> Iterator[IO[bytes]]:
    """A `.npy` file of known length, to be filled piece by piece."""
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(file, header)
        yield file
        file.flush()
        os.fsync(file.fileno())


def _column_file(folder: Path, collection: str, column: str) -> Path:
    return folder / f"{parquet_name(collection, column)}.npy"


def _offsets_file(folder: Path, collection: str) -> Path:
    return folder / f"{collection}.offsets.npy"


def _load(path: Path) -> Array:
    values: Array = np.load(path, mmap_mode="r")
    return values
