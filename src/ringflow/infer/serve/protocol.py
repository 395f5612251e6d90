"""The Open Inference Protocol: from the bytes of a request to tables, and from an answer to bytes.

A body is JSON, followed by the raw values of those tensors that say `binary_data_size`; the header
`Inference-Header-Content-Length` then tells where the JSON ends. Pure functions: whatever is wrong with a request is a
`RequestError`, and nothing that a request claims about itself is believed before it is compared.
"""

from __future__ import annotations

import json
import reprlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

Values = dict[str, npt.NDArray[Any]]

DATATYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "INT64": np.dtype("<i8")}
#: Versions of the model that can be asked for.
VERSION = "1"

_NUMBERS = {int, float, type(None)}
_EITHER_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32


class RequestError(Exception):
    """What is wrong with a request, and the HTTP status that says so."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class TensorSpec(NamedTuple):
    """Name, type and shape of an input or output; -1 is any number."""

    name: str
    datatype: str
    shape: list[int]


@dataclass(frozen=True)
class InferRequest:
    """A request that is well formed."""

    id: str | None
    inputs: Values
    outputs: tuple[tuple[str, bool], ...]  # name, and whether as raw values

    @property
    def rows(self) -> int:
        """Of all inputs together."""
        return sum(map(len, self.inputs.values()))


class _Parameters(BaseModel):
    """Those that mean something to us; of what is not supported only its absence is taken."""

    model_config = ConfigDict(strict=True)

    binary_data: bool | None = None
    binary_data_size: int | None = None
    binary_data_output: bool = False
    classification: None = None
    shared_memory_region: None = None


class _Tensor(BaseModel):
    """One of the inputs or outputs that a request names."""

    model_config = ConfigDict(strict=True)

    name: str
    datatype: str = ""
    shape: Annotated[list[int], Field(max_length=8, fail_fast=True)] = []
    data: list[Any] | None = None
    parameters: _Parameters = _Parameters()


#: Of what is wrong only the first is told: a body may be full of it.
_Tensors = Annotated[list[_Tensor], Field(fail_fast=True)]


class _Body(BaseModel):
    """The JSON of a request."""

    model_config = ConfigDict(strict=True)

    id: str | None = None
    inputs: _Tensors = []
    outputs: _Tensors = []
    parameters: _Parameters = _Parameters()


def shown(value: object) -> str:
    """Whatever a client sent, in a few words."""
    return reprlib.repr(value)


def decompress(body: bytes, encoding: str, most: int) -> bytes:
    """A body as it was before its content encoding, of `most` bytes at most."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise RequestError(f"content encoding {shown(encoding)} is not known; use gzip or deflate", 415)
    stream = zlib.decompressobj(_EITHER_ZLIB_OR_GZIP)
    try:
        plain = stream.decompress(body, most + 1)
    except zlib.error:
        raise RequestError(f"the body is not what content encoding {encoding} says") from None
    if len(plain) > most:
        raise RequestError(f"the decompressed body is larger than {most} bytes", 413)
    if not stream.eof or stream.unused_data:
        raise RequestError(f"the body is not one whole {encoding} stream")
    return plain


def parse(
    body: bytes, header_length: str | None, inputs: Sequence[TensorSpec], outputs: Sequence[str], most_rows: int
) -> InferRequest:
    """The request in a body, if it is one for a model with these inputs and outputs."""
    size = _json_size(body, header_length)
    try:
        asked = _Body.model_validate_json(body[:size])
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, wrong["loc"])) or "the request"
        raise RequestError(f"{where}: {wrong['msg'][:150]}, not {shown(wrong['input'])}") from None
    given, wanted = (
        _named("inputs", asked.inputs, [spec.name for spec in inputs]),
        _named("outputs", asked.outputs, outputs),
    )
    if missing := [spec.name for spec in inputs if spec.name not in given]:
        raise RequestError(
            f"inputs: {missing[0]} is missing; the model takes {', '.join(spec.name for spec in inputs)}"
        )
    for name, datatype, (_, columns) in inputs:
        if (there := given[name].datatype) != datatype:
            raise RequestError(f"{name}: datatype is {shown(there)}, it must be {datatype}")
        if len(shape := given[name].shape) != 2 or shape[0] < 0 or shape[1] != columns:
            raise RequestError(f"{name}: shape is {shown(shape)}, it must be [rows, {columns}]")
    if (rows := sum(tensor.shape[0] for tensor in given.values())) > most_rows:
        raise RequestError(f"the event has {rows} elements; this server takes {most_rows} at most", 413)
    tables = _tables(given, memoryview(body)[size:])
    binary = {name: tensor.parameters.binary_data for name, tensor in wanted.items()} or dict.fromkeys(outputs)
    default = asked.parameters.binary_data_output
    chosen = tuple((name, default if own is None else own) for name, own in binary.items())
    return InferRequest(asked.id, {spec.name: tables[spec.name] for spec in inputs}, chosen)


