"""A training that goes on from a model file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ringflow.base.errors import InputFileError
from ringflow.elements.batch import ElementBatch
from ringflow.models.file import load_model, save_model
from ringflow.models.model import Model
from ringflow.train.settings import TrainSettings
from ringflow.train.trainer import Assignment, train

Tiny = Callable[..., TrainSettings]


@pytest.fixture
def go(events: Callable[..., ElementBatch], source: Callable[..., Any], run: Path) -> Callable[[TrainSettings], Model]:
    def go(settings: TrainSettings) -> Model:
        train(Assignment(settings, events(10, 99), None, run, {}), {0: source()})
        return load_model(run / "last.safetensors").model

    return go


@pytest.fixture
def earlier(tiny: Tiny, tmp_path: Path) -> Path:
    torch.manual_seed(77)
    model = Model(tiny().model)
    model.embedding.mean_F.fill_(0.25)
    save_model(tmp_path / "earlier.safetensors", model)
    return tmp_path / "earlier.safetensors"


def test_the_weights_and_the_scaling_are_those_of_the_file(tiny: Tiny, go: Any, earlier: Path):
    almost_still = ("optimizer.rate=1e-9", "length.events=30", "length.validate_every=30")
    made, before = go(tiny(*almost_still, f"start={earlier}")), load_model(earlier).model
    torch.testing.assert_close(made.state_dict(), before.state_dict(), atol=1e-6, rtol=0.0)


def test_without_a_file_the_weights_are_random(tiny: Tiny, go: Any, earlier: Path):
    made, before = go(tiny("optimizer.rate=1e-9", "length.events=30")), load_model(earlier).model
    assert not torch.allclose(made.heads.state_dict()["hidden.0.weight"], before.heads.state_dict()["hidden.0.weight"])


def test_a_training_that_goes_on_does_not_need_the_file(tiny: Tiny, go: Any, earlier: Path):
    go(tiny("length.events=30", f"start={earlier}"))
    earlier.unlink()
    go(tiny("length.events=60", f"start={earlier}"))


def test_a_file_that_is_not_there_is_one_line(tiny: Tiny, go: Any, tmp_path: Path):
    with pytest.raises(InputFileError, match="no model file at"):
        go(tiny(f"start={tmp_path / 'nothing'}"))
