"""The unmodified client of Triton against the server: it sees a model, and every answer is the one to its own request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from fixtures.fake_events import fake_block
from fixtures.serving import Event, Running, events_of, running, same_answer, served_by_torch
from ringflow.infer.runtime import OnnxSession
from ringflow.infer.serve.served import BatchSettings, ServedModel
from ringflow.models.file import LoadedModel


@pytest.fixture(scope="module")
def served(small_model: Callable[..., Any]) -> ServedModel:
    return served_by_torch(small_model())


@pytest.fixture(scope="module")
def server(served: ServedModel) -> Iterator[Running]:
    with running(served) as one:
        yield one


@pytest.fixture
def client(server: Running) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.where) as one:
        yield one


def inputs(event: Event, binary: bool = True) -> list[InferInput]:
    made = []
    for kind, table in event.items():
        made.append(InferInput(kind, list(table.shape), "FP32"))
        made[-1].set_data_from_numpy(table, binary_data=binary)
    return made


def answer(served: ServedModel, result: Any) -> dict[str, np.ndarray]:
    return {spec.name: result.as_numpy(spec.name) for spec in served.outputs}


@pytest.fixture
def event(served: ServedModel) -> Event:
    """One with candidates."""
    return next(e for e in events_of(served, fake_block(0, 20)) if len(served.compute([e])[0]["candidate_label"]) > 2)


def test_health_and_metadata(client: InferenceServerClient, served: ServedModel) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    asked = [("ringflow", ""), ("ringflow", "1"), ("ringflow", "2"), ("other", "")]
    assert [client.is_model_ready(*one) for one in asked] == [True, True, False, False]
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata("ringflow") == client.get_model_metadata("ringflow", "1") == served.metadata()
    assert client.get_model_config("ringflow") == served.config()
    index = client.get_model_repository_index()
    assert index == [{"name": "ringflow", "version": "1", "state": "READY", "reason": ""}]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_infer(
    client: InferenceServerClient, served: ServedModel, event: Event, binary_in: bool, binary_out: bool
) -> None:
    event["cluster"][0, -1] = np.nan  # missing, in JSON too
    asked = [InferRequestedOutput(spec.name, binary_data=binary_out) for spec in served.outputs]
    result = client.infer("ringflow", inputs(event, binary_in), outputs=asked, request_id="mine")
    expected = served.compute([event])[0]
    assert len(expected["candidate_label"]) > 0
    assert same_answer(answer(served, result), expected)
    assert [answer(served, result)[name].dtype for name in expected] == [value.dtype for value in expected.values()]
    said = result.get_response()
    assert (said["id"], said["model_name"], said["model_version"]) == ("mine", "ringflow", "1")


def test_outputs_as_asked_for(client: InferenceServerClient, served: ServedModel, event: Event) -> None:
    everything = client.infer("ringflow", inputs(event), model_version="1")
    assert [output["name"] for output in everything.get_response()["outputs"]] == [s.name for s in served.outputs]
    asked = [InferRequestedOutput("candidate_momentum"), InferRequestedOutput("candidate_label", binary_data=False)]
    two = client.infer("ringflow", inputs(event), outputs=asked)
    assert [output["name"] for output in two.get_response()["outputs"]] == ["candidate_momentum", "candidate_label"]
    assert all(np.allclose(two.as_numpy(one.name()), everything.as_numpy(one.name())) for one in asked)


@pytest.mark.parametrize("binary", [True, False])
def test_an_event_of_nothing(client: InferenceServerClient, served: ServedModel, event: Event, binary: bool) -> None:
    nothing = {kind: table[:0] for kind, table in event.items()}
    result = client.infer("ringflow", inputs(nothing, binary))
    assert [answer(served, result)[spec.name].size for spec in served.outputs] == [0] * 5
    assert result.get_output("candidate_momentum")["shape"] == [0, 4]


@pytest.mark.parametrize("how", ["gzip", "deflate"])
def test_compressed(client: InferenceServerClient, served: ServedModel, event: Event, how: str) -> None:
    result = client.infer(
        "ringflow", inputs(event), request_compression_algorithm=how, response_compression_algorithm=how
    )
    assert same_answer(answer(served, result), served.compute([event])[0])


def test_errors(client: InferenceServerClient, served: ServedModel, event: Event) -> None:
    broken = {kind: table.copy() for kind, table in event.items()}
    broken["track"][0, 0] = np.nan
    for model, version, given, status, message in (
        ("other", "", event, "404", "no model 'other'; this server has ringflow"),
        ("ringflow", "2", event, "404", "no version '2' of ringflow; there is 1"),
        ("ringflow", "", {"track": event["track"]}, "400", "cluster is missing"),
        ("ringflow", "", broken, "400", "track: row 0 has nan in column pt"),
    ):
        with pytest.raises(InferenceServerException, match=message) as caught:
            client.infer(model, inputs(given), model_version=version)
        assert caught.value.status() == status
    with pytest.raises(InferenceServerException, match="Not Found"):
        client.get_log_settings()


def test_absurd_momenta_are_refused(small_model: Callable[..., Any]) -> None:
    loaded = small_model()
    served = served_by_torch(LoadedModel(loaded.model, 0.0, loaded.card))  # every element is a candidate
    event = events_of(served, fake_block(0, 1))[0]
    event["track"][0, [column.name for column in served.description.inputs["track"]].index("eta")] = 1e9
    with running(served) as server, InferenceServerClient(server.where) as client:
        with pytest.raises(InferenceServerException, match="infinite momentum") as caught:
            client.infer("ringflow", inputs(event))
        assert caught.value.status() == "400"
        event["track"] = event["track"][1:]
        assert len(client.infer("ringflow", inputs(event)).as_numpy("candidate_label")) == sum(map(len, event.values()))


def ask_many(server: Running, served: ServedModel, clients: int, requests: int, same: Any) -> None:
    """Clients that ask at the same time for different events; every answer must be that of the event."""
    events = events_of(served, fake_block(0, 24))
    expected = [served.compute([event])[0] for event in events]

    def ask(which: int) -> int:
        right = 0
        with InferenceServerClient(server.where) as client:
            for turn in range(requests):
                number = (5 * which + 7 * turn) % len(events)
                name = f"{which}-{turn}"
                result = client.infer("ringflow", inputs(events[number], binary=turn % 5 != 0), request_id=name)
                there = answer(served, result)
                right += result.get_response()["id"] == name and same(there, expected[number])
        return right

    with ThreadPoolExecutor(clients) as pool:
        assert list(pool.map(ask, range(clients))) == [requests] * clients


def test_nobody_gets_the_answer_of_another(server: Running, served: ServedModel) -> None:
    ask_many(server, served, clients=8, requests=40, same=same_answer)


def test_the_same_with_onnx(small_onnx: Callable[..., Path]) -> None:
    session = OnnxSession(small_onnx())
    served = ServedModel("ringflow", session, session.description, "onnx")
    with running(served, BatchSettings(workers=2, max_elements=64)) as server:
        ask_many(server, served, clients=6, requests=30, same=exactly_same)


def exactly_same(here: dict[str, np.ndarray], there: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(here[name], value) for name, value in there.items())


def test_metrics(small_model: Callable[..., Any]) -> None:
    served = served_by_torch(small_model())
    event = events_of(served, fake_block(0, 1))[0]
    rows = sum(map(len, event.values()))
    with running(served) as server, InferenceServerClient(server.where) as client:
        client.infer("ringflow", inputs(event))
        with pytest.raises(InferenceServerException):
            client.infer("other", inputs(event))
        text = server.say(b"GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").decode()
    for line in (
        'ringflow_requests_total{status="200"} 1.0',
        'ringflow_requests_total{status="404"} 1.0',
        "ringflow_request_seconds_count 2.0",
        "ringflow_queue_requests 0.0",
        "ringflow_batch_events_sum 1.0",
        f"ringflow_batch_elements_sum {float(rows)}",
        "ringflow_computed_events_total 1.0",
        f"ringflow_computed_elements_total {float(rows)}",
    ):
        assert line in text
    assert 'detector="fake"' in text
    assert "process_resident_memory_bytes" in text
