"""Model files: what is written comes back, and what cannot be read is said in one line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ringflow.base.errors import InputFileError
from ringflow.elements.batch import random_elements
from ringflow.models.file import load_model, save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.sim.geometry import load_detector
from ringflow.sim.tracker import frame_of

SETTINGS = {"backbone": "kernel", "width": 16, "heads": 2, "layers": 1, "hidden": 16}


def network(backbone: str = "kernel") -> Model:
    torch.manual_seed(1)
    model = Model(ModelSettings.model_validate({**SETTINGS, "backbone": backbone}))
    torch.nn.init.normal_(model.heads.out.weight)
    return model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_model(tmp_path / "model.safetensors", network(), threshold=0.4, card={"data": "ttbar"})
    return tmp_path / "model.safetensors"


def described(path: Path) -> dict[str, Any]:
    """What a file says of its weights, as one of a version that wrote no hash."""
    with safe_open(path, framework="pt") as file:
        record: dict[str, Any] = json.loads(file.metadata()["ringflow_model"])
    del record["sha256"]
    return record


def rewrite(path: Path, record: dict[str, Any], **weights: torch.Tensor) -> None:
    save_file({**load_file(path), **weights}, path, metadata={"ringflow_model": json.dumps(record)})


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no model file at"),
        (lambda whole: whole[: len(whole) // 2], "cannot be read as a model file"),
        (lambda whole: b"", "cannot be read as a model file"),
        (lambda whole: b"no model at all", "cannot be read as a model file"),
    ],
)
def test_a_file_that_is_missing_or_broken(path: Path, content: Callable[[bytes], bytes] | None, message: str):
    whole = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content(whole))
    assert message in refusal(path)


@pytest.mark.parametrize("description", ["{", "[]", "null", '{"format_version": 1}', None])
def test_a_broken_description(path: Path, description: str | None):
    save_file(load_file(path), path, metadata=description and {"ringflow_model": description})
    assert ("has a broken description" if description else "without a description") in refusal(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 99}, "model file of format 99"),
        ({"features": ["track_log_pt", "track_smell"]}, "trained on other features"),
        ({"settings": {**SETTINGS, "warp": 9}}, "settings this version does not know (warp"),
        ({"settings": {**SETTINGS, "width": 32}}, "is of another architecture: blocks.0"),
        ({"settings": {**SETTINGS, "width": 1 << 20}}, "is of another architecture: blocks.0"),
        ({"settings": {**SETTINGS, "layers": 1 << 40}}, "is of another architecture: 1099511627776 layers"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"threshold": 10**400}, "OverflowError"),
        ({"sha257": "0" * 64}, "'sha257' is unknown"),
    ],
)
def test_a_file_of_another_version(path: Path, changes: dict[str, object], message: str):
    rewrite(path, {**described(path), **changes})
    assert message in refusal(path)


def test_others_may_read_what_they_may_read_elsewhere(path: Path):
    plain = path.with_name("plain")
    plain.write_text("x")
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_file_of_an_earlier_version_has_no_hash(path: Path):
    rewrite(path, described(path))
    assert load_model(path).threshold == 0.4


def test_no_bit_of_a_file_changes_unseen(path: Path):
    whole, chance = path.read_bytes(), random.Random(1)
    header = 8 + int.from_bytes(whole[:8], "little")
    own = whole.index(b"sha256")
    # Of the header, of the name and the value of the hash, and of the weights.
    places = [chance.randrange(*part) for part in [(0, header), (own, own + 74), (header, len(whole))] * 25]
    for place in places:
        broken = bytearray(whole)
        broken[place] ^= 1 << chance.randrange(8)
        path.write_bytes(broken)
        refusal(path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite(path: Path, value: float):
    bias = load_file(path)["heads.out.bias"]
    rewrite(path, described(path), **{"heads.out.bias": bias.fill_(value)})
    assert "weights that are not finite (heads.out.bias)" in refusal(path)


def test_weights_of_another_type(path: Path):
    bias = load_file(path)["heads.out.bias"]
    rewrite(path, described(path), **{"heads.out.bias": bias.half()})
    assert "heads.out.bias is F16" in refusal(path)


def relative() -> Model:
    torch.manual_seed(1)
    return Model(ModelSettings.model_validate({**SETTINGS, "features": "relative"})).eval()


def test_what_a_network_knows_of_its_detector_comes_back(tmp_path: Path):
    path, model, batch = tmp_path / "model.safetensors", relative(), random_elements([30, 20])
    save_model(path, model)
    assert load_model(path).model.frame is None
    frame = frame_of(load_detector("ild")).model_copy(
        update={"hcal_scale": 1.2, "matched": {"track_dedx": [(0.0, 1.0), (1.0, 2.5)]}}
    )
    save_model(path, model, frame=frame)  # for a network that itself goes on with any
    assert model.frame is None
    loaded = load_model(path).model
    assert loaded.frame is not None
    assert loaded.frame.settings == frame
    model.bind(frame)
    again = tmp_path / "again.safetensors"
    save_model(again, model)
    assert again.read_bytes() == path.read_bytes()
    seen, expected = (one.see(batch) for one in (loaded, model))
    assert torch.equal(seen.features_NF.nan_to_num(-9.0), expected.features_NF.nan_to_num(-9.0))
    assert not torch.equal(seen.features_NF.nan_to_num(-9.0), batch.features_NF.nan_to_num(-9.0))
    model.bind(None)
    save_model(path, model)
    assert load_model(path).model.frame is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"radius": -1.0}, "radius"),
        ({"eta_edges": [1.0, 0.5]}, "must rise"),
        ({"colour": "red"}, "colour"),
        ({"matched": {"cluster_colour": [[0.0, 0.0], [1.0, 1.0]]}}, "no feature 'cluster_colour'"),
    ],
)
def test_a_broken_frame_is_refused(tmp_path: Path, changes: dict[str, Any], said: str):
    path, model = tmp_path / "model.safetensors", relative()
    model.bind(frame_of(load_detector("clic")))
    save_model(path, model)
    record = described(path)
    rewrite(path, {**record, "frame": {**record["frame"], **changes}})
    assert said in refusal(path)
    rewrite(path, {**record, "frame": "clic"})
    assert "frame" in refusal(path)
