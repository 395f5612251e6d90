"""The benchmark of loading: what it reports, and that it leaves the dataset alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.fake_events import contents, write_fake_dataset
from ringflow.base.errors import DatasetError, SettingsError
from ringflow.bench import loader as timing
from ringflow.data import chunks

SMALL = ("model.width=16", "model.heads=2", "model.hidden=16", "model.layers=1", "compute.batch_elements=60")
EPOCHS = ("first_epoch", "later_epochs")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """25 fake events in three shards, 21 of them to be learned from."""
    return write_fake_dataset(tmp_path / "dataset")


def test_loading_and_training_are_timed_and_the_dataset_is_not_touched(command: Callable[..., Any], dataset: Path):
    before = contents(dataset)
    done = command("bench", "loader", dataset, *SMALL, "--seconds", 0.02, "--json")
    assert done.code == 0, done.stderr
    assert contents(dataset) == before
    result = json.loads(done.stdout)
    assert (result["sample"], result["detector"], result["preset"]) == ("fake", "fake", "clic_tiny")
    assert (result["train_events"], result["batch_elements"]) == (21, 60)
    assert 5 < result["elements_per_event"] < 15
    for epoch in EPOCHS:
        chunk, batch = result["chunk_events_per_second"][epoch], result["batch_events_per_second"]
        loading, training = result["load_events_per_second"][epoch], result["train_events_per_second"]
        assert loading == pytest.approx(1 / (1 / chunk + 1 / batch), rel=1e-3)
        assert result["load_over_train"][epoch] == pytest.approx(loading / training, rel=1e-2, abs=0.01)
    assert result["batch_events_per_second"] > result["batches_per_second"] > 0
    assert "loading over training: " in done.stderr


def test_later_epochs_come_from_what_the_first_one_stored(dataset: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    plain = chunks._read

    def counted(part: Any, calorimeter: str) -> Any:
        read.append(part.shard.file)
        return plain(part, calorimeter)

    given: list[bool] = []
    keep = chunks.stored

    def watched(path: Path, make: Callable[[], Any]) -> Any:
        given.append(path.exists())
        return keep(path, make)

    monkeypatch.setattr(chunks, "_read", counted)
    monkeypatch.setattr(chunks, "stored", watched)
    timing.run(dataset, "clic_tiny", SMALL, 0.001)
    assert sorted(read) == ["shard-00000.parquet", "shard-00001.parquet", "shard-00002.parquet"]
    assert given[:3] == [False] * 3
    assert len(given) >= 6
    assert all(given[3:])


def test_a_dataset_of_one_shard_stays_in_memory(tmp_path: Path):
    path = write_fake_dataset(tmp_path / "small", events=9)
    result = timing.run(path, "clic_tiny", SMALL, 0.001)
    assert result["chunk_events_per_second"]["later_epochs"] is None
    assert result["load_events_per_second"]["later_epochs"] == result["batch_events_per_second"]
    assert result["load_over_train"]["first_epoch"] <= result["load_over_train"]["later_epochs"]


def test_wrong_usage_is_one_line(command: Callable[..., Any], dataset: Path):
    with pytest.raises(SettingsError, match="no settings file or preset 'clic_vast'"):
        timing.run(dataset, "clic_vast", (), 1.0)
    with pytest.raises(DatasetError, match="no dataset at"):
        timing.run(dataset / "nowhere", "clic_tiny", (), 1.0)
    done = command("bench", "loader", dataset, "compute.batch_elements=3", "--seconds", 0.01)
    assert done.code == 2
    assert "elements, more than compute.batch_elements=3; try" in done.stderr
