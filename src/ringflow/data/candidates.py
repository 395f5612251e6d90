"""Candidate files: what a reconstruction made of a dataset, one Parquet row per event.

The columns are those of the schema's `candidate` collection, with uncertainties if there are any; the metadata say of which
dataset (by the hash of its manifest), in which detector, by which reconstruction, and where it came from. A file may hold
some of the dataset's events only, for example one split, in the dataset's order.

The metadata also hold a sha256 of all that (record, types, event numbers) and one of what is in each row group, computed over
values: what is read is what was written, whichever bit of the file changed. Files of earlier versions have none.

    write_candidates(path, dataset, blocks, reconstruction="model", provenance={...})
    for block, candidates in zip(dataset.events(), read_candidates(path, dataset)):
        candidates["px"], candidates.counts
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from ringflow.base.errors import DatasetError, InputFileError
from ringflow.base.rundir import atomic_path
from ringflow.data.manifest import Columns, manifest_hash, reason_of
from ringflow.data.read import UNREADABLE, Dataset, keep_events, require_modest, to_block
from ringflow.data.write import EVENT_NUMBER, arrow_schema, to_table
from ringflow.event.block import Collection, EventBlock, cast, concatenate
from ringflow.event.schema import CANDIDATE_ERRORS, COLLECTIONS, parquet_name

_COLLECTION = "candidate"
_COLUMNS = {_COLLECTION: tuple(c.name for c in COLLECTIONS[_COLLECTION] if c not in CANDIDATE_ERRORS)}
_METADATA_KEY, _HASHES_KEY = b"ringflow_candidates", b"ringflow_candidates_sha256"
#: What a record says in words.
_WORDS = ("manifest_sha256", "sample", "detector", "reconstruction")

Numbers = npt.NDArray[np.int64]


def write_candidates(
    path: Path,
    dataset: Dataset,
    blocks: Iterable[EventBlock],
    *,
    reconstruction: str,
    provenance: Mapping[str, Any],
) -> int:
    """Write blocks that have a `candidate` collection, in the order of the dataset's events; the number of events.

    The file appears whole or not at all.
    """
    return write_candidate_file(path, candidate_record(dataset, reconstruction, provenance), blocks)


def candidate_record(dataset: Dataset, reconstruction: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of candidates of a dataset."""
    return {
        "manifest_sha256": manifest_hash(dataset.path),
        "sample": dataset.manifest.sample,
        "detector": dataset.manifest.detector,
        "reconstruction": reconstruction,
        "provenance": dict(provenance),
    }


def write_candidate_file(path: Path, record: Mapping[str, Any], blocks: Iterable[EventBlock]) -> int:
    """The same with the record given: its keys are those of `candidate_record`, the hash empty if there is no dataset."""
    waiting = iter(blocks)
    first = list(islice(waiting, 1))
    columns = _with_errors(first[0][_COLLECTION].columns if first else ())
    schema, told = arrow_schema(columns), json.dumps(dict(record), allow_nan=False)
    schema = schema.with_metadata({**schema.metadata, _METADATA_KEY: told})
    numbers: list[Numbers] = []
    hashes: list[str] = []
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for block in map(_typed, chain(first, waiting)):
            writer.write_table(to_table(block, columns).cast(schema), row_group_size=max(len(block), 1))
            numbers.append(block.event_number)
            hashes.append(_hash_of_block(block))
        events = np.concatenate([*numbers, np.zeros(0, np.int64)])
        hashes.append(_hash_of_head(told.encode(), columns, events, hashes))
        writer.add_key_value_metadata({_HASHES_KEY: " ".join(hashes)})
    return len(events)


def _hash_of_block(block: EventBlock) -> str:
    """The sha256 of the values in a row group."""
    part = block[_COLLECTION]
    return _sha256([block.event_number, part.counts, *part.columns.values()])


def _hash_of_head(record: bytes, columns: Columns, events: Numbers, groups: Sequence[str]) -> str:
    """The sha256 of what a file holds beside the values, and of their hashes."""
    return _sha256([record, json.dumps(columns).encode(), events, " ".join(groups).encode()])


