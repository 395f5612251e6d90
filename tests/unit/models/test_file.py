"""Model files: what is written comes back, and what cannot be read is said in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ringflow.base.errors import InputFileError
from ringflow.elements.batch import random_elements
from ringflow.models.file import load_model, save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings

SMALL = {"width": 16, "heads": 2, "layers": 1, "hidden": 16}


def network(backbone: str = "kernel", **changes: object) -> Model:
    torch.manual_seed(1)
    model = Model(ModelSettings.model_validate({"backbone": backbone, **SMALL, **changes}))
    torch.nn.init.normal_(model.heads.out.weight)
    return model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_model(tmp_path / "model.safetensors", network(), threshold=0.4, card={"data": "ttbar"})
    return tmp_path / "model.safetensors"


def rewrite(path: Path, **changes: object) -> None:
    """Change entries of the description of a model file."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        record = json.loads(file.metadata()["ringflow_model"])
    save_file(load_file(path), path, metadata={"ringflow_model": json.dumps({**record, **changes})})


def refusal(path: Path) -> str:
    with pytest.raises(InputFileError) as caught:
        load_model(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize("backbone", ["attention", "kernel", "graph", "mlp"])
def test_a_model_comes_back_as_it_was(tmp_path: Path, backbone: str):
    model, batch = network(backbone).eval(), random_elements([30, 200])
    model.embedding.fit(batch.features_NF)
    save_model(tmp_path / "model.safetensors", model, threshold=0.4, card={"data": "ttbar"})
    loaded = load_model(tmp_path / "model.safetensors")
    assert loaded.model.settings == model.settings
    assert (loaded.threshold, loaded.card) == (0.4, {"data": "ttbar"})
    assert not loaded.model.training
    for before, after in zip(model.predict(batch), loaded.model.predict(batch), strict=True):
        assert torch.equal(before, after)


def test_nothing_there(tmp_path: Path):
    assert "no model file" in refusal(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_a_broken_file(path: Path, damage: str):
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"no model at all"}[damage])
    assert "cannot be read as a model file" in refusal(path)


@pytest.mark.parametrize("description", ["{", "[]", "null", '{"format_version": 1}'])
def test_a_broken_description(path: Path, description: str):
    save_file(load_file(path), path, metadata={"ringflow_model": description})
    assert "has a broken description" in refusal(path)


def test_others_may_read_what_they_may_read_elsewhere(path: Path):
    plain = path.with_name("plain")
    plain.write_text("x")
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_file_of_another_format(path: Path):
    rewrite(path, format_version=99)
    assert "model file of format 99" in refusal(path)


def test_weights_without_a_description(path: Path):
    save_file(load_file(path), path)
    assert "without a description" in refusal(path)


def test_a_file_trained_on_other_features(path: Path):
    rewrite(path, features=["track_log_pt", "track_smell"])
    assert "trained on other features" in refusal(path)


def test_settings_of_another_version(path: Path):
    rewrite(path, settings={**network().settings.model_dump(mode="json"), "warp": 9})
    assert "settings this version does not know (warp" in refusal(path)


def test_weights_of_another_architecture(path: Path):
    rewrite(path, settings=network(width=32).settings.model_dump(mode="json"))
    assert "is of another architecture: blocks.0" in refusal(path)
