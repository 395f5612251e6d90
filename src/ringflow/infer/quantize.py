"""Eight-bit integers in the dense layers of an exported file, with ranges measured on events.

Features, attention products, the first layer (whose inputs have long tails) and decoding stay in float32. Weights take seven
bits: on processors without VNNI instructions sums of eight-bit products overflow, and answers would be off by a fifth.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringflow.base.errors import DatasetError
from ringflow.event.block import EventBlock
from ringflow.infer.description import Description
from ringflow.infer.onnx import write_proto
from ringflow.infer.runtime import EventRuntime, event_values
from ringflow.launch.frameworks import framework

#: Layers by the beginning of the name of their weights.
_QUANTISED = ("model.blocks.", "model.heads.hidden.", "model.embedding.layers.2.")
_PRODUCTS = ("Gemm", "MatMul")
#: Tells ONNX Runtime that nothing has to be done before; else it writes a warning.
_PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")


def write_int8(path: Path, source: Path, blocks: Iterable[EventBlock], events: int) -> Description:
    """Write an exported file once more in int8, calibrated on the first `events` events of some blocks."""
    onnx, quantization = framework("onnx", "onnx"), framework("onnxruntime.quantization", "onnx")
    described = replace(EventRuntime(source).description, precision="int8")
    proto = onnx.load(source)
    proto.metadata_props.add(key=_PREPARED[0], value=_PREPARED[1])
    _tell_types(onnx, proto)
    with tempfile.TemporaryDirectory(prefix="ringflow-int8-") as folder:
        made = Path(folder) / "int8.onnx"
        quantization.quantize_static(
            proto,
            made,
            _reader(quantization, blocks, described, events),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            op_types_to_quantize=list(_PRODUCTS),
            nodes_to_quantize=_dense_layers(proto),
        )
        write_proto(path, onnx.load(made), described)
    return described


def _tell_types(onnx: Any, proto: Any) -> None:
    """Say what operations outside of the standard give: from there on the types of all others follow."""
    made = [name for node in proto.graph.node if node.domain for name in node.output]
    kind = onnx.TensorProto.FLOAT
    proto.graph.value_info.extend(onnx.helper.make_tensor_value_info(name, kind, None) for name in made)


def _dense_layers(proto: Any) -> list[str]:
    """Names of the operations that multiply with the weights of a layer."""
    return [
        node.name
        for node in proto.graph.node
        if node.op_type in _PRODUCTS and any(name.startswith(_QUANTISED) for name in node.input)
    ]


def _reader(quantization: Any, blocks: Iterable[EventBlock], described: Description, events: int) -> Any:
    """The events as the calibration wants them: one after the other, then None."""
    values = _values(blocks, described, events)
    first = next(values, None)
    if first is None:
        raise DatasetError("no event with elements to calibrate on; give a dataset that has some")

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            nonlocal first
            given, first = first, None
            return given or next(values, None)

    return Reader()


def _values(blocks: Iterable[EventBlock], described: Description, events: int) -> Iterator[dict[str, Any]]:
    """Events that have elements."""
    for block in blocks:
        for event in event_values(block, described.inputs):
            if events == 0:
                return
            if any(map(len, event.values())):
                events -= 1
                yield event
