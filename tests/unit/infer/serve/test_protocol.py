"""The protocol as pure functions: what is well formed comes out as it went in, and whatever is not is a RequestError."""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.serving import request_body
from ringflow.infer.serve.protocol import RequestError, TensorSpec, decompress, parse, write

INPUTS = (TensorSpec("track", "FP32", (-1, 3)), TensorSpec("cluster", "FP32", (-1, 2)))
OUTPUTS = ("candidate_label", "candidate_momentum")
EVENT = {
    "track": np.array([[1, 2, np.nan], [4, 5, 6]], np.float32),
    "cluster": np.array([[0.5, -1]], np.float32),
}


def parsed(body: bytes, json_size: int | str | None = None, most: int = 100) -> Any:
    return parse(body, None if json_size is None else str(json_size), INPUTS, OUTPUTS, most)


def written_out(**changed: Any) -> dict[str, Any]:
    """A request with its values in the JSON."""
    inputs = [
        {"name": kind, "shape": list(table.shape), "datatype": "FP32", "data": table.ravel().tolist()}
        for kind, table in EVENT.items()
    ]
    return {"inputs": inputs, **changed}


def with_track(**changed: Any) -> bytes:
    """A request whose first input differs; None takes a field away."""
    asked = written_out()
    track = {**asked["inputs"][0], **changed}
    asked["inputs"][0] = {key: value for key, value in track.items() if value is not None}
    return json.dumps(asked).encode()


@pytest.mark.parametrize("data", ["raw", "flat", "nested"])
def test_values_come_out_as_they_went_in(data: str) -> None:
    asked = written_out(id="a")
    if data == "nested":
        asked["inputs"][0]["data"] = [[1, 2, None], [4, 5, 6]]
    asked["inputs"].reverse()
    request = parsed(*request_body(EVENT, id="a")) if data == "raw" else parsed(json.dumps(asked).encode())
    assert (request.id, request.rows, list(request.inputs)) == ("a", 3, ["track", "cluster"])
    assert all(np.array_equal(request.inputs[kind], table, equal_nan=True) for kind, table in EVENT.items())
    assert request.inputs["track"].dtype == np.float32
    assert request.outputs == (("candidate_label", False), ("candidate_momentum", False))


def test_a_number_that_is_too_large_is_infinite() -> None:
    """Which the model refuses."""
    assert np.isinf(parsed(with_track(data=[10**400] * 6)).inputs["track"]).all()


def test_an_event_of_nothing() -> None:
    nothing = {kind: table[:0] for kind, table in EVENT.items()}
    empty = [
        {"name": kind, "shape": [0, n], "datatype": "FP32", "data": []} for kind, n in (("track", 3), ("cluster", 2))
    ]
    for request in (parsed(*request_body(nothing)), parsed(json.dumps({"inputs": empty}).encode())):
        assert [table.shape for table in request.inputs.values()] == [(0, 3), (0, 2)]


def test_an_answer_has_the_outputs_in_the_order_asked_for() -> None:
    values = {"candidate_label": np.array([2, 1]), "candidate_momentum": np.arange(8, dtype=np.float32).reshape(2, 4)}
    asked = [{"name": "candidate_momentum"}, {"name": "candidate_label", "parameters": {"binary_data": False}}]
    request = parsed(*request_body(EVENT, id="x", outputs=asked, parameters={"binary_data_output": True}))
    parts, size = write("m", request, values)
    assert size == len(parts[0])
    said = json.loads(parts[0])
    assert (said["id"], said["model_name"], said["model_version"]) == ("x", "m", "1")
    assert said["outputs"] == [
        {"name": "candidate_momentum", "datatype": "FP32", "shape": [2, 4], "parameters": {"binary_data_size": 32}},
        {"name": "candidate_label", "datatype": "INT64", "shape": [2], "data": [2, 1]},
    ]
    assert parts[1:] == [values["candidate_momentum"].tobytes()]
    only_json, none = write("m", parsed(*request_body(EVENT)), values)
    assert (len(only_json), none, "id" in json.loads(only_json[0])) == (1, None, False)


