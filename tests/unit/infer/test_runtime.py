"""Files that are not what they should be, and events that lack something: one clear line each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.fake_events import fake_block
from fixtures.foreign_onnx import foreign_file
from ringflow.base.errors import DatasetError, FailureError, InputFileError
from ringflow.elements.batch import from_block
from ringflow.event.block import Collection, EventBlock
from ringflow.infer.export import require_onnx
from ringflow.infer.runtime import Description, EventRuntime


def test_no_file(tmp_path: Path):
    with pytest.raises(InputFileError, match=r"no ONNX file at .*model\.onnx; give the file that `ringflow export`"):
        EventRuntime(tmp_path / "model.onnx")


@pytest.mark.parametrize("keep", [0, 100, 20_000])
def test_a_broken_file(tmp_path: Path, small_onnx: Callable[..., Path], keep: int, capfd: pytest.CaptureFixture[str]):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(small_onnx().read_bytes()[:keep])
    with pytest.raises(InputFileError, match=r"broken\.onnx (cannot be read as an ONNX file|is an ONNX file, but)"):
        EventRuntime(broken)
    assert capfd.readouterr().err == ""


def test_a_file_of_somebody_else(tmp_path: Path):
    with pytest.raises(InputFileError, match="not one that `ringflow export` wrote; export the model"):
        EventRuntime(foreign_file(tmp_path / "other.onnx", {}))


def test_a_file_of_another_format(tmp_path: Path):
    with pytest.raises(InputFileError, match="is of format 99, this version reads 1; export it again"):
        EventRuntime(foreign_file(tmp_path / "other.onnx", {"ringflow_format": "99"}))


def test_a_broken_description(tmp_path: Path):
    with pytest.raises(InputFileError, match="has a broken description"):
        Description.read({"ringflow_format": "1", "inputs": "{"}, tmp_path / "model.onnx")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FailureError, match=r"onnxruntime is not installed; pip install 'ringflow\[onnx\]'"):
        EventRuntime(tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(FailureError, match="onnxscript is not installed"):
        require_onnx()


def test_a_missing_column_is_told_as_torch_tells_it(small_onnx: Callable[..., Path]):
    block = fake_block(0, 2)
    part = block["track"]
    kept = {name: values for name, values in part.columns.items() if name not in ("pt", "calo_x")}
    lacking = EventBlock(block.event_number, {**block.collections, "track": Collection(part.counts, kept)})
    with pytest.raises(DatasetError) as by_torch:
        from_block(lacking)
    with pytest.raises(DatasetError) as by_onnx:
        list(EventRuntime(small_onnx()).events(lacking))
    assert str(by_onnx.value) == str(by_torch.value)
    with pytest.raises(DatasetError, match="the cluster collection has no column 'energy'"):
        list(EventRuntime(small_onnx()).events(EventBlock(block.event_number, {"track": part})))
