"""From a network and events to a file of uncertainties, and from there to columns of candidates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.fake_events import fake_block, write_fake_dataset
from ringflow.base.errors import UsageError
from ringflow.cli.inspection import uncertainty as uncertainty_command
from ringflow.data.candidates import CandidateFile, read_candidates, write_candidates
from ringflow.data.read import Dataset
from ringflow.elements.batch import from_block
from ringflow.event.block import EventBlock
from ringflow.explain import uncertainty as recipe
from ringflow.explain.uncertainty import Sample
from ringflow.infer.runtime import ERRORS
from ringflow.infer.session import Session, open_session
from ringflow.models.file import LoadedModel, save_model
from ringflow.models.uncertainty import UncertaintyHead, file_beside, save_uncertainty
from ringflow.recipes.reconstruct import reconstruct


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


def judged(pull: np.ndarray) -> dict[str, Any]:
    """What is reported of pulls of one class, the same for all quantities."""
    number = len(pull)
    nothing = torch.zeros(number, 4)
    sample = Sample(nothing, nothing, torch.ones(number, dtype=torch.long), torch.ones(number), nothing + 1.0)
    return recipe.report(sample, np.repeat(pull[:, None], 4, axis=1))


@pytest.mark.parametrize(
    ("shift", "width", "fails"),
    [
        (0.0, 1.0, []),
        (0.1, 1.0, []),
        (1.3, 1.0, ["bias", "coverage"]),  # a third within one sigma, and one wide
        (0.0, 1.3, ["width", "coverage"]),
        (0.6, 1.0, ["bias", "coverage"]),
    ],
)
def test_width_bias_and_coverage_all_count(shift: float, width: float, fails: list[str]) -> None:
    found = judged(np.random.default_rng(1).normal(shift, width, 20_000))
    assert all(row["fails"] == fails for row in found["classes"])
    assert found["ok"] is (not fails)
    assert found["verdict"].startswith("0 of 4" if fails else "4 of 4")


def test_what_cannot_be_told_from_right_passes() -> None:
    """A little too wide: among few it may be chance, among many it is not, and of too few nothing is said."""
    few, many = (judged(np.random.default_rng(2).normal(0.0, 1.09, number)) for number in (600, 40_000))
    assert (few["ok"], many["ok"]) == (True, False)
    none = judged(np.random.default_rng(2).normal(0.0, 1.0, 499))
    assert not none["ok"]
    assert none["verdict"] == "no class has the 500 candidates to be judged by"
    assert {row["verdict"] for row in none["classes"]} == {"too few"}


def test_terminal_json_and_page_say_the_same(
    weights: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = judged(np.random.default_rng(1).normal(1.3, 1.0, 5_000))
    result = {**found, "path": "x", "model": {"file": "m"}, "candidates": {"fit": 1, "calibrate": 1, "test": 5000}}
    monkeypatch.setattr(recipe, "uncertainty", lambda *given, **more: result)
    assert uncertainty_command(weights, dataset, page=tmp_path / "page") == 1
    said = capsys.readouterr().err
    assert "\n0 of 4 pulls have the right width, bias and coverage\n" in said
    assert len(re.findall(r"FAIL +bias, coverage", said)) == 4
    text = (tmp_path / "page" / "index.html").read_text()
    assert "<h1>0 of 4 pulls have the right width, bias and coverage</h1>" in text
    assert text.count(">FAIL</span> bias, coverage") == 4


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
