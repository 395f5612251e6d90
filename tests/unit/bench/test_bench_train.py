"""The benchmark of training: what it reports, not how fast it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ringflow.base.errors import UsageError
from ringflow.bench import record
from ringflow.bench import train as timing
from ringflow.elements.batch import CLUSTER, TRACK
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.train.settings import TrainSettings

CPU = torch.device("cpu")
SMALL = ("--width", 16, "--layers", 1, "--heads", 2, "--hidden", 16, "--seconds", 0.01, "--device", "cpu")


@pytest.mark.parametrize("backbone", ["attention", "mlp"])
def test_a_training_is_timed(command: Callable[..., Any], backbone: str):
    done = command("bench", "train", "--backbone", backbone, *SMALL, "--elements", 7, "--batch-elements", 50, "--json")
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


def test_people_see_no_settings(command: Callable[..., Any]):
    done = command("bench", "train", *SMALL, "--elements", 5, "--batch-elements", 20)
    assert done.code == 0
    assert "train events per second" in done.stderr
    assert "settings" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--backbone", "swarm"), "backbone=swarm: input should be 'attention', 'kernel', 'graph' or 'mlp'"),
        (("--width", 20, "--heads", 3), "width 20 must be a multiple of four times heads (3)"),
        (("--elements", 90, "--batch-elements", 30), "an event of 90 elements does not fit into a batch of 30; try"),
        (("--device", "abacus"), "'abacus' cannot be used here"),
        (("--seconds", 0), "--seconds"),
    ],
)
def test_wrong_usage_is_one_line(command: Callable[..., Any], words: tuple[object, ...], message: str):
    done = command("bench", "train", *words)
    assert done.code == 2
    assert message in done.stderr


def test_what_fits_exactly_is_timed():
    settings = ModelSettings(backbone="mlp", width=16, layers=1, heads=2, hidden=16)
    assert timing.run(settings, 10, 10, 0.001, "cpu")["train_events_per_second"] > 0
    with pytest.raises(UsageError, match="an event of 11 elements"):
        timing.run(settings, 11, 10, 0.001, "cpu")


def test_the_random_events_are_events():
    chunk = timing.random_chunk(9, 4)
    assert chunk.counts_B.tolist() == [9] * 4
    assert chunk.kind_N.tolist() == ([TRACK] * 3 + [CLUSTER] * 6) * 4
    assert chunk.targets is not None
    particles = chunk.targets.label_N > 0
    assert 0 < particles.sum() < 36
    assert not chunk.targets.momentum_N4[~particles].any()
    assert (chunk.targets.charge_N[particles] == chunk.charge_N[particles]).all()
    pt, eta, _, energy = chunk.reference_N4.unbind(1)
    assert torch.allclose(energy, pt * torch.cosh(eta))


def test_training_moves_the_weights():
    settings = TrainSettings.resolve(None, ["model.backbone=mlp", "model.layers=1", "compute.batch_elements=40"])
    model = Model(settings.model)
    before = model.heads.out.weight.detach().clone()
    timing.train_rate(settings, model, timing.random_chunk(8, 10), CPU, 0.001)
    assert (model.heads.out.weight - before).abs().max() > 1e-6


def test_batches_and_events_agree():
    settings = TrainSettings.resolve(None, ["compute.batch_elements=40", "source.reuse=1000000"])
    rates = timing.load_rate(settings, timing.random_chunk(8, 10), CPU, 0.01)
    # Five events of eight elements fill a batch.
    assert rates["events_per_second"] / rates["batches_per_second"] == pytest.approx(5.0, rel=1e-2)


def test_an_accelerator_is_named_whatever_its_kind(monkeypatch: pytest.MonkeyPatch):
    modules = {"xpu": SimpleNamespace(get_device_name=lambda: "a fast one"), "odd": SimpleNamespace()}
    monkeypatch.setattr(torch, "get_device_module", modules.__getitem__)
    assert record.hardware("xpu")["accelerator"] == "a fast one"
    assert record.hardware("odd")["accelerator"] == "odd"
    assert "accelerator" not in record.hardware("cpu")
