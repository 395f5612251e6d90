"""Check a dataset: about fifty gates, streamed shard by shard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from ringflow.base.errors import DatasetError
from ringflow.base.log import progress
from ringflow.data.gates import Gate, Row
from ringflow.data.manifest import KNOWN_FILES, MANIFEST_FILE, SPLITS, Columns, Manifest, Shard, read_manifest
from ringflow.data.object_gates import object_gates
from ringflow.data.read import UNREADABLE, read_shard
from ringflow.data.truth_gates import accounting_gates, link_gates, target_gates
from ringflow.data.write import arrow_schema, file_hash
from ringflow.event.block import EventBlock
from ringflow.event.schema import SCHEMA_VERSION, parquet_name


def check(path: Path) -> list[Row]:
    """Rows `{gate, ok, observed, expected}`; a folder that is no dataset at all is an error."""
    try:
        manifest = read_manifest(path)
    except DatasetError as error:
        if not (path / MANIFEST_FILE).is_file():
            raise
        return [_row("manifest readable", False, str(error), "a manifest of this schema version")]
    shards = _Shards(path, manifest)
    events = _Numbers(manifest)
    gates = [*object_gates(manifest), *link_gates(), *accounting_gates(), *target_gates()]
    present = [gate for gate in gates if _has(manifest.columns, gate.needs)]
    with progress(manifest.num_events, f"checking {manifest.sample}") as advance:
        for block in shards.blocks():
            events.feed(block)
            for gate in present:
                gate.feed(block)
            advance(len(block))
    return [
        _row("manifest readable", True, MANIFEST_FILE, MANIFEST_FILE),
        _row("schema version", True, manifest.schema_version, SCHEMA_VERSION),
        *shards.rows(),
        *events.rows(),
        *(gate.row() if gate in present else _absent(gate) for gate in gates),
    ]


def _row(gate: str, ok: bool, observed: object, expected: object) -> Row:
    return {"gate": gate, "ok": bool(ok), "observed": observed, "expected": expected}


def _absent(gate: Gate) -> Row:
    return _row(gate.name, True, "absent", f"skipped without {', '.join(gate.needs)}")


def _has(columns: Columns, needs: tuple[str, ...]) -> bool:
    names = {parquet_name(collection, column) for collection, present in columns.items() for column in present}
    return all(name in names or name in columns for name in needs)


class _Shards:
    """What can be wrong with files: missing, changed, unreadable, of other columns, or not ours."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path, self._manifest = path, manifest
        self._missing: list[str] = []
        self._changed: list[str] = []
        self._unreadable: list[str] = []
        self._other_columns: list[str] = []

    def blocks(self) -> Iterator[EventBlock]:
        """The blocks of all shards that can be read."""
        for shard in self._manifest.shards:
            try:
                if self._examine(shard):
                    yield from read_shard(self._path, shard, self._manifest.columns)
            except DatasetError as error:
                self._unreadable.append(str(error))

    def _examine(self, shard: Shard) -> bool:
        path = self._path / shard.file
        if not path.is_file():
            self._missing.append(shard.file)
            return False
        if path.stat().st_size != shard.bytes or file_hash(path) != shard.sha256:
            self._changed.append(shard.file)
        try:
            schema = pq.read_schema(path)
        except UNREADABLE as error:
            raise DatasetError(f"{shard.file}: {' '.join(str(error).split())[:100]}") from None
        if not schema.equals(arrow_schema(self._manifest.columns), check_metadata=True):
            self._other_columns.append(shard.file)
        return True

    def rows(self) -> Iterator[Row]:
        """The verdicts."""
        known = KNOWN_FILES | {shard.file for shard in self._manifest.shards}
        strays = sorted(path.name for path in self._path.iterdir() if path.name not in known)
        for name, found in (
            ("missing shards", self._missing),
            ("shards with another hash than the manifest's", self._changed),
            ("shards that cannot be read", self._unreadable),
            ("shards with other columns, types or units", self._other_columns),
            ("files that do not belong here", strays),
        ):
            yield _row(name, not found, _first_of(found), 0)


def _first_of(found: list[str]) -> object:
    return f"{len(found)}, first: {found[0]}" if found else 0


class _Numbers:
    """What can be wrong with event numbers, counts and splits."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._numbers: list[npt.NDArray[np.int64]] = []
        self._counts = dict.fromkeys(manifest.columns, 0)

    def feed(self, block: EventBlock) -> None:
        """Remember the numbers of a block and count its objects."""
        self._numbers.append(block.event_number)
        for name in self._counts:
            self._counts[name] += len(block[name])

    def rows(self) -> Iterator[Row]:
        """The verdicts."""
        manifest = self._manifest
        numbers = np.concatenate(self._numbers) if self._numbers else np.zeros(0, dtype=np.int64)
        yield _row("events", len(numbers) == manifest.num_events, len(numbers), manifest.num_events)
        falling = int(np.count_nonzero(np.diff(numbers) <= 0))
        yield _row("event numbers that do not rise or are repeated", falling == 0, falling, 0)
        gaps = _gaps([(int(n[0]), int(n[-1]), len(n)) for n in self._numbers])
        expected = _gaps([(shard.first_event, shard.last_event, shard.num_events) for shard in manifest.shards])
        yield _row("gaps in the event numbers", gaps == expected, gaps, expected)
        yield _row(
            "objects per collection", self._counts == manifest.counts, _line(self._counts), _line(manifest.counts)
        )
        memberships = sum(manifest.split_rule.select(numbers, split).astype(int) for split in SPLITS)
        wrong = int(np.count_nonzero(memberships != 1))
        yield _row("events not in exactly one split", wrong == 0, wrong, 0)
        splits = manifest.split_rule.count(numbers)
        yield _row("events per split", splits == manifest.splits, _line(splits), _line(manifest.splits))


def _gaps(ranges: list[tuple[int, int, int]]) -> int:
    """Numbers left out between the first and the last event."""
    if not ranges:
        return 0
    return ranges[-1][1] - ranges[0][0] + 1 - sum(count for _, _, count in ranges)


def _line(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
