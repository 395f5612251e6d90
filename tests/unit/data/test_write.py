"""Shards: what is in them, that equal events give equal bytes, and that they appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import awkward as ak
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from fixtures.fake_events import fake_block
from ringflow.base.errors import FailureError
from ringflow.data.manifest import Shard
from ringflow.data.write import ShardWriter, columns_in, columns_of, file_hash
from ringflow.event.schema import COLLECTIONS, SCHEMA_VERSION, SIMULATED, parquet_name


def write(path: Path, *blocks: tuple[int, int]) -> Shard:
    with ShardWriter(path) as writer:
        for first, count in blocks:
            writer.append(fake_block(first, count))
        return writer.finish()


def test_awkward_and_pandas_read_a_shard_and_every_field_says_what_it_is(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", (0, 3), (3, 2))
    events, block = ak.from_parquet(tmp_path / "a.parquet"), fake_block(0, 5)
    assert events.event_number.tolist() == [0, 1, 2, 3, 4]
    for name, part in block.collections.items():
        for column, values in part.columns.items():
            assert ak.num(events[parquet_name(name, column)]).tolist() == part.counts.tolist()
            assert np.array_equal(ak.flatten(events[parquet_name(name, column)]), values)
    frame = pd.read_parquet(tmp_path / "a.parquet", columns=["event_number", "track_pt"])
    assert np.array_equal(frame.track_pt[0], fake_block(0, 1)["track"]["pt"])
    schema = pq.read_schema(tmp_path / "a.parquet")
    assert schema.metadata[b"ringflow_schema_version"] == str(SCHEMA_VERSION).encode()
    for name in SIMULATED:
        for column in COLLECTIONS[name]:
            field = schema.field(parquet_name(name, column.name))
            assert field.metadata[b"unit"] == column.unit.encode()
            assert field.metadata[b"meaning"] == column.meaning.encode()
            assert field.type.value_type == column.dtype.replace("float32", "float")
            assert not field.nullable


def test_what_a_shard_says_of_itself(tmp_path: Path) -> None:
    shard = write(tmp_path / "a.parquet", (8, 3), (11, 2))
    block = fake_block(8, 5)
    assert (shard.first_event, shard.last_event, shard.num_events) == (8, 12, 5)
    assert shard.counts == {name: len(part) for name, part in block.collections.items()}
    assert shard.splits == {"train": 3, "valid": 1, "test": 1}
    assert (shard.bytes, shard.sha256) == ((tmp_path / "a.parquet").stat().st_size, file_hash(tmp_path / "a.parquet"))
    assert columns_in(tmp_path / "a.parquet") == columns_of(block)


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # The kernel answers every write to this device with "no space left".
    (tmp_path / f".a.parquet.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(FailureError, match=r"a\.parquet: the disk is full; free some space"):
        write(tmp_path / "a.parquet", *((first, 200) for first in range(0, 2000, 200)))
    assert list(tmp_path.iterdir()) == []
