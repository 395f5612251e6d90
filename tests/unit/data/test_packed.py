"""Packed columns: equal to the shards, zero-copy, converted once, made again when the dataset changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fixtures.fake_events import FakeBlocks, fake_block, fake_request, write_fake_dataset
from ringflow.base.errors import DatasetError, FailureError
from ringflow.data.production import produce
from ringflow.data.read import Dataset


def test_event_i_is_what_was_written(dataset: Path) -> None:
    packed = Dataset(dataset).packed()
    assert len(packed) == 25
    for index in (24, 0, 13, -1):
        event = fake_block(index % 25, 1)
        for name, part in event.collections.items():
            for column, values in part.columns.items():
                assert np.array_equal(packed[index][name][column], values)


def test_a_split_counts_its_own_events(dataset: Path) -> None:
    packed = Dataset(dataset).packed(["track"], "valid")
    assert packed.event_number.tolist() == [8, 18]
    assert np.array_equal(packed[1]["track"]["pt"], fake_block(18, 1)["track"]["pt"])
    assert packed.counts("track").tolist() == [len(fake_block(n, 1)["track"]) for n in (8, 18)]
    with pytest.raises(IndexError):
        packed[2]


def test_an_event_is_a_view_of_the_mapped_file(dataset: Path) -> None:
    values = Dataset(dataset).packed(["hit_energy"])[3]["hit"]["energy"]
    assert isinstance(values, np.memmap)
    assert not values.flags.owndata
    assert not values.flags.writeable


def test_the_columns_are_converted_once_for_all_splits(dataset: Path) -> None:
    Dataset(dataset).packed(["track"], "train")
    (folder,) = (path for path in (dataset / "packed").iterdir() if path.is_dir())
    before = (folder / "track_pt.npy").stat().st_mtime_ns
    Dataset(dataset).packed(["track"], "valid")
    assert (folder / "track_pt.npy").stat().st_mtime_ns == before
    Dataset(dataset).packed(["cluster"])
    assert len([path for path in (dataset / "packed").iterdir() if path.is_dir()]) == 2


def test_a_cache_of_other_events_is_made_again(dataset: Path, tmp_path: Path) -> None:
    Dataset(dataset).packed(["track"])
    request = fake_request(25, seed=2)
    other = tmp_path / "other"
    produce(other, request, FakeBlocks(4, seed=2), workers=1)
    shutil.copytree(dataset / "packed", other / "packed")
    packed = Dataset(other).packed(["track"])
    assert np.array_equal(packed[7]["track"]["pt"], fake_block(7, 1, seed=2)["track"]["pt"])


def test_a_half_made_cache_is_made_again(dataset: Path) -> None:
    Dataset(dataset).packed(["track"])
    (folder,) = (path for path in (dataset / "packed").iterdir() if path.is_dir())
    folder.rename(folder.with_name(f"{folder.name}.part"))
    (folder.with_name(f"{folder.name}.part") / "track_pt.npy").write_bytes(b"half")
    assert len(Dataset(dataset).packed(["track"])) == 25
    assert sorted(path.suffix for path in (dataset / "packed").iterdir()) == ["", ".lock"]


def test_a_collection_that_is_empty_everywhere(tmp_path: Path) -> None:
    import awkward as ak

    from ringflow.data.outside import write_dataset

    dataset = write_dataset(tmp_path / "d", detector="d", tracks={"pt": ak.Array([[], []]) * 1.0})
    assert dataset.packed()[1]["track"]["pt"].shape == (0,)


def test_a_full_disk_leaves_no_cache(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(FailureError, match="the disk is full"):
        Dataset(dataset).packed(["track"])
    assert [path.suffix for path in (dataset / "packed").iterdir()] == [".lock"]


def test_a_corrupted_shard_leaves_no_cache(tmp_path: Path) -> None:
    dataset = write_fake_dataset(tmp_path / "dataset")
    path = dataset / "shard-00002.parquet"
    content = bytearray(path.read_bytes())
    content[-10] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"shard-00002\.parquet"):
        Dataset(dataset).packed(["track"])
    assert [path.suffix for path in (dataset / "packed").iterdir()] == [".lock"]


def test_a_dataset_one_may_not_write_to_takes_a_cache_elsewhere(dataset: Path, tmp_path: Path) -> None:
    packed = Dataset(dataset).packed(["track"], cache=tmp_path / "cache")
    assert len(packed) == 25
    assert not (dataset / "packed").exists()
