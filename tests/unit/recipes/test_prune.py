"""Pruning makes a run of a smaller network, says what it costs, and goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures.detectors import write_events
from fixtures.fake_events import write_fake_dataset
from fixtures.networks import random_network
from ringflow.models.file import load_model, save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.recipes.prune import PRUNED_FILE, tuning_settings
from ringflow.sim.geometry import load_detector
from ringflow.sim.tracker import frame_of
from ringflow.train.settings import TrainSettings
from ringflow.train.trainer import Trainer

Command = Callable[..., Any]
SHORT = ("length.events=60", "length.validation_events=4", "compute.batch_elements=100", "compute.device=cpu")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_fake_dataset(tmp_path / "dataset", events=40)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    network = Model(ModelSettings(width=16, layers=1, heads=2, hidden=32))
    path = tmp_path / "large.safetensors"
    trained = TrainSettings.resolve(None, ["optimizer.rate=0.01", "loss.jet=0.25", "seed=5"])
    card = {"detector": "fake", "settings": trained.model_dump(mode="json")}
    save_model(path, network, threshold=0.4, card=card)
    return path


def arguments(model: Path, dataset: Path, out: Path) -> list[Any]:
    return ["prune", model, f"data={dataset}", *SHORT, "--out", out, "--heads", 1, "--share", 0.75, "--json"]


def test_a_smaller_network_and_its_cost(model: Path, dataset: Path, tmp_path: Path, command: Command):
    done = command(*arguments(model, dataset, tmp_path / "run"), "--check", dataset, "--events", 20)
    assert done.code == 0, done.stderr
    result = json.loads(done.stdout)
    rows = {row["network"]: row for row in result["cost"]}
    assert list(rows) == ["before", "pruned", "tuned"]
    assert rows["tuned"]["parameters"] == rows["pruned"]["parameters"] < rows["before"]["parameters"]
    assert rows["pruned"]["bytes"] < rows["before"]["bytes"]
    assert all(
        row["events"] == 20 and row["events_per_second"] > 0 and row["particle_f1"] >= 0 for row in rows.values()
    )
    pruned, tuned = (load_model(tmp_path / "run" / name) for name in (PRUNED_FILE, "model.safetensors"))
    assert (tuned.model.settings.heads, tuned.model.settings.hidden) == (1, 8)
    assert pruned.threshold == 0.4
    assert not torch.equal(tuned.model.norm.weight, pruned.model.norm.weight)
    # The scaling is that of the network that was trained, not fitted anew.
    assert torch.equal(tuned.model.embedding.mean_F, load_model(model).model.embedding.mean_F)


def test_people_get_a_table(model: Path, dataset: Path, tmp_path: Path, command: Command):
    asked = [part for part in arguments(model, dataset, tmp_path / "run") if part != "--json"]
    done = command(*asked, "--check", dataset, "--events", 20)
    assert done.code == 0, done.stderr
    lines = done.stderr[done.stderr.index("What pruning gives and takes") :].splitlines()
    assert " ".join(lines[1].split()) == "network parameters size events per second events jet median jet width F1"
    assert [line.split()[0] for line in lines[2:5]] == ["before", "pruned", "tuned"]
    assert all(" kB " in line for line in lines[2:5])
    assert "passed" not in done.stderr  # a comparison has no verdict


def test_the_training_afterwards_is_gentler(model: Path):
    settings = tuning_settings(model, ["length.events=70"])
    assert settings.optimizer.rate == pytest.approx(0.003)
    assert (settings.loss.jet, settings.length.events, settings.detector) == (0.25, 70, "fake")


def test_an_interrupted_one_goes_on(
    model: Path, dataset: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "fit", interrupt)
        assert command(*arguments(model, dataset, tmp_path / "run")).code == 130
    before = (tmp_path / "run" / PRUNED_FILE).read_bytes()
    assert command(*arguments(model, dataset, tmp_path / "run")).code == 0
    assert (tmp_path / "run" / PRUNED_FILE).read_bytes() == before
    done = command(*(0.5 if part == 0.75 else part for part in arguments(model, dataset, tmp_path / "run")))
    assert done.code == 2
    assert "was pruned to {'heads': 1, 'hidden': 8}" in done.stderr


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--heads", "2"], "cannot leave out 2 of 2 heads"),
        (["--heads", "-1"], "Must be >= 0"),
        (["--check", "nowhere"], "nowhere"),
        (["data=nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be(extra: list[str], message: str, model: Path, dataset: Path, tmp_path: Path, command: Command):
    done = command("prune", model, f"data={dataset}", *SHORT, "--out", tmp_path / "run", *extra)
    assert done.code in (1, 2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_relative_network_goes_on_seeing_as_it_does(tmp_path: Path, command: Command):
    dataset = write_events(tmp_path / "cld", "cld")
    frame = frame_of(load_detector("cld")).model_copy(update={"hcal_scale": 1.2})
    trained = TrainSettings.resolve(None, ["detector=clic,cld"]).model_dump(mode="json")
    card = {"detector": "cld", "settings": trained, "adapted": {"model": {"file": "any.safetensors", "sha256": "0"}}}
    save_model(tmp_path / "large.safetensors", random_network(features="relative"), card=card, frame=frame)
    words = [*arguments(tmp_path / "large.safetensors", dataset, tmp_path / "run"), "compute.batch_elements=2000"]
    done = command(*words)
    assert done.code == 0, done.stderr
    for name in (PRUNED_FILE, "model.safetensors"):
        made = load_model(tmp_path / "run" / name)
        assert made.model.settings.heads == 1
        assert made.model.frame is not None
        assert made.model.frame.settings == frame
        assert made.card["detector"] == "cld"
        assert "adapted" not in made.card  # it is the network that it was pruned from
    again = command(*words)
    assert again.code == 0, again.stderr
