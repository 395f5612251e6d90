"""ONNX behind the same call as torch: the same candidates; files that are not what they should be are one clear line each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.fake_events import emptied, fake_block, without
from fixtures.foreign_onnx import foreign_file
from ringflow.base.errors import DatasetError, InputFileError, UsageError
from ringflow.elements.batch import from_block
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.infer import shipped
from ringflow.infer.runtime import Description, EventRuntime, OnnxSession
from ringflow.infer.session import Session, open_session
from ringflow.models.file import save_model


def same_candidates(first: Collection, second: Collection) -> None:
    """Equal but for rounding of momenta."""
    assert np.array_equal(first.counts, second.counts)
    assert list(first.columns) == list(second.columns)
    for name, values in first.columns.items():
        assert values.dtype == second[name].dtype
        np.testing.assert_allclose(
            values, second[name], rtol=2e-4 if name in ("px", "py", "pz", "energy") else 0, atol=1e-4
        )


def blocks() -> EventBlock:
    """Events, one of them of nothing."""
    return concatenate([fake_block(0, 3), emptied(fake_block(3, 1)), fake_block(4, 6)])


@pytest.mark.parametrize(("backbone", "calorimeter"), [("attention", "cluster"), ("mlp", "hit")])
def test_the_candidates_are_those_of_torch(
    backbone: str, calorimeter: str, small_model: Callable[..., Any], small_onnx: Callable[..., Path]
):
    expected = Session(small_model(backbone, calorimeter)).reconstruct(blocks())
    session = OnnxSession(small_onnx(backbone, calorimeter), threads=2)
    made = session.reconstruct(blocks())
    assert len(made) > 5
    assert made.counts[3] == 0
    same_candidates(made, expected)
    assert (session.kinds, session.detector, session.threshold) == (("track", calorimeter), "fake", 0.5)
    assert session.card["data"] == "made up"


def test_threads_change_nothing(small_onnx: Callable[..., Path]):
    one, three = (OnnxSession(small_onnx(), threads).reconstruct(fake_block(0, 40)) for threads in (1, 3))
    assert np.array_equal(one.counts, three.counts)
    assert all(np.array_equal(one[name], three[name]) for name in one.columns)


def test_a_block_of_no_events(small_onnx: Callable[..., Path]):
    made = OnnxSession(small_onnx()).reconstruct(fake_block(0, 1).take(0, 0))
    assert (len(made), len(made.counts)) == (0, 0)
    assert "label" in made.columns


def test_the_engine_is_that_of_the_file(
    small_model: Callable[..., Any], small_onnx: Callable[..., Path], tmp_path: Path
):
    weights = tmp_path / "model.safetensors"
    save_model(weights, small_model().model, card=small_model().card)
    assert isinstance(open_session(small_onnx()), OnnxSession)
    assert isinstance(open_session(weights), Session)
    with pytest.raises(UsageError, match="is an ONNX file, which torch does not run; use --engine onnx"):
        open_session(small_onnx(), engine="torch")
    with pytest.raises(UsageError, match="no engine named 'abacus'; choose from torch, onnx"):
        open_session(weights, engine="abacus")
    with pytest.raises(UsageError, match="computes on the cpu, not on meta"):
        open_session(small_onnx(), "meta")


def test_a_model_is_exported_for_a_session(
    small_model: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    weights = tmp_path / "model.safetensors"
    save_model(weights, small_model("mlp").model)
    session = open_session(weights, engine="onnx")
    assert "exporting the model to ONNX for this run" in capsys.readouterr().err
    same_candidates(session.reconstruct(blocks()), open_session(weights).reconstruct(blocks()))


def test_no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(shipped, "MODEL", tmp_path / "none")
    with pytest.raises(InputFileError, match="this installation comes without a model"):
        open_session(engine="onnx")
    with pytest.raises(InputFileError, match="no ONNX file at"):
        open_session(tmp_path / "none.onnx")


@pytest.mark.parametrize("keep", [0, 100, 20_000])
def test_a_broken_file(tmp_path: Path, small_onnx: Callable[..., Path], keep: int, capfd: pytest.CaptureFixture[str]):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(small_onnx().read_bytes()[:keep])
    with pytest.raises(InputFileError, match=r"broken\.onnx (cannot be read as an ONNX file|is an ONNX file, but)"):
        EventRuntime(broken)
    assert capfd.readouterr().err == ""


def test_files_of_others(tmp_path: Path):
    with pytest.raises(InputFileError, match="not one that `ringflow export` wrote; export the model"):
        EventRuntime(foreign_file(tmp_path / "other.onnx", {}))
    with pytest.raises(InputFileError, match="is of format 99, this version reads 1; export it again"):
        EventRuntime(foreign_file(tmp_path / "other.onnx", {"ringflow_format": "99"}))
    with pytest.raises(InputFileError, match="has a broken description"):
        Description.read({"ringflow_format": "1", "inputs": "{"}, tmp_path / "model.onnx")


def test_a_missing_column_is_told_as_torch_tells_it(small_onnx: Callable[..., Path]):
    block = fake_block(0, 2)
    lacking = without(block, "track", "pt", "calo_x")
    with pytest.raises(DatasetError) as by_torch:
        from_block(lacking)
    with pytest.raises(DatasetError) as by_onnx:
        list(EventRuntime(small_onnx()).events(lacking))
    assert str(by_onnx.value) == str(by_torch.value)
    with pytest.raises(DatasetError, match="the cluster collection has no column 'energy'"):
        list(EventRuntime(small_onnx()).events(EventBlock(block.event_number, {"track": block["track"]})))
