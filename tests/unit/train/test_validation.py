"""The loss on events apart, figures of a network as an evaluation finds them, and which of two validations is better."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ringflow.data.read import Dataset
from ringflow.elements.batch import ElementBatch, from_block
from ringflow.event.block import EventBlock, concatenate
from ringflow.models.file import save_model
from ringflow.models.model import NUM_CLASSES, Model
from ringflow.models.settings import ModelSettings
from ringflow.recipes.evaluate import evaluate
from ringflow.recipes.simulate import simulate
from ringflow.sim.settings import SimulateSettings
from ringflow.train.settings import TrainSettings
from ringflow.train.validation import FIGURES, Validation, ValidationLoss, figure

CPU = torch.device("cpu")


def test_the_same_network_has_the_same_loss_each_time(
    tiny: Callable[..., TrainSettings], events: Callable[..., ElementBatch]
):
    settings = tiny()
    model = Model(settings.model).eval()
    torch.nn.init.normal_(model.heads.out.weight)
    loss = ValidationLoss(events(20), settings, CPU)
    state = torch.get_rng_state()
    first = loss.measure(model)
    assert set(first) == {"loss", "loss_particle", "loss_label", "loss_charge", "loss_momentum", "loss_jet"}
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    assert loss.measure(model) == first


def test_events_count_alike_whatever_batches_they_are_in(
    tiny: Callable[..., TrainSettings], events: Callable[..., ElementBatch]
):
    model = Model(tiny().model).eval()
    # Of an untrained network the class says nothing: every particle costs the logarithm of the number of classes.
    some, all_at_once = (
        ValidationLoss(events(20), tiny(f"compute.batch_elements={budget}"), CPU).measure(model)
        for budget in (40, 10_000)
    )
    assert some["loss_label"] == pytest.approx(all_at_once["loss_label"], rel=1e-5)
    assert some["loss_label"] == pytest.approx(math.log(NUM_CLASSES), rel=1e-5)


def test_jets_decide_before_the_loss_and_lower_is_better():
    assert figure({"loss": 3.0}) == 3.0
    assert figure({"loss": 3.0, "jet_iqr_over_median": 0.2}) == 0.2
    assert figure({"loss": 3.0, "jet_iqr_over_median": None}) == math.inf


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


def validation_of(blocks: dict[str, EventBlock]) -> Validation:
    return Validation(
        blocks, {name: from_block(block) for name, block in blocks.items()}, dict.fromkeys(blocks, "clic")
    )


def test_the_figures_are_those_of_an_evaluation(model: Model, dataset: Path, block: EventBlock, tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", model)
    found = evaluate([dataset], model=tmp_path / "model.safetensors", reconstructions=["model"])
    expected = found["samples"]["ww"]["reconstructions"]["model"]
    figures = validation_of({"ww": block})(model)
    assert set(figures) == set(FIGURES)
    assert figures["particle_efficiency"] > 0.5
    assert 0.0 < figures["jet_iqr_over_median"] < 1.0
    for name, value in figures.items():
        known = expected[name]["value"]
        assert np.isnan(value) if known is None else value == pytest.approx(known, rel=1e-6)


def test_the_rules_are_measured_on_the_same_events(dataset: Path, block: EventBlock) -> None:
    found = evaluate([dataset], reconstructions=["baseline"])["samples"]["ww"]["reconstructions"]["baseline"]
    figures = validation_of({"ww": block}).of_rules()
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
    validate = validation_of(blocks)
    figures = validate(model)
    assert figures["particle_f1"] == np.mean([figures["particle_f1/one"], figures["particle_f1/two"]])
    assert figures["particle_f1/one"] == validation_of({"one": blocks["one"]})(model)["particle_f1"]
    assert figures["particle_f1/one"] != figures["particle_f1/two"]
    assert validate(model)["jet_iqr_over_median"] == figures["jet_iqr_over_median"]


def test_a_network_that_finds_nothing_has_no_figures_of_jets(model: Model, block: EventBlock) -> None:
    with torch.no_grad():
        model.heads.out.bias[0] = -10.0
    figures = validation_of({"ww": block})(model)
    assert np.isnan(figures["jet_iqr_over_median"])
    assert figures["jet_matched_fraction"] == 0.0
    assert figures["particle_efficiency"] == 0.0
