"""Training, loading and processes that train together: what their benchmarks report, not how fast they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.fake_events import contents, write_fake_dataset
from ringflow.bench import training as timing
from ringflow.data import chunks
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.train.device import hardware
from ringflow.train.settings import TrainSettings

CPU = torch.device("cpu")
SIZES = ("--width", 16, "--layers", 1, "--heads", 2, "--hidden", 16, "--seconds", 0.01, "--device", "cpu")
SMALL = ("model.width=16", "model.heads=2", "model.hidden=16", "model.layers=1", "compute.batch_elements=60")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """25 fake events in three shards, 21 of them to be learned from."""
    return write_fake_dataset(tmp_path / "dataset")


@pytest.mark.parametrize("backbone", ["attention", "mlp"])
def test_a_training_is_timed(command: Callable[..., Any], backbone: str):
    done = command("bench", "train", "--backbone", backbone, *SIZES, "--elements", 7, "--batch-elements", 50, "--json")
    assert done.code == 0, done.stderr
    result = json.loads(done.stdout)
    settings = ModelSettings(backbone=backbone, width=16, layers=1, heads=2, hidden=16)
    assert result["settings"]["model"] == settings.model_dump(mode="json")
    assert result["parameters"] == Model(settings).num_parameters
    assert (result["backbone"], result["num_elements"], result["batch_elements"]) == (backbone, 7, 50)
    assert result["device"] == "cpu"
    assert min(result[f"{what}_events_per_second"] for what in ("train", "infer", "load")) > 0
    assert result["padding_share"] == 0  # a CPU computes nothing that is not real
    assert result["peak_mb"] > 10


def test_people_see_no_settings_and_what_fits_exactly_is_timed(command: Callable[..., Any]):
    done = command("bench", "train", *SIZES, "--elements", 20, "--batch-elements", 20)
    assert (done.code, done.stdout) == (0, "")
    assert "train events per second" in done.stderr
    assert "settings" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--backbone", "swarm"), "backbone=swarm: input should be 'attention', 'kernel', 'graph' or 'mlp'"),
        (
            ("train", "--elements", 90, "--batch-elements", 30),
            "an event of 90 elements does not fit into a batch of 30",
        ),
        (("train", "--device", "abacus"), "'abacus' cannot be used here"),
        (("train", "--seconds", 0), "--seconds"),
        (("loader", "nowhere"), "no dataset at"),
        (("loader", "dataset", "--preset", "clic_vast"), "no settings file or preset 'clic_vast'"),
        (("loader", "dataset", "compute.batch_elements=3"), "elements, more than compute.batch_elements=3; try"),
    ],
)
@pytest.mark.usefixtures("dataset")
def test_wrong_usage(
    command: Callable[..., Any],
    words: tuple[object, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    done = command("bench", *words)
    assert done.code != 0
    assert message in done.stderr


def test_the_random_events_are_events():
    chunk = timing.random_chunk(9, 4)
    assert chunk.counts_B.tolist() == [9] * 4
    assert chunk.targets is not None
    particles = chunk.targets.label_N > 0
    assert 0 < particles.sum() < 36
    assert not chunk.targets.momentum_N4[~particles].any()
    assert (chunk.targets.charge_N[particles] == chunk.charge_N[particles]).all()
    px, py, pz, energy = chunk.targets.momentum_N4[particles].unbind(1)
    assert torch.allclose(energy**2, px**2 + py**2 + pz**2, rtol=1e-4)


def test_training_moves_the_weights_and_batches_hold_whole_events():
    settings = TrainSettings.resolve(None, ["model.backbone=mlp", "model.layers=1", "compute.batch_elements=40"])
    chunk = timing.random_chunk(8, 10)
    training = timing.Training(settings, chunk, CPU)
    before = training.model.heads.out.weight.detach().clone()
    assert [training.step() for _ in range(8)] == [5] * 8  # five events of eight elements fill a batch
    assert (training.model.heads.out.weight - before).abs().max() > 1e-6
    assert [training.load(), training.infer()] == [5, 5]


def test_an_accelerator_is_named_whatever_its_kind(monkeypatch: pytest.MonkeyPatch):
    modules = {"xpu": SimpleNamespace(get_device_name=lambda: "a fast one"), "odd": SimpleNamespace()}
    monkeypatch.setattr(torch, "get_device_module", modules.__getitem__)
    assert hardware("xpu")["accelerator"] == "a fast one"
    assert hardware("odd")["accelerator"] == "odd"
    assert "accelerator" not in hardware("cpu")


def test_loading_and_training_are_timed_and_the_dataset_is_not_touched(
    command: Callable[..., Any], dataset: Path, monkeypatch: pytest.MonkeyPatch
):
    done_with: list[str] = []
    make, load = chunks.from_block, chunks.load_file
    monkeypatch.setattr(chunks, "from_block", lambda *block, **how: done_with.append("make") or make(*block, **how))
    monkeypatch.setattr(chunks, "load_file", lambda path: done_with.append("read") or load(path))
    before = contents(dataset)
    done = command("bench", "loader", dataset, *SMALL, "--seconds", 0.02, "--json")
    assert done.code == 0, done.stderr
    assert contents(dataset) == before
    result = json.loads(done.stdout)
    assert (result["sample"], result["detector"], result["preset"]) == ("fake", "fake", "clic_tiny")
    assert (result["train_events"], result["batch_elements"]) == (21, 60)
    assert 5 < result["elements_per_event"] < 15
    for epoch in ("first_epoch", "later_epochs"):
        chunk, batch = result["chunk_events_per_second"][epoch], result["batch_events_per_second"]
        loading, training = result["load_events_per_second"][epoch], result["train_events_per_second"]
        assert loading == pytest.approx(1 / (1 / chunk + 1 / batch), rel=1e-3)
        assert result["load_over_train"][epoch] == pytest.approx(loading / training, rel=1e-2, abs=0.01)
    assert result["batch_events_per_second"] > result["batches_per_second"] > 0
    assert "loading over training: " in done.stderr
    # Later epochs come from what the first one stored.
    last = len(done_with) - done_with[::-1].index("make")
    assert (done_with[:last].count("read"), set(done_with[last:])) == (2, {"read"})


def test_a_dataset_of_one_shard_stays_in_memory(tmp_path: Path):
    result = timing.time_loading(write_fake_dataset(tmp_path / "small", events=9), "clic_tiny", SMALL, 0.001)
    assert result["chunk_events_per_second"]["later_epochs"] is None
    assert result["load_events_per_second"]["later_epochs"] == result["batch_events_per_second"]
    assert result["load_over_train"]["first_epoch"] <= result["load_over_train"]["later_epochs"]
