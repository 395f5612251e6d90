"""Figures of a network on validation events: those of an evaluation, and the mean over the samples."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock, concatenate
from ringflow.models.file import save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.recipes.evaluate import evaluate
from ringflow.recipes.simulate import simulate
from ringflow.sim.settings import SimulateSettings
from ringflow.train.validation import FIGURES, Validation


@pytest.fixture
def model() -> Model:
    """It trusts the detector and says yes to everything."""
    torch.manual_seed(1)
    return Model(ModelSettings(width=16, layers=1, heads=2, hidden=16))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty W pairs."""
    path = tmp_path_factory.mktemp("data") / "ww"
    overrides = ["generator.sample=ww", "production.events=40", "production.keep_hits=false"]
    simulate(SimulateSettings.resolve(None, overrides), path)
    return path


@pytest.fixture(scope="module")
def block(dataset: Path) -> EventBlock:
    return concatenate(list(Dataset(dataset).events()))


def test_the_figures_are_those_of_an_evaluation(model: Model, dataset: Path, block: EventBlock, tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", model)
    found = evaluate([dataset], model=tmp_path / "model.safetensors", reconstructions=["model"])
    expected = found["samples"]["ww"]["reconstructions"]["model"]
    figures = Validation({"ww": block}, "cluster")(model)
    assert set(figures) == set(FIGURES)
    assert figures["particle_efficiency"] > 0.5
    assert 0.0 < figures["jet_iqr_over_median"] < 1.0
    for name, value in figures.items():
        known = expected[name]["value"]
        assert np.isnan(value) if known is None else value == pytest.approx(known, rel=1e-6)


def test_the_rules_are_measured_on_the_same_events(dataset: Path, block: EventBlock) -> None:
    found = evaluate([dataset], reconstructions=["baseline"])["samples"]["ww"]["reconstructions"]["baseline"]
    figures = Validation({"ww": block}, "cluster").of_rules({"ww": block}, "clic")
    for name in ("jet_iqr_over_median", "particle_f1", "missing_momentum_error"):
        assert figures[name] == pytest.approx(found[name]["value"], rel=1e-6)


def test_a_training_tells_the_rules_first_and_ends_in_words(
    dataset: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    small = ["width=16", "layers=1", "heads=2", "hidden=16"]
    done = command(
        "train", f"data={dataset}", *(f"model.{part}" for part in small), "length.events=40", "length.validate_every=20",
        "length.validation_events=4", "compute.device=cpu", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("validation")]
    assert re.match(r"validation +the rules  loss +-  jet width .* GeV  on \d events, in .* s$", said[0])
    places = {line.index("jet width") for line in said}
    assert len(said) >= 3
    assert len(places) == 1  # aligned
    summary = done.stderr[done.stderr.index("\nTraining\n") :]
    assert "_" not in summary.split("curves")[0]  # no key of the JSON
    assert re.search(r"memory +[\d.]+ [MG]B at most", summary)


def test_samples_count_alike(model: Model, block: EventBlock) -> None:
    blocks = {"one": block.take(0, 15), "two": block.take(15, 40)}
    validate = Validation(blocks, "cluster")
    figures = validate(model)
    assert figures["particle_f1"] == np.mean([figures["particle_f1/one"], figures["particle_f1/two"]])
    assert figures["particle_f1/one"] == Validation({"one": blocks["one"]}, "cluster")(model)["particle_f1"]
    assert figures["particle_f1/one"] != figures["particle_f1/two"]
    assert validate(model)["jet_iqr_over_median"] == figures["jet_iqr_over_median"]


def test_a_network_that_finds_nothing_has_no_figures_of_jets(model: Model, block: EventBlock) -> None:
    with torch.no_grad():
        model.heads.out.bias[0] = -10.0
    figures = Validation({"ww": block}, "cluster")(model)
    assert np.isnan(figures["jet_iqr_over_median"])
    assert figures["jet_matched_fraction"] == 0.0
    assert figures["particle_efficiency"] == 0.0