def _sha256(parts: Iterable[bytes | npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _with_errors(present: Container[str]) -> Columns:
    """The columns that every file has, and the uncertainties that are there."""
    errors = tuple(column.name for column in CANDIDATE_ERRORS if column.name in present)
    return {_COLLECTION: (*_COLUMNS[_COLLECTION], *errors)}


def _typed(block: EventBlock) -> EventBlock:
    part = block[_COLLECTION]
    return EventBlock(block.event_number, {_COLLECTION: cast(_COLLECTION, part.counts, part.columns)})


def read_candidates(path: Path, dataset: Dataset, split: str | None = None) -> Iterator[Collection]:
    """The candidates of the dataset's blocks, as `dataset.events(split)` cuts them."""
    file = CandidateFile(path)
    file.require(dataset)
    for block in dataset.events(split, columns=[]):
        yield file.select(block.event_number)


class CandidateFile:
    """An open candidate file: whose candidates they are, and those of any events in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise InputFileError(f"no candidate file at {path}; give the file that a reconstruction wrote")
        with self._reading():
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            require_modest(path)
            schema = self._file.schema_arrow
            # Beside the schema's: what was added when all was written.
            metadata = {**(schema.metadata or {}), **(self._file.metadata.metadata or {})}
            told = metadata.get(_METADATA_KEY)
            if told is None or not set(arrow_schema(_COLUMNS).names) <= set(schema.names):
                raise InputFileError(f"{path} is not a candidate file; give the file that a reconstruction wrote")
            self.columns = _with_errors([name.removeprefix(parquet_name(_COLLECTION, "")) for name in schema.names])
            self._numbers: Numbers = to_block(self._file.read([EVENT_NUMBER], use_threads=False), {}).event_number
            self._groups = self._file.metadata.num_row_groups
            #: Of every row group; none in files of earlier versions.
            self._hashes: list[str] = []
            if hashes := metadata.get(_HASHES_KEY):
                *self._hashes, head = hashes.decode().split(" ")
                found = _hash_of_head(told, self.columns, self._numbers, self._hashes)
                if found != head or len(self._hashes) != self._groups:
                    raise ValueError("its sha256 differs")
            self.record = _read_record(told)
            if np.any(self._numbers[1:] <= self._numbers[:-1]):
                raise ValueError("its events do not rise")
        self._starts = np.cumsum([0, *(self._file.metadata.row_group(g).num_rows for g in range(self._groups))])
        self._kept: tuple[range, EventBlock] | None = None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except UNREADABLE as error:
            raise InputFileError(
                f"{self.path} cannot be read as a candidate file ({reason_of(error)}); make it again"
            ) from None

    @property
    def reconstruction(self) -> str:
        """Name of the reconstruction that made the candidates."""
        return str(self.record["reconstruction"])

    def is_of(self, dataset: Dataset) -> bool:
        """Whether the candidates were made of exactly this dataset."""
        return bool(self.record["manifest_sha256"] == manifest_hash(dataset.path))

    def require(self, dataset: Dataset) -> None:
        """Refuse the candidates of another dataset."""
        if not self.is_of(dataset):
            raise DatasetError(
                f"{self.path} was made of another dataset ({self.record['sample']}, {self.record['detector']}, manifest "
                f"{self.record['manifest_sha256'][:12]}) than {dataset.path} ({manifest_hash(dataset.path)[:12]}); "
                "make the candidates of this dataset"
            )

    def select(self, event_number: Numbers) -> Collection:
        """The candidates of the given events, which rise."""
        found = np.isin(event_number, self._numbers)
        if not found.all():
            missing = event_number[np.argmin(found)]
            raise DatasetError(f"{self.path} has no candidates for event {missing}; make them again, or give --split")
        rows = np.searchsorted(self._numbers, event_number)
        if not len(rows):
            return cast(_COLLECTION, np.zeros(0, np.int64), {name: np.zeros(0) for name in self.columns[_COLLECTION]})
        first, last = np.searchsorted(self._starts, rows[[0, -1]], side="right") - 1
        block = self._read(range(first, last + 1))
        return keep_events(block, np.isin(np.arange(len(block)), rows - self._starts[first]))[_COLLECTION]

    def __len__(self) -> int:
        return len(self._numbers)

    def blocks(self) -> Iterator[EventBlock]:
        """All events, in the blocks they were written in."""
        for group in range(self._groups):
            yield self._read(range(group, group + 1))

    def _read(self, groups: range) -> EventBlock:
        """Some row groups; the last ones are kept, for blocks smaller than a row group."""
        if self._kept is None or self._kept[0] != groups:
            with self._reading():
                blocks = [
                    to_block(self._file.read_row_group(group, use_threads=False), self.columns) for group in groups
                ]
                if (
                    self._hashes
                    and [_hash_of_block(block) for block in blocks] != self._hashes[groups.start : groups.stop]
                ):
                    raise ValueError("its sha256 differs")
                self._kept = groups, concatenate(blocks)
        return self._kept[1]


def _read_record(told: bytes) -> dict[str, Any]:
    """What a file says of its origin."""
    record = json.loads(told)
    if not isinstance(record, dict) or not isinstance(record.get("provenance"), dict):
        raise ValueError("it does not say where it came from")
    if wrong := [name for name in _WORDS if not isinstance(record.get(name), str) or not record[name].isprintable()]:
        raise ValueError(f"its {wrong[0]} is {record.get(wrong[0])!r:.40}")
    return record
