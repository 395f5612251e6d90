"""ONNX behind the same call as torch: the same candidates, and clear words for what does not go together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.fake_events import fake_block
from ringflow.base.errors import InputFileError, UsageError
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.infer import shipped
from ringflow.infer.runtime import OnnxSession
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
    nothing = fake_block(3, 1)
    empty = {
        n: Collection(0 * p.counts, {c: v[:0] for c, v in p.columns.items()}) for n, p in nothing.collections.items()
    }
    return concatenate([fake_block(0, 3), EventBlock(nothing.event_number, empty), fake_block(4, 6)])


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
