"""Datasets: shards, manifest and card; what is read equals what was written, and everything broken is one clear line."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.fake_events import FakeBlocks, fake_block, fake_request, same
from ringflow.base.errors import DatasetError, FailureError, UsageError
from ringflow.data.check import check
from ringflow.data.manifest import (
    SPLITS,
    Shard,
    SplitRule,
    dataset_card,
    make_manifest,
    read_manifest,
    to_json,
    write_manifest,
)
from ringflow.data.production import produce
from ringflow.data.read import Dataset
from ringflow.data.write import ShardWriter, columns_in, columns_of, file_hash
from ringflow.event.block import concatenate
from ringflow.event.schema import COLLECTIONS, SCHEMA_VERSION, SIMULATED, parquet_name


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
    manifest["shards"][2] |= {"bytes": first.stat().st_size, "sha256": file_hash(first)}
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


def write(path: Path, *blocks: tuple[int, int]) -> Shard:
    with ShardWriter(path) as writer:
        for first, count in blocks:
            writer.append(fake_block(first, count))
        return writer.finish()


def test_awkward_and_pandas_read_a_shard_and_every_field_says_what_it_is(tmp_path: Path) -> None:
    write(tmp_path / "shard-00000.parquet", (0, 3), (3, 2))
    events, block = ak.from_parquet(tmp_path / "shard-00000.parquet"), fake_block(0, 5)
    assert events.event_number.tolist() == [0, 1, 2, 3, 4]
    for name, part in block.collections.items():
        for column, values in part.columns.items():
            assert ak.num(events[parquet_name(name, column)]).tolist() == part.counts.tolist()
            assert np.array_equal(ak.flatten(events[parquet_name(name, column)]), values)
    frame = pd.read_parquet(tmp_path / "shard-00000.parquet", columns=["event_number", "track_pt"])
    assert np.array_equal(frame.track_pt[0], fake_block(0, 1)["track"]["pt"])
    schema = pq.read_schema(tmp_path / "shard-00000.parquet")
    assert schema.metadata[b"ringflow_schema_version"] == str(SCHEMA_VERSION).encode()
    for name in SIMULATED:
        for column in COLLECTIONS[name]:
            field = schema.field(parquet_name(name, column.name))
            assert field.metadata[b"unit"] == column.unit.encode()
            assert field.metadata[b"meaning"] == column.meaning.encode()
            assert field.type.value_type == column.dtype.replace("float32", "float")
            assert not field.nullable


def test_what_a_shard_says_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "shard-00000.parquet"
    shard = write(path, (8, 3), (11, 2))
    block = fake_block(8, 5)
    assert (shard.first_event, shard.last_event, shard.num_events) == (8, 12, 5)
    assert shard.counts == {name: len(part) for name, part in block.collections.items()}
    assert shard.splits == {"train": 3, "valid": 1, "test": 1}
    assert (shard.bytes, shard.sha256) == (path.stat().st_size, file_hash(path))
    assert columns_in(path) == columns_of(block)


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # The kernel answers every write to this device with "no space left".
    (tmp_path / f".shard-00000.parquet.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(FailureError, match=r"shard-00000\.parquet: the disk is full; free some space"):
        write(tmp_path / "shard-00000.parquet", *((first, 200) for first in range(0, 2000, 200)))
    assert list(tmp_path.iterdir()) == []


def test_the_split_of_an_event_is_decided_by_its_number() -> None:
    numbers = np.arange(100, 130)
    assert numbers[SplitRule().select(numbers, "valid")].tolist() == [108, 118, 128]
    assert SplitRule().count(numbers) == {"train": 24, "valid": 3, "test": 3}
    with pytest.raises(UsageError, match=r"unknown split 'validation'; choose from train, valid, test"):
        SplitRule().select(numbers, "validation")


def test_the_manifest_reads_back(dataset: Path) -> None:
    manifest = read_manifest(dataset)
    assert to_json(manifest) == (dataset / "manifest.json").read_text()
    assert (manifest.num_events, manifest.splits) == (25, {"train": 21, "valid": 2, "test": 2})
    assert [shard.first_event for shard in manifest.shards] == [0, 10, 20]
    assert manifest.bytes == sum(path.stat().st_size for path in dataset.glob("*.parquet"))


def test_what_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no dataset at .*nowhere"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match=r"not a dataset: it has no manifest\.json"):
        read_manifest(tmp_path)
    (tmp_path / ".production").mkdir()
    with pytest.raises(DatasetError, match="unfinished; run the same command again"):
        read_manifest(tmp_path)


SHARD = {"file": "shard-00000.parquet", "first_event": 0, "last_event": 9, "num_events": 10}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("[1, 2", "not readable JSON"),
        ("[" * 100_000, "not readable JSON"),
        ("[]", "holds no JSON object"),
        ({"schema_version": 2}, "has schema version 2, this ringflow reads 1"),
        ({"schema_version": None}, "has schema version None"),
        ({"schema_version": True}, "damaged at 'schema_version'"),
        ({"num_events": "many"}, "damaged at 'num_events'"),
        ({"num_events": 24}, "num_events is 24, which is not the sum"),
        ({"num_events": 10**30}, "damaged at 'num_events'"),
        ({"splits": {"train": 25, "valid": 0, "test": 0}}, "splits are .*, which is not the sum"),
        ({"split_rule": {"modulus": 0}}, "damaged at 'split_rule.modulus'"),
        ({"split_rule": {"train": [2**70]}}, "damaged at 'split_rule.train.0'"),
        ({"shards": []}, "damaged at 'shards'"),
        ({"columns": {"track": ["pt", "mass"]}}, "'track' has columns that are not those of the schema"),
        ({"columns": {"track": ["eta", "pt"]}}, "'track' has columns that are not those of the schema, in its order"),
        ({"columns": {"track\x1b[2J": []}}, "has columns that are not those of the schema"),
        ({"columns": {}}, "damaged at 'columns'"),
        ({"detector": "clic\x1b[2J"}, "damaged at 'detector' .*cannot be printed"),
        *(
            ({"shards": [{**SHARD, **wrong}]}, f"damaged at 'shards.0.{next(iter(wrong))}")
            for wrong in (
                {"file": "../shard-00000.parquet"},
                {"file": "/etc/shard-00000.parquet"},
                {"file": "notes.parquet"},
                {"sha256": "../../outside"},
                {"sha256": "F" * 64},
                {"num_events": 0},
                {"bytes": -1},
                {"counts": {"track": -1}},
            )
        ),
    ],
)
def test_a_damaged_manifest_says_where(dataset: Path, changes: str | dict[str, object], said: str) -> None:
    path = dataset / "manifest.json"
    content = json.loads(path.read_text())
    if isinstance(changes, dict) and isinstance(shards := changes.get("shards"), list) and shards:
        changes = {"shards": [{**content["shards"][0], **shards[0]}]}
    path.write_text(changes if isinstance(changes, str) else json.dumps({**content, **changes}))
    with pytest.raises(DatasetError, match=said) as caught:
        read_manifest(dataset)
    assert str(caught.value).isprintable()


def test_shards_follow_each_other_and_each_is_there_once(dataset: Path) -> None:
    path = dataset / "manifest.json"
    content = json.loads(path.read_text())
    first, second, third = content["shards"]
    for shards, said in (
        ([second, first, third], "shard-00000.parquet do not come after those of shard-00001"),
        ([first, {**second, "file": first["file"]}, third], "a shard is there twice"),
        ([first, {**second, "last_event": 12}, third], "10 events have no room from 10 to 12"),
        (
            [first, {**second, "counts": {"track": 1}}, third],
            "does not count the collections and splits that there are",
        ),
    ):
        path.write_text(json.dumps({**content, "shards": shards}))
        with pytest.raises(DatasetError, match=said):
            Dataset(dataset)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: (table, "zstd"), "packed ones"),
        (lambda table: (table.drop(["track_pt"]), None), "other columns"),
        (lambda table: (table.slice(1), None), "24 of 25"),
        (lambda table: (table.filter(np.zeros(25, bool)), "lz4"), "0 of 25|packed ones"),
    ],
)
def test_a_cache_that_somebody_else_made_is_refused(
    dataset: Path, change: Callable[[pa.Table], tuple[pa.Table, str | None]], said: str
) -> None:
    Dataset(dataset).packed(["track"])
    (file,) = (dataset / "packed").iterdir()
    table, compression = change(pa.ipc.open_file(file).read_all())
    file.unlink()
    with pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    file.rename(file.with_name(f"{file.stem.partition('-')[0]}-{file_hash(file)[:32]}.arrow"))  # its name is right
    with pytest.raises(DatasetError, match=rf"holds no events of this dataset \(.*{said}.*\); remove it"):
        Dataset(dataset).packed(["track"])


@pytest.mark.parametrize("name", ["manifest.json", "shard-00001.parquet", "packed"])
def test_a_link_out_of_the_dataset_is_not_followed(dataset: Path, tmp_path: Path, name: str) -> None:
    outside, path = tmp_path / "outside", dataset / name
    if name == "packed":
        outside.mkdir()
    else:
        path.rename(outside)
    path.symlink_to(outside)
    with pytest.raises(DatasetError, match=rf"{name} is a link out of its folder; put a copy"):
        Dataset(dataset).packed(["track"])
    assert name != "packed" or list(outside.iterdir()) == []


def test_another_split_rule_is_found(dataset: Path) -> None:
    path = dataset / "manifest.json"
    content = json.loads(path.read_text())
    for name, value, said in (
        ("modulus", 11, r"the splits of shard-0000\d\.parquet are not those of split_rule"),
        ("train", [0, 1, 2, 3, 4, 5, 6], r"the splits of shard-00000\.parquet are not those of split_rule"),
        ("valid", [9], "a remainder belongs to two splits"),
    ):
        path.write_text(json.dumps({**content, "split_rule": {**content["split_rule"], name: value}}))
        with pytest.raises(DatasetError, match=said):
            Dataset(dataset)


@given(modulus=st.integers(1, 30), first=st.integers(0, 100), length=st.integers(1, 100), data=st.data())
def test_splits_are_counted_between_two_events(modulus: int, first: int, length: int, data: st.DataObject) -> None:
    split_of = data.draw(st.lists(st.sampled_from(SPLITS), max_size=35))
    rule = SplitRule(
        modulus=modulus, **{split: tuple(r for r, one in enumerate(split_of) if one == split) for split in SPLITS}
    )
    numbers = np.arange(first, first + length)
    assert rule.count_between(first, first + length - 1) == rule.count(numbers)


def test_a_link_to_itself_is_one_line(dataset: Path) -> None:
    (dataset / "manifest.json").unlink()
    (dataset / "manifest.json").symlink_to("manifest.json")
    with pytest.raises(DatasetError, match=r"manifest\.json is a link out of its folder"):
        Dataset(dataset)


def test_a_dataset_may_be_reached_by_a_link(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(dataset)
    assert len(list(Dataset(tmp_path / "link").packed(["track"]).event_number)) == 25


def lying(folder: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    """A dataset whose manifest has the right hash of a shard in which something else is wrong."""
    shard, block = write(folder / "shard-00000.parquet", (0, 3)), fake_block(0, 3)
    path = folder / shard.file
    table = pq.read_table(path)
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path)
    shard = shard.model_copy(update={"bytes": path.stat().st_size, "sha256": file_hash(path)})
    made = make_manifest(detector="d", sample="s", columns=columns_of(block), shards=[shard], provenance={})
    write_manifest(folder, made)
    return folder


def with_column(name: str, values: Callable[[pa.ChunkedArray], object]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        made = values(table[name].combine_chunks())
        return table.set_column(table.schema.get_field_index(name), name, made)

    return change


def as_lists(change: Callable[[list[Any]], list[Any]]) -> Callable[[pa.Array], pa.Array]:
    return lambda array: pa.array(change(array.to_pylist()), array.type)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_column("track_pt", lambda a: a.cast(pa.list_(pa.float64()))), "track_pt holds double"),
        (with_column("track_pt", lambda a: pa.array([1.0, 2.0, 3.0])), "track_pt holds float|track_pt holds double"),
        (
            with_column("track_pt", lambda a: pa.array([None, *a.to_pylist()[1:]], pa.list_(pa.float32()))),
            "1 missing values",
        ),
        (
            with_column("track_pt", lambda a: pa.array([[None], *a.to_pylist()[1:]], pa.list_(pa.float32()))),
            "1 missing values",
        ),
        (with_column("track_pt", as_lists(lambda v: [[1.0], *v[1:]])), "track have different numbers of objects"),
        (with_column("event_number", lambda a: pa.array([0, 1, 1])), "events that do not rise from 0 to 2"),
        (with_column("event_number", lambda a: pa.array([1, 2, 3])), "events that do not rise from 0 to 2"),
        (with_column("event_number", lambda a: pa.array(["0", "1", "2"])), "event_number holds string"),
        (
            with_column("track_particle", as_lists(lambda v: [[99] * len(v[0]), *v[1:]])),
            "track_particle points to no particle in event 0",
        ),
        (lambda table: table.drop(["track_pt"]), "lacks the column 'track_pt'"),
        (lambda table: table.slice(0, 2), "has 2 events, the manifest says 3"),
    ],
)
def test_a_shard_that_lies_is_one_line(tmp_path: Path, change: Callable[[pa.Table], pa.Table], said: str) -> None:
    folder = lying(tmp_path, change)
    with pytest.raises(DatasetError, match=said) as caught:
        list(Dataset(folder).events())
    assert str(caught.value).isprintable()
    assert not all(row["ok"] for row in check(folder))


@pytest.mark.parametrize("footer", ["honest", "lying"])
def test_a_shard_that_would_take_all_memory_is_refused(tmp_path: Path, footer: str) -> None:
    zeros = pa.array(np.zeros(34_000_000, np.int8))
    many = pa.ListArray.from_arrays(pa.array([0, *[len(zeros)] * 3], pa.int32()), zeros)
    folder = lying(tmp_path, with_column("track_charge", lambda a: many))
    shard = folder / "shard-00000.parquet"
    size = shard.stat().st_size
    assert size < 1e6
    if footer == "lying":  # it says 13 values, which Arrow takes for the least
        content = shard.read_bytes()
        true, told = bytes.fromhex("84b2b620"), bytes.fromhex("9a808000")  # 34,000,002 and 13 in Thrift's form
        assert content.count(true) == 1
        shard.write_bytes(content.replace(true, told))
        manifest = (folder / "manifest.json").read_text()
        sha256 = json.loads(manifest)["shards"][0]["sha256"]
        (folder / "manifest.json").write_text(manifest.replace(sha256, file_hash(shard)))
    with pytest.raises(DatasetError, match=rf"{size / 1000:.1f} kB that unpack into \d+"):
        list(Dataset(folder).events())


def test_the_card_is_made_of_the_manifest_and_its_example_runs(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card, manifest = (dataset / "README.md").read_text(), read_manifest(dataset)
    assert card == dataset_card(manifest)
    assert f"| hit | {manifest.counts['hit']} | {manifest.counts['hit'] / 25:.1f} |" in card
    assert "| train | 0, 1, 2, 3, 4, 5, 6, 7 | 21 |" in card
    assert (
        "| track_particle | list of int32 | 1 | particle that left the track (index into particle, -1: none) |" in card
    )
    monkeypatch.chdir(dataset)
    (example,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    names: dict[str, list[object]] = {}
    exec(example, names)
    assert [len(names[name]) for name in ("events", "frame", "train")] == [10, 10, 21]
