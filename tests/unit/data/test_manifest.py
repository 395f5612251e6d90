"""The manifest: the split rule, and one clear line for everything that can be wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringflow.base.errors import DatasetError, UsageError
from ringflow.data.manifest import SplitRule, read_manifest, to_json


def edit(dataset: Path, **changes: Any) -> None:
    path = dataset / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_split_of_an_event_is_decided_by_its_number() -> None:
    numbers = np.arange(100, 130)
    rule = SplitRule()
    assert numbers[rule.select(numbers, "valid")].tolist() == [108, 118, 128]
    assert numbers[rule.select(numbers, "test")].tolist() == [109, 119, 129]
    assert rule.count(numbers) == {"train": 24, "valid": 3, "test": 3}


def test_an_unknown_split_names_the_others() -> None:
    with pytest.raises(UsageError, match=r"unknown split 'validation'; choose from train, valid, test"):
        SplitRule().select(np.arange(3), "validation")


def test_the_manifest_reads_back(dataset: Path) -> None:
    manifest = read_manifest(dataset)
    assert to_json(manifest) == (dataset / "manifest.json").read_text()
    assert manifest.num_events == 25
    assert [shard.first_event for shard in manifest.shards] == [0, 10, 20]
    assert manifest.splits == {"train": 21, "valid": 2, "test": 2}
    assert manifest.bytes == sum(path.stat().st_size for path in dataset.glob("*.parquet"))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no dataset at .*nowhere"):
        read_manifest(tmp_path / "nowhere")


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"not a dataset: it has no manifest\.json"):
        read_manifest(tmp_path)


def test_an_unfinished_production(tmp_path: Path) -> None:
    (tmp_path / ".production").mkdir()
    with pytest.raises(DatasetError, match="unfinished; run the same command again"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1, 2", "\x00\x01"])
def test_a_manifest_that_is_no_json(dataset: Path, text: str) -> None:
    (dataset / "manifest.json").write_text(text)
    with pytest.raises(DatasetError, match="not readable JSON"):
        read_manifest(dataset)


@pytest.mark.parametrize("version", [0, 2, None])
def test_another_schema_version(dataset: Path, version: int | None) -> None:
    edit(dataset, schema_version=version)
    with pytest.raises(DatasetError, match=f"has schema version {version}, this ringflow reads 1"):
        read_manifest(dataset)


def test_a_damaged_field_is_named(dataset: Path) -> None:
    edit(dataset, num_events="many")
    with pytest.raises(DatasetError, match="damaged at 'num_events'"):
        read_manifest(dataset)
