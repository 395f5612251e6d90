"""Models by their names, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringflow.base.errors import InputFileError
from ringflow.cli import main
from ringflow.infer.shipped import MODEL, described, model_file, model_names
from ringflow.models.file import load_model


def test_every_name_is_a_model_that_opens_and_is_described_as_its_card_says():
    assert "clic" in model_names()
    for name in model_names():
        loaded, told = load_model(model_file(Path(name))), described(name)
        assert told["detector"] == loaded.card["detector"]
        assert told["parameters"] == loaded.model.num_parameters
        assert told["backbone"] == loaded.model.settings.backbone
        assert told["jet_width"] == {
            sample: entry["model"]["jet_iqr_over_median"] for sample, entry in loaded.card["test"].items()
        }
        assert Path(told["path"]).is_file()


def test_shipped_is_clic():
    assert model_file(None) == model_file(Path("shipped")) == model_file(Path("clic")) == MODEL


def test_a_file_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clic").write_bytes(b"mine")
    assert model_file(Path("clic")) == Path("clic")


def test_a_wrong_name_is_told_the_near_one():
    with pytest.raises(InputFileError, match="no model at clik; did you mean 'clic'"):
        model_file(Path("clik"))


def test_the_command_shows_them(capsys):
    assert main(["models"]) == 0
    shown = capsys.readouterr().err
    assert all(name in shown for name in model_names())
    assert "ringflow evaluate data/ttbar --model" in shown
