"""The export command proves what it writes, and tells what int8 costs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.fake_events import write_fake_dataset
from ringflow.infer import export as check
from ringflow.infer import shipped
from ringflow.infer.export import describe
from ringflow.infer.runtime import EventRuntime
from ringflow.models.file import save_model
from ringflow.recipes import export as recipe


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_fake_dataset(tmp_path / "dataset")


@pytest.fixture
def weights(tmp_path: Path, small_model: Callable[..., Any]) -> Path:
    path = tmp_path / "model.safetensors"
    save_model(path, small_model().model, card=small_model().card)
    return path


@pytest.fixture
def traced(small_onnx: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that tracing would make of the small network, which is the same every time."""

    def copied(path: Path, loaded: Any, portable: bool = False) -> Any:
        shutil.copy(small_onnx(), path)
        return describe(loaded)

    monkeypatch.setattr(recipe, "write_onnx", copied)


def test_export_and_prove(weights: Path, dataset: Path, tmp_path: Path, command: Callable[..., Any]):
    out = tmp_path / "new" / "model.onnx"
    done = command("export", weights, "-o", out, "--check", dataset, "--events", 20, "--json")
    assert done.code == 0
    result = json.loads(done.stdout)
    assert result["ok"] is True
    assert result["bytes"] == out.stat().st_size
    assert (result["check"]["events"], result["precision"], result["detector"]) == (20, "float32", "fake")
    assert [row["output"] for row in result["check"]["rows"]] == [
        "element_probability",
        "element_momentum",
        "element_label",
        "element_charge",
        "candidates",
        "undecided events",
    ]
    assert result["inputs"]["track"][:3] == ["pt", "eta", "phi"]
    assert EventRuntime(out).description.weights_sha256 == result["weights_sha256"]
    assert [path.name for path in out.parent.iterdir()] == ["model.onnx"]


@pytest.mark.usefixtures("traced")
def test_a_file_that_differs_is_not_written(
    weights: Path, dataset: Path, tmp_path: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(check, "TOLERANCE", 1e-12)
    done = command("export", weights, "--out", tmp_path / "model.onnx", "--check", dataset)
    assert done.code == 1
    assert "FAIL" in done.stderr
    assert "was not written" in done.stderr
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.usefixtures("traced")
def test_int8_with_what_it_costs(weights: Path, dataset: Path, tmp_path: Path, command: Callable[..., Any]):
    out = tmp_path / "model.onnx"
    done = command("export", weights, "-o", out, "--int8", "--calibrate", dataset, "--check", dataset, "--json")
    assert done.code == 0
    result = json.loads(done.stdout)
    assert result["precision"] == EventRuntime(out).description.precision == "int8"
    full, small = result["cost"]
    assert (full["precision"], small["precision"]) == ("float32", "int8")
    assert small["bytes"] == out.stat().st_size
    assert full["events"] == small["events"] == 25
    assert min(full["events_per_second"], small["events_per_second"]) > 0
    assert {"jet_median", "jet_iqr_over_median", "particle_f1"} <= full.keys() == small.keys()
    assert full["bytes"] != small["bytes"]


@pytest.mark.usefixtures("traced")
def test_the_tables_for_people(weights: Path, dataset: Path, tmp_path: Path, command: Callable[..., Any]):
    words = ("--int8", "--calibrate", dataset, "--check", dataset, "--events", 5)
    done = command("export", weights, "-o", tmp_path / "a.onnx", *words)
    assert (done.code, done.stdout) == (0, "")
    for text in ("Compared on", "6 of 6 passed", "What int8 gives and takes", "jet width", "next: ringflow"):
        assert text in done.stderr


@pytest.mark.usefixtures("traced")
def test_into_a_repository_of_triton(
    weights: Path, dataset: Path, tmp_path: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    out, models = tmp_path / "a.onnx", tmp_path / "models"
    words = ("export", weights, "--triton", models, "--check", dataset, "--events", 5)
    done = command(*words, "--json")
    result = json.loads(done.stdout)
    assert (done.code, result["path"]) == (0, None)
    assert result["triton"] == str(models / "ringflow" / "1" / "model.onnx")
    done = command(*words, "--name", "flow", "-o", out)
    assert f"made: {models}/flow/1/model.onnx" in done.stderr
    assert f"made: {out}" in done.stderr
    assert (models / "flow" / "1" / "model.onnx").read_bytes() == out.read_bytes()

    monkeypatch.setattr(check, "TOLERANCE", 1e-12)
    assert command(*words, "--name", "other").code == 1
    assert sorted(path.name for path in models.iterdir()) == ["flow", "ringflow"]
    assert command(*words, "--name", "a/b").code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.safetensors",), "nothing to write; give -o FILE, --triton FOLDER, or both"),
        (("model.safetensors", "-o", "a.onnx", "--name", "x"), "--name x is for --triton"),
        (("model.safetensors", "--triton", "b.onnx"), "b.onnx is a file, not a folder"),
        (("model.safetensors", "-o", "model.bin"), "cannot tell the format of model.bin; let its name end in .onnx"),
        (("model.safetensors", "-o", "a.onnx", "--int8"), "--int8 needs events to measure ranges on"),
        (("model.safetensors", "-o", "a.onnx", "--calibrate", "x"), "--calibrate x is for --int8"),
        (("nowhere", "-o", "a.onnx"), "no model at nowhere; give a model file"),
        (("shipped", "-o", "a.onnx"), "this installation comes without a model"),
        (("model.safetensors", "-o", "a.onnx", "--int8", "--calibrate", "nowhere"), "no dataset at nowhere"),
        (("model.safetensors", "-o", "a.onnx", "--check", "nowhere"), "nothing at nowhere"),
        (("b.onnx", "-o", "a.onnx"), "b.onnx is exported already"),
    ],
)
@pytest.mark.usefixtures("weights")
def test_clear_words(
    words: tuple[str, ...], message: str, tmp_path: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shipped, "MODEL", tmp_path / "none")
    (tmp_path / "b.onnx").touch()
    done = command("export", *words)
    assert done.code in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "a.onnx").exists()


def test_without_the_extra(
    weights: Path, dataset: Path, tmp_path: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    done = command("export", weights, "-o", tmp_path / "a.onnx", "--check", dataset)
    assert done.code == 1
    assert "onnxscript is not installed; pip install 'ringflow[onnx]'" in done.stderr


@pytest.mark.heavy
def test_the_shipped_model_on_simulated_events(tmp_path: Path):
    result = recipe.export(None, tmp_path / "model.onnx")
    assert result["ok"], result
    assert result["check"]["events"] == 20
