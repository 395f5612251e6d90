"""The manifest and the card made of it: the split rule, and one clear line for everything that can be wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ringflow.base.errors import DatasetError, UsageError
from ringflow.data.manifest import SplitRule, dataset_card, read_manifest, to_json


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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("[1, 2", "not readable JSON"),
        ({"schema_version": 2}, "has schema version 2, this ringflow reads 1"),
        ({"schema_version": None}, "has schema version None"),
        ({"num_events": "many"}, "damaged at 'num_events'"),
    ],
)
def test_a_damaged_manifest_says_where(dataset: Path, changes: str | dict[str, object], said: str) -> None:
    path = dataset / "manifest.json"
    path.write_text(changes if isinstance(changes, str) else json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(DatasetError, match=said):
        read_manifest(dataset)


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
