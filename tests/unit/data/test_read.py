"""Reading: equal to what was written, by split and by column, and one clear line for everything broken."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fixtures.fake_events import FakeBlocks, fake_block, fake_request, same
from ringflow.base.errors import DatasetError, FailureError, UsageError
from ringflow.data.production import produce
from ringflow.data.read import Dataset
from ringflow.event.block import concatenate


def flip_byte(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def test_the_events_come_back_to_the_last_bit_whole_or_by_split(dataset: Path) -> None:
    opened = Dataset(dataset)
    blocks = list(opened.events())
    assert max(map(len, blocks)) <= 4
    assert same(concatenate(blocks), fake_block(0, 25))
    assert same(concatenate(list(opened.events("test"))), concatenate([fake_block(number, 1) for number in (9, 19)]))
    numbers = [n for split in ("train", "valid", "test") for block in opened.events(split) for n in block.event_number]
    assert sorted(numbers) == list(range(25))


def test_columns_by_collection_and_by_name(dataset: Path) -> None:
    block = next(Dataset(dataset).events(columns=["hit_target", "track_pt", "track_eta"]))
    assert list(block.collections) == ["track", "hit_target"]
    assert list(block["track"].columns) == ["pt", "eta"]
    assert len(block["hit_target"].columns) == 9
    with pytest.raises(UsageError, match="unknown column 'track_ptt'; did you mean 'track_pt'"):
        next(Dataset(dataset).events(columns=["track_ptt"]))
    with pytest.raises(DatasetError, match="has no 'candidate'"):
        next(Dataset(dataset).events(columns=["candidate"]))


def test_awkward(dataset: Path) -> None:
    events = Dataset(dataset).to_awkward("valid", ["track", "hit_energy"])
    assert events.event_number.tolist() == [8, 18]
    assert np.array_equal(events.track.pt[0], fake_block(8, 1)["track"]["pt"])
    assert np.array_equal(events.hit.energy[1], fake_block(18, 1)["hit"]["energy"])


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (Path.unlink, r"shard-00001\.parquet is missing"),
        (
            lambda path: shutil.copy(path, path.with_name("shard-00009.parquet")),
            r"shard-00009\.parquet is not in the man",
        ),
        (_truncate, r"shard-00001\.parquet has \d+ bytes, the manifest says \d+"),
        (lambda path: flip_byte(path, 2000), r"shard-00001\.parquet is corrupted"),
        (lambda path: flip_byte(path, -500), r"shard-00001\.parquet.*make"),
        (lambda path: flip_byte(path, -1), r"shard-00001\.parquet is corrupted"),
    ],
)
def test_a_damaged_shard_is_named_in_one_line(dataset: Path, harm: Callable[[Path], object], said: str) -> None:
    harm(dataset / "shard-00001.parquet")
    with pytest.raises(DatasetError, match=said) as caught:
        list(Dataset(dataset).events())
    assert "\n" not in str(caught.value)


def test_every_flipped_byte_of_the_data_is_noticed(dataset: Path) -> None:
    path = dataset / "shard-00001.parquet"
    content = path.read_bytes()
    expected = list(Dataset(dataset).events())
    for position in range(4, len(content) // 2, 1997):
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


class TestPacked:
    def test_event_i_is_what_was_written(self, dataset: Path) -> None:
        packed = Dataset(dataset).packed()
        assert len(packed) == 25
        for index in (24, 0, 13, -1):
            assert same(packed[index], fake_block(index % 25, 1))

    def test_a_split_counts_its_own_events(self, dataset: Path) -> None:
        packed = Dataset(dataset).packed(["track"], "valid")
        assert packed.event_number.tolist() == [8, 18]
        assert np.array_equal(packed[1]["track"]["pt"], fake_block(18, 1)["track"]["pt"])
        assert packed.counts("track").tolist() == [len(fake_block(n, 1)["track"]) for n in (8, 18)]
        with pytest.raises(IndexError):
            packed[2]

    def test_an_event_is_a_view_of_the_mapped_file(self, dataset: Path) -> None:
        packed = Dataset(dataset).packed(["hit_energy"])
        values = packed[3]["hit"]["energy"]
        assert not values.flags.owndata
        assert not values.flags.writeable
        assert np.shares_memory(values, packed[3]["hit"]["energy"])

    def test_the_columns_are_converted_once_for_all_splits_and_anew_for_other_events(
        self, dataset: Path, tmp_path: Path
    ) -> None:
        Dataset(dataset).packed(["track"], "train")
        (file,) = (dataset / "packed").iterdir()
        before = file.stat().st_mtime_ns
        Dataset(dataset).packed(["track"], "valid")
        assert file.stat().st_mtime_ns == before
        other = tmp_path / "other"
        produce(other, fake_request(25, seed=2), FakeBlocks(4, seed=2), workers=1)
        shutil.copytree(dataset / "packed", other / "packed")
        packed = Dataset(other).packed(["track"])
        assert np.array_equal(packed[7]["track"]["pt"], fake_block(7, 1, seed=2)["track"]["pt"])

    def test_a_failure_leaves_no_cache(self, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_space(handle: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", no_space)
            with pytest.raises(FailureError, match="the disk is full"):
                Dataset(dataset).packed(["track"])
        flip_byte(dataset / "shard-00002.parquet", -10)
        with pytest.raises(DatasetError, match=r"shard-00002\.parquet"):
            Dataset(dataset).packed(["track"])
        assert not list((dataset / "packed").iterdir())

    def test_a_dataset_one_may_not_write_to_takes_a_cache_elsewhere(self, dataset: Path, tmp_path: Path) -> None:
        assert len(Dataset(dataset).packed(["track"], cache=tmp_path / "cache")) == 25
        assert not (dataset / "packed").exists()
