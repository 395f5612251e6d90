"""Reading: equal to what was written, by split and by column, and one clear line for everything broken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fixtures.fake_events import fake_block, same
from ringflow.base.errors import DatasetError, UsageError
from ringflow.data.read import Dataset, _numbers
from ringflow.event.block import concatenate


def flip_byte(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def test_the_events_come_back_to_the_last_bit(dataset: Path) -> None:
    blocks = list(Dataset(dataset).events())
    assert max(map(len, blocks)) <= 4
    assert same(concatenate(blocks), fake_block(0, 25))


@pytest.mark.parametrize(("split", "numbers"), [("valid", [8, 18]), ("test", [9, 19])])
def test_a_split(dataset: Path, split: str, numbers: list[int]) -> None:
    blocks = list(Dataset(dataset).events(split))
    assert same(concatenate(blocks), concatenate([fake_block(number, 1) for number in numbers]))


def test_the_splits_together_are_all_events(dataset: Path) -> None:
    numbers = [
        n for split in ("train", "valid", "test") for b in Dataset(dataset).events(split) for n in b.event_number
    ]
    assert sorted(numbers) == list(range(25))


def test_columns_by_collection_and_by_name(dataset: Path) -> None:
    block = next(Dataset(dataset).events(columns=["hit_target", "track_pt", "track_eta"]))
    assert list(block.collections) == ["track", "hit_target"]
    assert list(block["track"].columns) == ["pt", "eta"]
    assert len(block["hit_target"].columns) == 9


def test_an_unknown_column_names_a_close_one(dataset: Path) -> None:
    with pytest.raises(UsageError, match="unknown column 'track_ptt'; did you mean 'track_pt'"):
        next(Dataset(dataset).events(columns=["track_ptt"]))


def test_a_column_this_dataset_lacks(dataset: Path) -> None:
    with pytest.raises(DatasetError, match="has no 'candidate'"):
        next(Dataset(dataset).events(columns=["candidate"]))


def test_awkward(dataset: Path) -> None:
    events = Dataset(dataset).to_awkward("valid", ["track", "hit_energy"])
    assert events.event_number.tolist() == [8, 18]
    assert np.array_equal(events.track.pt[0], fake_block(8, 1)["track"]["pt"])
    assert np.array_equal(events.hit.energy[1], fake_block(18, 1)["hit"]["energy"])


def test_numbers_of_a_slice_of_an_array() -> None:
    assert _numbers(pa.array([1, 2, 3, 4], pa.int32()).slice(1, 2)).tolist() == [2, 3]
    assert _numbers(pa.array([], pa.float32())).dtype == np.float32


def test_a_missing_shard(dataset: Path) -> None:
    (dataset / "shard-00001.parquet").unlink()
    with pytest.raises(DatasetError, match=r"shard-00001\.parquet is missing"):
        Dataset(dataset)


def test_a_shard_that_is_not_in_the_manifest(dataset: Path) -> None:
    (dataset / "shard-00009.parquet").write_bytes((dataset / "shard-00000.parquet").read_bytes())
    with pytest.raises(DatasetError, match=r"shard-00009\.parquet is not in the manifest"):
        Dataset(dataset)


def test_a_truncated_shard(dataset: Path) -> None:
    path = dataset / "shard-00001.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DatasetError, match=r"shard-00001\.parquet has \d+ bytes, the manifest says \d+"):
        Dataset(dataset)


@pytest.mark.parametrize("where", ["data", "footer", "magic"])
def test_a_corrupted_shard_of_the_right_size(dataset: Path, where: str) -> None:
    path = dataset / "shard-00001.parquet"
    flip_byte(path, {"data": 2000, "footer": -500, "magic": -1}[where])
    with pytest.raises(DatasetError, match=r"shard-00001\.parquet.*make") as caught:
        list(Dataset(dataset).events())
    assert "\n" not in str(caught.value)


def test_every_flipped_byte_of_the_data_is_noticed(dataset: Path) -> None:
    path = dataset / "shard-00001.parquet"
    content = path.read_bytes()
    expected = list(Dataset(dataset).events())
    for position in range(4, len(content) // 2, 997):
        flip_byte(path, position)
        try:
            blocks = list(Dataset(dataset).events())
        except DatasetError:
            pass
        else:  # a byte that carries nothing, such as an unused field of a page header
            assert same(concatenate(blocks), concatenate(expected))
        path.write_bytes(content)


def test_a_shard_with_other_events_than_the_manifest_says(dataset: Path) -> None:
    first, last = dataset / "shard-00000.parquet", dataset / "shard-00002.parquet"
    last.write_bytes(first.read_bytes())
    manifest = json.loads((dataset / "manifest.json").read_text())
    manifest["shards"][2]["bytes"] = first.stat().st_size
    (dataset / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DatasetError, match="has 10 events, the manifest says 5"):
        list(Dataset(dataset).events())