BAD_JSON = {
    b"": "Invalid JSON",
    b"{": "Invalid JSON",
    b"[]": "the request",
    b"\xff\xfe{}": "Invalid JSON",
    b'{"inputs": ' + b"[" * 1000: "recursion limit",
    b'{"inputs": ' + b"9" * 10_000 + b"}": "Invalid JSON",
    b'{"inputs": 3}': "inputs: .*not 3",
    b'{"inputs": [3]}': "inputs.0",
    b'{"inputs": [{"name": ["track"]}]}': "inputs.0.name",
    b"{}": "track is missing",
    json.dumps(written_out(id=7)).encode(): "id: .*not 7",
    json.dumps(written_out(outputs=[{"name": "energy"}])).encode(): "no tensor 'energy'; the model has candidate_label",
    json.dumps(written_out(outputs=[{"name": "candidate_label"}] * 2)).encode(): "candidate_label is there twice",
    json.dumps(written_out(parameters=[])).encode(): "parameters",
    json.dumps(written_out(parameters={"binary_data_output": 1})).encode(): "binary_data_output: .*not 1",
    json.dumps(
        written_out(outputs=[{"name": "candidate_label", "parameters": {"classification": 2}}])
    ).encode(): "outputs.0.parameters.classification",
    json.dumps({"inputs": written_out()["inputs"][:1]}).encode(): "cluster is missing; the model takes track, cluster",
    json.dumps({"inputs": written_out()["inputs"] * 2}).encode(): "track is there twice",
    with_track(name="muon"): "no tensor 'muon'",
    with_track(datatype="FP64"): "datatype is 'FP64', it must be FP32",
    with_track(datatype=None): "datatype is ''",
    with_track(shape=None): "shape is \\[\\]",
    with_track(shape=[2, 4]): "it must be \\[rows, 3\\]",
    with_track(shape=[-2, 3]): "it must be \\[rows, 3\\]",
    with_track(shape=[2.0, 3]): "inputs.0.shape.0: .*not 2.0",
    with_track(shape=[True, 3]): "inputs.0.shape.0: .*not True",
    with_track(shape=[2, 3, 1]): "it must be",
    with_track(shape=[10**30, 3]): "this server takes 100 at most",
    with_track(shape=[3, 3]): r"data has the shape \[6\], it must be \[3, 3\], or flat",
    with_track(data=None): "track: neither data",
    with_track(data="123456"): "inputs.0.data",
    with_track(data=["1"] * 6): "valid number",
    with_track(data=[True] * 6): "valid number",
    with_track(data=[[1, 2], [3, 4], [5, 6]]): "data has the shape",
    with_track(data=[[1, 2, 3], [4, 5]]): "rows of data must have 3 values each",
    with_track(data=[[1, 2, 3], 4]): "inputs.0.data",
    with_track(data=[[[1], 2, 3], [4, 5, 6]]): "inputs.0.data",
    with_track(data=[], parameters={"binary_data_size": 24}): "24 bytes are announced, 0 are there",
    with_track(parameters={"binary_data_size": -24}): "its shape makes 24 bytes",
    with_track(parameters={"binary_data_size": 24.0}): "inputs.0.parameters.binary_data_size",
    with_track(parameters={"shared_memory_region": "mine"}): "inputs.0.parameters.shared_memory_region",
    with_track(parameters=3): "inputs.0.parameters: .*not 3",
}


@pytest.mark.parametrize("body", BAD_JSON, ids=range(len(BAD_JSON)))
def test_what_is_wrong_is_named(body: bytes) -> None:
    with pytest.raises(RequestError, match=BAD_JSON[body]) as caught:
        parsed(body)
    assert caught.value.status_code == (413 if "at most" in BAD_JSON[body] else 400)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body, size: (body, size - 1), "Invalid JSON"),
        (lambda body, size: (body, size + 1), "Invalid JSON"),
        (lambda body, size: (body, len(body) + 1), "the body has"),
        (lambda body, size: (body, "-1"), "Inference-Header-Content-Length is"),
        (lambda body, size: (body, "1e3"), "Inference-Header-Content-Length is"),
        (lambda body, size: (body, "9" * 5000), "Inference-Header-Content-Length is"),
        (lambda body, size: (body[:-1], size), "8 bytes are announced, 7 are there"),
        (lambda body, size: (body + b"abc", size), "3 bytes follow that belong to no input"),
        (lambda body, size: (body, None), "Invalid JSON"),
    ],
)
def test_lengths_that_do_not_fit(change: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parsed(*change(*request_body(EVENT)))


def test_elements_are_counted_over_all_inputs() -> None:
    body, size = request_body(EVENT)
    assert parsed(body, size, most=3).rows == 3
    with pytest.raises(RequestError, match="the event has 3 elements; this server takes 2 at most") as caught:
        parsed(body, size, most=2)
    assert caught.value.status_code == 413


@given(st.binary(max_size=200), st.none() | st.text(max_size=4))
def test_noise_is_refused(body: bytes, size: str | None) -> None:
    with pytest.raises(RequestError):
        parsed(body, size)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.sampled_from(["track", "cluster", "FP32", "data"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "shape", "datatype", "data", "parameters", "binary_data_size"]), inner
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["inputs", "outputs", "id", "parameters"]), _JSON))
def test_json_of_any_form_is_refused_or_taken(asked: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        parsed(json.dumps(asked).encode())
    complete = {**asked, "inputs": written_out()["inputs"]}
    with suppress(RequestError):
        assert parsed(json.dumps(complete).encode()).rows == 3


def test_compressed_bodies() -> None:
    plain = b"abc" * 1000
    packed = {"gzip": gzip.compress(plain), "deflate": zlib.compress(plain), "identity": plain}
    assert all(decompress(body, encoding, 3000) == plain for encoding, body in packed.items())
    with pytest.raises(RequestError, match="larger than 2999 bytes") as caught:
        decompress(zlib.compress(plain), "deflate", 2999)
    assert caught.value.status_code == 413
    with pytest.raises(RequestError, match="not known; use gzip or deflate") as caught:
        decompress(plain, "br", 3000)
    assert caught.value.status_code == 415
    for broken in (b"", b"abc", gzip.compress(plain)[:-5], gzip.compress(plain) + b"more"):
        with pytest.raises(RequestError, match=r"not one whole gzip stream|not what content encoding gzip says"):
            decompress(broken, "gzip", 3000)
