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
from typing import Any

import numpy as np
import numpy.typing as npt

Values = dict[str, npt.NDArray[Any]]

DATATYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "INT64": np.dtype("<i8")}
#: Versions of the model that can be asked for.
VERSION = "1"

_NUMBERS = {int, float, type(None)}
_EITHER_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32
_UNSUPPORTED = ("shared_memory_region", "classification")


class RequestError(Exception):
    """What is wrong with a request, and the HTTP status that says so."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class TensorSpec:
    """Name, type and shape of an input or output; -1 is any number."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """As the metadata of a model has it."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


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
    asked = _json_object(body[:size])
    given = asked.get("id")
    if given is not None and not isinstance(given, str):
        raise RequestError(f"id is {shown(given)}, not a text")
    tables = _tables(asked, memoryview(body)[size:], {spec.name: spec for spec in inputs}, most_rows)
    return InferRequest(given, {spec.name: tables[spec.name] for spec in inputs}, _outputs(asked, outputs))


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


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"))
    except UnicodeDecodeError:
        raise RequestError("the request is not UTF-8") from None
    except RecursionError:
        raise RequestError("the request is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the request is not JSON: {str(error)[:100]}") from None
    if not isinstance(value, dict):
        raise RequestError("the request is not a JSON object")
    return value


def _named(asked: Mapping[str, Any], key: str, known: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """The tensors of a list by their names, which must be known and there once."""
    listed = asked.get(key, [])
    if not isinstance(listed, list):
        raise RequestError(f"{key} is {shown(listed)}, not a list")
    found: dict[str, Mapping[str, Any]] = {}
    for entry in listed:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in known:
            raise RequestError(f"{key}: no tensor {shown(name)}; the model has {', '.join(known)}")
        if name in found:
            raise RequestError(f"{key}: {name} is there twice")
        found[name] = entry
    return found


def _parameters(entry: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    parameters = entry.get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError(f"parameters of {what} are {shown(parameters)}, not an object")
    if unsupported := next((name for name in _UNSUPPORTED if name in parameters), None):
        raise RequestError(f"{what}: {unsupported} is not supported")
    return parameters


def _outputs(asked: Mapping[str, Any], known: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    """What is asked for, in that order; all unless something is."""
    all_binary = _flag(_parameters(asked, "the request"), "binary_data_output", False)
    wanted = _named(asked, "outputs", known) or {name: {} for name in known}
    return tuple((name, _flag(_parameters(entry, name), "binary_data", all_binary)) for name, entry in wanted.items())


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {shown(value)}, not true or false")
    return value


def _tables(asked: Mapping[str, Any], raw: memoryview, specs: Mapping[str, TensorSpec], most_rows: int) -> Values:
    entries = _named(asked, "inputs", list(specs))
    if missing := [name for name in specs if name not in entries]:
        raise RequestError(f"inputs: {missing[0]} is missing; the model takes {', '.join(specs)}")
    shapes = {name: _shape(entry, specs[name]) for name, entry in entries.items()}
    if (rows := sum(shape[0] for shape in shapes.values())) > most_rows:
        raise RequestError(f"the event has {rows} elements; this server takes {most_rows} at most", 413)
    tables: Values = {}
    for name, entry in entries.items():
        size = _parameters(entry, name).get("binary_data_size")
        if size is None:
            tables[name] = _from_json(entry.get("data"), name, shapes[name])
            continue
        expected = 4 * shapes[name][0] * shapes[name][1]
        if type(size) is not int or size != expected:
            raise RequestError(f"{name}: binary_data_size is {shown(size)}, its shape makes {expected} bytes")
        if len(raw) < size:
            raise RequestError(f"{name}: {size} bytes are announced, {len(raw)} are there")
        tables[name] = np.frombuffer(raw[:size], DATATYPES["FP32"]).reshape(shapes[name])
        raw = raw[size:]
    if len(raw):
        raise RequestError(f"{len(raw)} bytes follow that belong to no input")
    return tables


def _shape(entry: Mapping[str, Any], spec: TensorSpec) -> tuple[int, int]:
    if entry.get("datatype") != spec.datatype:
        raise RequestError(f"{spec.name}: datatype is {shown(entry.get('datatype'))}, it must be {spec.datatype}")
    shape, columns = entry.get("shape"), spec.shape[1]
    if not isinstance(shape, list) or len(shape) != 2 or any(type(axis) is not int for axis in shape):
        raise RequestError(f"{spec.name}: shape is {shown(shape)}, it must be [rows, {columns}]")
    if shape[0] < 0 or shape[1] != columns:
        raise RequestError(f"{spec.name}: shape is {shown(shape)}, it must be [rows, {columns}]")
    return shape[0], columns


def _from_json(data: Any, name: str, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Values that are written out, flat or row by row; null is a missing one, as NaN is."""
    if not isinstance(data, list):
        raise RequestError(f"{name}: data is {shown(data)}, not a list")
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
