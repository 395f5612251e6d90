"""Dense layers in int8: a smaller file with nearly the same answer, calibrated on events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.fake_events import fake_block
from ringflow.base.errors import DatasetError
from ringflow.event.block import Collection, EventBlock
from ringflow.infer.export import compare, write_int8
from ringflow.infer.runtime import EventRuntime


def test_dense_layers_in_int8(small_model: Callable[..., Any], small_onnx: Callable[..., Path], tmp_path: Path):
    import onnx

    path = tmp_path / "int8.onnx"
    described = write_int8(path, small_onnx(), iter([fake_block(0, 20)]), 15)
    assert described.precision == "int8"
    runtime = EventRuntime(path)
    assert runtime.description == described
    kinds = {value.name: value.data_type for value in onnx.load(path).graph.initializer}
    integers = {
        name for name, kind in kinds.items() if kind == onnx.TensorProto.INT8 and name.endswith("weight_quantized")
    }
    layers = ("mixer.to_qkv", "mixer.to_out", "feed_forward.0", "feed_forward.2")
    assert integers == {
        *(f"model.blocks.0.{layer}.weight_quantized" for layer in layers),
        "model.heads.hidden.0.weight_quantized",
        "model.embedding.layers.2.weight_quantized",
    }
    found = compare(small_model(), runtime, [fake_block(30, 10)])
    assert 1e-4 < found.probability < 0.2  # it is not the same, but nearly


def test_the_ranges_are_those_of_the_events(small_onnx: Callable[..., Path], tmp_path: Path):
    loud = fake_block(0, 20)
    cluster = loud["cluster"]
    louder = {**cluster.columns, "energy": 1e4 * cluster["energy"]}
    blocks = {
        "a": loud,
        "b": EventBlock(loud.event_number, {**loud.collections, "cluster": Collection(cluster.counts, louder)}),
    }
    answers = {}
    for name, block in blocks.items():
        write_int8(tmp_path / name, small_onnx(), [block], 20)
        runtime = EventRuntime(tmp_path / name)
        [event] = runtime.events(fake_block(30, 1))
        answers[name] = runtime.run(event)["element_probability"]
    assert not np.array_equal(answers["a"], answers["b"])


def test_no_events_to_calibrate_on(small_onnx: Callable[..., Path], tmp_path: Path):
    with pytest.raises(DatasetError, match="no event with elements to calibrate on"):
        write_int8(tmp_path / "int8.onnx", small_onnx(), [], 10)
    nothing = fake_block(0, 3)
    empty = {
        name: Collection(0 * part.counts, {c: v[:0] for c, v in part.columns.items()})
        for name, part in nothing.collections.items()
    }
    with pytest.raises(DatasetError, match="no event with elements to calibrate on"):
        write_int8(tmp_path / "int8.onnx", small_onnx(), [EventBlock(nothing.event_number, empty)], 10)
    assert not (tmp_path / "int8.onnx").exists()