def write(model: str, request: InferRequest, values: Mapping[str, npt.NDArray[Any]]) -> tuple[list[bytes], int | None]:
    """The parts of the body of an answer, and the length of the JSON if more follows."""
    described, raw = [], []
    for name, binary in request.outputs:
        value = values[name]
        datatype = "FP32" if value.dtype.kind == "f" else "INT64"
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(value.shape)}
        if binary:
            raw.append(value.astype(DATATYPES[datatype], copy=False).tobytes())
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            entry["data"] = value.ravel().tolist()
        described.append(entry)
    answer: dict[str, Any] = {"model_name": model, "model_version": VERSION, "outputs": described}
    if request.id is not None:
        answer["id"] = request.id
    text = json.dumps(answer, allow_nan=False).encode()
    return [text, *raw], len(text) if raw else None


def _json_size(body: bytes, header_length: str | None) -> int:
    if header_length is None:
        return len(body)
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 20):
        raise RequestError(f"Inference-Header-Content-Length is {shown(header_length)}, not a number of bytes")
    if int(header_length) > len(body):
        raise RequestError(f"Inference-Header-Content-Length is {header_length}, the body has {len(body)} bytes")
    return int(header_length)


def _named(what: str, tensors: Sequence[_Tensor], known: Sequence[str]) -> dict[str, _Tensor]:
    """Tensors by their names, which must be known and there once."""
    found: dict[str, _Tensor] = {}
    for tensor in tensors:
        if tensor.name not in known:
            raise RequestError(f"{what}: no tensor {shown(tensor.name)}; the model has {', '.join(known)}")
        if tensor.name in found:
            raise RequestError(f"{what}: {tensor.name} is there twice")
        found[tensor.name] = tensor
    return found


def _tables(given: Mapping[str, _Tensor], raw: memoryview) -> Values:
    """The values of tensors of known shapes, written out or raw, which follow each other as the tensors do."""
    tables: Values = {}
    for name, tensor in given.items():
        rows, columns = tensor.shape
        if (size := tensor.parameters.binary_data_size) is None:
            tables[name] = _from_json(tensor.data, name, (rows, columns))
            continue
        if size != 4 * rows * columns:
            raise RequestError(f"{name}: binary_data_size is {size}, its shape makes {4 * rows * columns} bytes")
        if len(raw) < size:
            raise RequestError(f"{name}: {size} bytes are announced, {len(raw)} are there")
        tables[name] = np.frombuffer(raw[:size], DATATYPES["FP32"]).reshape(rows, columns)
        raw = raw[size:]
    if len(raw):
        raise RequestError(f"{len(raw)} bytes follow that belong to no input")
    return tables


def _from_json(data: list[Any] | None, name: str, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Values that are written out, flat or row by row; null is a missing one, as NaN is."""
    if data is None:
        raise RequestError(f"{name}: neither data nor binary_data_size is given")
    rows = data if data and isinstance(data[0], list) else None
    if rows is not None and any(not isinstance(row, list) or len(row) != shape[1] for row in rows):
        raise RequestError(f"{name}: rows of data must have {shape[1]} values each")
    flat = data if rows is None else list(chain.from_iterable(rows))
    if len(flat) != shape[0] * shape[1]:
        raise RequestError(f"{name}: data has {len(flat)} values, its shape makes {shape[0] * shape[1]}")
    if not set(map(type, flat)) <= _NUMBERS:
        raise RequestError(f"{name}: data has values that are not numbers")
    try:
        with np.errstate(over="ignore"):  # becomes infinite, which is told apart later
            return np.array(flat, np.float64).astype(np.float32).reshape(shape)
    except OverflowError:
        raise RequestError(f"{name}: data has a number that is too large") from None
