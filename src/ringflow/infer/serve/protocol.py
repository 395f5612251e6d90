"""The Open Inference Protocol: from the bytes of a request to tables, and from an answer to bytes.

A body is JSON, followed by the raw values of those tensors that say `binary_data_size`; the header
`Inference-Header-Content-Length` then tells where the JSON ends. Pure functions: whatever is wrong with a request is a
`RequestError`, and nothing that a request claims about itself is believed before it is compared.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException

Values = dict[str, npt.NDArray[Any]]

DATATYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "INT64": np.dtype("<i8")}
#: Versions of the model that can be asked for.
VERSION = "1"
_EITHER_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32
#: Commas, lists, objects and their keys of a request beside the values of its event.
_SPARE = 4096
_COUNTED_AT_ONCE = 1 << 20


class RequestError(HTTPException):
    """What is wrong with a request, and the HTTP status that says so."""

    def __init__(self, message: str, status: int = 400) -> None:
        # Of 408 and 413 the body may not have been read to its end.
        headers = {503: {"Retry-After": "1"}, 408: {"Connection": "close"}, 413: {"Connection": "close"}}
        super().__init__(status, message, headers.get(status))


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


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Parameters(_Strict):
    """Those that mean something to us; of what is not supported only its absence is taken."""

    binary_data: bool | None = None
    binary_data_size: int | None = None
    binary_data_output: bool = False
    classification: None = None
    shared_memory_region: None = None


#: Of what is wrong only the first is told: a body may be full of it.
_FIRST = Field(fail_fast=True)
_Numbers = Annotated[list[float | None], _FIRST]  # null is a missing one, as NaN is


class _Tensor(_Strict):
    """One of the inputs or outputs that a request names."""

    name: str
    datatype: str = ""
    shape: Annotated[list[int], Field(max_length=8, fail_fast=True)] = []
    data: _Numbers | Annotated[list[_Numbers], _FIRST] | None = None  # flat, or row by row
    parameters: _Parameters = _Parameters()


class _Body(_Strict):
    """The JSON of a request."""

    id: str | None = None
    inputs: Annotated[list[_Tensor], _FIRST] = []
    outputs: Annotated[list[_Tensor], _FIRST] = []
    parameters: _Parameters = _Parameters()


def decompress(body: bytes | bytearray, encoding: str, most: int) -> bytes | bytearray:
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
    body: bytes | bytearray,
    header_length: str | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    most_rows: int,
) -> InferRequest:
    """The request in a body, if it is one for a model with these inputs and outputs."""
    length = str(len(body)) if header_length is None else header_length
    if not (length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= len(body)):
        raise RequestError(f"Inference-Header-Content-Length is {shown(length)}, the body has {len(body)} bytes")
    size = int(length)
    _require_bounded(memoryview(body)[:size], most_rows, max(spec.shape[1] for spec in inputs))
    try:
        asked = _Body.model_validate_json(body[:size])
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, wrong["loc"])) or "the request"
        found = "" if wrong["type"] == "json_invalid" else f", not {shown(wrong['input'])}"
        raise RequestError(f"{where}: {wrong['msg'][:150]}{found}") from None
    taken = [spec.name for spec in inputs]
    given, wanted = _named("inputs", asked.inputs, taken), _named("outputs", asked.outputs, outputs)
    if missing := [name for name in taken if name not in given]:
        raise RequestError(f"inputs: {missing[0]} is missing; the model takes {', '.join(taken)}")
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
    return InferRequest(asked.id, {name: tables[name] for name in taken}, chosen)


def _require_bounded(text: memoryview, rows: int, columns: int) -> None:
    """Refuse JSON of more parts than the largest event has: objects take many times the bytes that they are written in."""
    most = {b",": rows * columns + _SPARE, b"[": rows + _SPARE, b"{": _SPARE, b":": _SPARE}
    counts = dict.fromkeys(most, 0)
    for first in range(0, len(text), _COUNTED_AT_ONCE):
        part = np.frombuffer(text[first : first + _COUNTED_AT_ONCE], np.uint8)
        for letter in counts:
            counts[letter] += int(np.count_nonzero(part == ord(letter)))
            if counts[letter] > most[letter]:
                what = f"more than {most[letter]} of {letter.decode()!r}"
                raise RequestError(f"the JSON of the request has {what}; send values as binary tensors", 413)


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


def _from_json(data: Sequence[Any] | None, name: str, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    if data is None:
        raise RequestError(f"{name}: neither data nor binary_data_size is given")
    try:
        with np.errstate(over="ignore"):  # becomes infinite, which is told apart later
            values = np.array(data, np.float64).astype(np.float32)
    except ValueError:
        raise RequestError(f"{name}: rows of data must have {shape[1]} values each") from None
    if values.size != shape[0] * shape[1] or (values.ndim == 2 and len(values) and values.shape != shape):
        raise RequestError(f"{name}: data has the shape {list(values.shape)}, it must be {list(shape)}, or flat")
    return values.reshape(shape)
