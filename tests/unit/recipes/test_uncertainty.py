"""From a network and events to a file of uncertainties, and from there to columns of candidates."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "data"))

from fake_events import fake_block, write_fake_dataset

from ringflow.base.errors import UsageError
from ringflow.data.candidates import CandidateFile, read_candidates, write_candidates
from ringflow.data.read import Dataset
from ringflow.elements.build import from_block
from ringflow.event.block import EventBlock
from ringflow.infer.made import ERRORS
from ringflow.infer.session import Session, open_session
from ringflow.models.file import LoadedModel, save_model
from ringflow.models.uncertainty import UncertaintyHead, file_beside, save_uncertainty
from ringflow.recipes import uncertainty as recipe
from ringflow.recipes.reconstruct import reconstruct
from ringflow.recipes.uncertainty_commands import uncertainty_command


@pytest.fixture
def weights(tmp_path: Path, small_model: Callable[..., Any]) -> Path:
    path = tmp_path / "run" / "model.safetensors"
    path.parent.mkdir()
    loaded = small_model()
    loaded.model.embedding.fit(from_block(fake_block(0, 40)).features_NF)
    save_model(path, loaded.model, threshold=0.0, card=loaded.card)  # every element is a candidate
    return path


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_dataset(tmp_path_factory.mktemp("uncertainty") / "dataset", events=120)


def test_fit_write_report_and_use(
    weights: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recipe, "_LEAST_CANDIDATES", 20)
    monkeypatch.setattr(recipe, "LEAST_JUDGED", 20)
    code = uncertainty_command(weights.parent, dataset, page=tmp_path / "page", as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert code == int(not result["ok"])
    assert result["path"] == str(file_beside(weights))
    counts = result["candidates"]
    assert counts["calibrate"] > counts["fit"] > counts["test"] * 0.8
    everyone = sum(len(block["target"]) for block in Dataset(dataset).events())
    assert sum(counts.values()) == everyone  # every one that has a truth is in one part
    tested = sum(row["candidates"] for row in result["classes"] if row["quantity"] == "pt")
    assert (
        tested
        == counts["test"]
        == sum(row["candidates"] for row in result["bins"] if row["of"] == "pt" and row["quantity"] == "pt")
    )
    text = (tmp_path / "page" / "index.html").read_text()
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert text.count("<img ") >= 4
    reconstruct(dataset, tmp_path / "out.parquet", model=weights)  # the file beside the model is taken
    made = next(read_candidates(tmp_path / "out.parquet", Dataset(dataset)))
    assert all((made[name] > 0).all() for name in ERRORS)
    assert "uncertainty" in CandidateFile(tmp_path / "out.parquet").record["provenance"]


def _loaded(path: Path) -> LoadedModel:
    from ringflow.models.file import load_model

    return load_model(path)


def test_errors_are_columns_in_the_units_of_what_they_are_of(weights: Path) -> None:
    loaded = _loaded(weights)
    head = UncertaintyHead(2 * loaded.model.settings.width, 4)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.out.bias.copy_(torch.tensor([0.1, 0.02, 0.03, 0.2]).log())
    block = fake_block(0, 12)
    plain, made = Session(loaded).reconstruct(block), Session(loaded, uncertainty=head).reconstruct(block)
    assert all(np.array_equal(plain[name], made[name]) for name in plain.columns)
    assert len(made) > 5
    np.testing.assert_allclose(made["energy_error"], 0.2 * made["energy"], rtol=1e-5)
    np.testing.assert_allclose(made["pt_error"], 0.1 * np.hypot(made["px"], made["py"]), rtol=1e-5)
    np.testing.assert_allclose(made["eta_error"], 0.02, rtol=1e-5)
    np.testing.assert_allclose(made["phi_error"], 0.03, rtol=1e-5)


def test_files_with_and_without_errors_are_read(weights: Path, dataset: Path, tmp_path: Path) -> None:
    loaded = _loaded(weights)
    head = UncertaintyHead(2 * loaded.model.settings.width, 4)
    events = Dataset(dataset)
    for session, expected in ((Session(loaded), ()), (Session(loaded, uncertainty=head), ERRORS)):
        path = tmp_path / "candidates.parquet"
        blocks = (
            EventBlock(block.event_number, {"candidate": session.reconstruct(block)}) for block in events.events()
        )
        write_candidates(path, events, blocks, reconstruction="model", provenance={})
        found = list(read_candidates(path, events))
        wanted = [session.reconstruct(block) for block in events.events()]
        for ours, theirs in zip(found, wanted, strict=True):
            assert list(ours.columns) == list(theirs.columns)
            assert set(expected) == set(ours.columns) & set(ERRORS)
            assert all(np.array_equal(ours[name], theirs[name]) for name in theirs.columns)


def test_a_width_passes_within_five_percent_and_its_own_error() -> None:
    assert recipe.accepted(1.049, 0.0)
    assert not recipe.accepted(1.051, 0.0)
    assert recipe.accepted(0.92, 0.02)
    assert not recipe.accepted(0.90, 0.02)


def test_wrong_wishes_are_told_in_one_line(
    weights: Path, dataset: Path, tmp_path: Path, small_model: Callable[..., Any]
) -> None:
    with pytest.raises(UsageError, match="no dataset to fit on"):
        uncertainty_command(weights)
    with pytest.raises(UsageError, match="candidates to fit on are too few"):
        recipe.uncertainty(weights, [dataset])
    with pytest.raises(UsageError, match=r"let its name end in \.safetensors"):
        recipe.uncertainty(weights, [dataset], tmp_path / "out.bin")
    other = tmp_path / "other.safetensors"
    save_model(other, small_model("mlp").model)
    head = UncertaintyHead(2 * small_model().model.settings.width, 4)
    save_uncertainty(tmp_path / "u.safetensors", head, other, {})
    with pytest.raises(UsageError, match="belongs to another model"):
        open_session(weights, uncertainty=tmp_path / "u.safetensors")
    with pytest.raises(UsageError, match="belongs to another model"):
        reconstruct(dataset, tmp_path / "out.parquet", model=weights, uncertainty=tmp_path / "u.safetensors")
    with pytest.raises(UsageError, match="is for --engine torch"):
        reconstruct(
            dataset, tmp_path / "out.parquet", model=weights, engine="onnx", uncertainty=tmp_path / "u.safetensors"
        )
