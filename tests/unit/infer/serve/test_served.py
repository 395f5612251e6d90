"""Several events at a time give what each gives alone, on both engines, and values that break are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.fake_events import fake_block
from fixtures.serving import Event, events_of, same_answer, served_by_torch
from ringflow.infer.runtime import EventRuntime, OnnxSession
from ringflow.infer.serve.protocol import RequestError
from ringflow.infer.serve.served import ServedModel

NAMES = ["candidate_label", "candidate_charge", "candidate_momentum", "candidate_track"]


def holes(served: ServedModel, events: list[Event]) -> list[Event]:
    """Events without some of the values that may be missing: single ones, whole columns, and one event of nothing."""
    rng = np.random.default_rng(3)
    for number, event in enumerate(events):
        for kind, columns in served.description.inputs.items():
            for place, column in enumerate(columns):
                if not column.required and number % 3:
                    event[kind][rng.random(len(event[kind])) < (0.3 if number % 3 == 1 else 1.0), place] = np.nan
    return [*events, {kind: table[:0] for kind, table in events[0].items()}]


@pytest.mark.parametrize(("backbone", "calorimeter"), [("attention", "cluster"), ("graph", "cluster"), ("mlp", "hit")])
def test_a_batch_gives_what_each_event_gives_alone(
    backbone: str, calorimeter: str, small_model: Callable[..., Any]
) -> None:
    served = served_by_torch(small_model(backbone, calorimeter))
    events = holes(served, events_of(served, fake_block(0, 9)))
    together = served.compute(events)
    alone = [served.compute([event])[0] for event in events]
    assert sum(len(answer["candidate_label"]) for answer in alone) > 5
    assert all(same_answer(*pair) for pair in zip(together, alone, strict=True))
    assert [len(value) for value in together[-1].values()] == [0] * 5


def test_onnx_answers_as_the_file_does(small_onnx: Callable[..., Path]) -> None:
    path = small_onnx("mlp", "hit")
    session, runtime = OnnxSession(path), EventRuntime(path)
    served = ServedModel("ringflow", session, session.description, "onnx")
    events = holes(served, events_of(served, fake_block(0, 9)))
    names = [*NAMES, "candidate_hit"]
    for event, answer in zip(events, served.compute(events), strict=True):
        expected = runtime.run(event, names)
        assert list(answer) == names == [spec.name for spec in served.outputs]
        for spec in served.outputs:
            assert np.array_equal(answer[spec.name], expected[spec.name])
            assert answer[spec.name].dtype == expected[spec.name].dtype


def test_a_hit_is_named_by_its_row(small_model: Callable[..., Any]) -> None:
    served = served_by_torch(small_model("mlp", "hit"))
    events = events_of(served, fake_block(0, 6))
    for event, answer in zip(events, served.compute(events), strict=True):
        on_hit = answer["candidate_hit"] >= 0
        assert np.array_equal(on_hit, answer["candidate_track"] < 0)
        rows = answer["candidate_hit"][on_hit]
        assert len(set(rows.tolist())) == len(rows)
        assert (rows < len(event["hit"])).all()
    assert any((answer["candidate_hit"] > 3).any() for answer in served.compute(events))


@pytest.mark.parametrize(
    ("kind", "column", "value", "allowed"),
    [
        *(("track", "pt", value, "values are finite") for value in (np.nan, np.inf, -np.inf, 3e38)),
        ("track", "calo_x", np.nan, "values are finite"),
        ("cluster", "time", np.inf, "finite and below 1e\\+09, or NaN for missing"),
        ("cluster", "time", np.nan, None),
    ],
)
def test_values_from_which_no_element_can_be_made(
    kind: str, column: str, value: float, allowed: str | None, small_model: Callable[..., Any]
) -> None:
    served = served_by_torch(small_model())
    event = next(event for event in events_of(served, fake_block(0, 9)) if min(map(len, event.values())) > 1)
    place = [known.name for known in served.description.inputs[kind]].index(column)
    event[kind][1, place] = value
    if allowed is None:
        served.check(event)
        return
    said = re.escape(f"{kind}: row 1 has {value:.6g} in column {column}; ")
    with pytest.raises(RequestError, match=said + f".*{allowed}"):
        served.check(event)


def test_values_as_large_as_may_be_spoil_no_neighbour(small_model: Callable[..., Any]) -> None:
    for backbone in ("attention", "kernel", "graph"):
        served = served_by_torch(small_model(backbone))
        first, absurd, last = events_of(served, fake_block(0, 3))
        expected = served.compute([first, last])
        for sign in (1, -1):
            for table in absurd.values():
                table[:] = sign * 1e9
            served.check(absurd)
            there = served.compute([first, absurd, last])
            assert same_answer(there[0], expected[0])
            assert same_answer(there[2], expected[1])


def test_what_it_says_of_itself(small_model: Callable[..., Any]) -> None:
    served = served_by_torch(small_model())
    said = served.metadata()
    assert said["inputs"][0] == {"name": "track", "datatype": "FP32", "shape": [-1, 23]}
    assert said["outputs"][2] == {"name": "candidate_momentum", "datatype": "FP32", "shape": [-1, 4]}
    parameters = said["parameters"]
    assert {"name": "pt", "unit": "GeV"}.items() <= parameters["columns"]["track"][0].items()
    assert (parameters["threshold"], parameters["detector"]) == (0.5, "fake")
    configured = served.config()
    assert configured["input"][1] == {"name": "cluster", "data_type": "TYPE_FP32", "dims": [-1, 28]}
    assert (configured["parameters"]["detector"], configured["max_batch_size"]) == ({"string_value": "fake"}, 0)
    served.warm_up()
