"""More than the server can do: it says so at once, keeps what it accepted, and stops when everyone is answered."""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fixtures.fake_events import fake_block
from fixtures.serving import (
    PATIENCE,
    Event,
    Running,
    events_of,
    post,
    request_body,
    running,
    served_by_torch,
    status_and_json,
)
from ringflow.infer.serve import app
from ringflow.infer.serve.app import Limits
from ringflow.infer.serve.protocol import Values
from ringflow.infer.serve.served import BatchSettings, ServedModel


class Gated:
    """A model that computes when the gate is open, and breaks at the event that is marked."""

    def __init__(self, served: ServedModel) -> None:
        self.served, self.gate, self.begun = served, threading.Event(), threading.Semaphore(0)
        self.broken_rows = -1
        self.batches: list[int] = []
        self._compute = served.compute
        served.compute = self.compute  # type: ignore[method-assign]

    def compute(self, events: Sequence[Any]) -> list[Values]:
        self.batches.append(len(events))
        self.begun.release()
        assert self.gate.wait(PATIENCE)
        if any(len(event["track"]) == self.broken_rows for event in events):
            raise RuntimeError("a broken event")
        return self._compute(events)

    def wait_until_computing(self) -> None:
        assert self.begun.acquire(timeout=PATIENCE)


@pytest.fixture
def gated(small_model: Callable[..., Any]) -> Gated:
    return Gated(served_by_torch(small_model()))


@pytest.fixture
def events(gated: Gated) -> list[Event]:
    return events_of(gated.served, fake_block(0, 8))


def ask(pool: ThreadPoolExecutor, server: Running, event: Event, **more: Any) -> Future[bytes]:
    return pool.submit(server.say, post(*request_body(event, **more)))


def waiting(server: Running) -> int:
    return len(server.application._batcher)


def test_a_full_queue_says_when_to_come_again(gated: Gated, events: list[Event]) -> None:
    with ThreadPoolExecutor(8) as pool, running(gated.served, BatchSettings(max_waiting=2)) as server:
        accepted = [ask(pool, server, events[0], id="0")]
        gated.wait_until_computing()
        accepted += [ask(pool, server, events[number], id=str(number)) for number in (1, 2)]
        server.wait_until(lambda: waiting(server) == 2)
        refused = server.say(post(*request_body(events[3])))
        assert b"retry-after: 1\r\n" in refused.lower()
        assert status_and_json(refused) == (503, {"error": "as many requests wait as may; try again"})
        gated.gate.set()
        answers = [status_and_json(answer.result(PATIENCE)) for answer in accepted]
    assert sorted((status, said["id"]) for status, said in answers) == [(200, "0"), (200, "1"), (200, "2")]


def test_an_answer_that_comes_too_late(gated: Gated, events: list[Event]) -> None:
    with running(gated.served, limits=Limits(timeout=0.3)) as server:
        first, second = (server.say(post(*request_body(event))) for event in events[:2])
        assert status_and_json(first)[0] == status_and_json(second)[0] == 504
        assert waiting(server) == 0  # who gave up leaves the queue
        gated.gate.set()
        assert status_and_json(server.say(post(*request_body(events[2]))))[0] == 200
    assert gated.batches == [1, 1]


def test_who_hangs_up_leaves_the_queue(gated: Gated, events: list[Event]) -> None:
    with ThreadPoolExecutor(2) as pool, running(gated.served) as server:
        first = ask(pool, server, events[0])
        gated.wait_until_computing()
        with server.connect() as leaving:
            leaving.sendall(post(*request_body(events[1])))
            server.wait_until(lambda: waiting(server) == 1)
        server.wait_until(lambda: waiting(server) == 0)
        gated.gate.set()
        assert status_and_json(first.result(PATIENCE))[0] == 200
        text = server.say(b"GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
    assert b'ringflow_requests_total{status="499"} 1.0' in text
    assert gated.batches == [1]


def test_one_that_breaks_harms_no_other(gated: Gated, events: list[Event], capsys: pytest.CaptureFixture[str]) -> None:
    broken = {"track": np.ones((77, events[0]["track"].shape[1]), np.float32), "cluster": events[0]["cluster"]}
    gated.broken_rows = 77
    with ThreadPoolExecutor(8) as pool, running(gated.served) as server:
        first = ask(pool, server, events[0])
        gated.wait_until_computing()
        rest = [ask(pool, server, event, id=str(number)) for number, event in enumerate([events[1], broken, events[2]])]
        server.wait_until(lambda: waiting(server) == 3)
        gated.gate.set()
        assert status_and_json(first.result(PATIENCE))[0] == 200
        answers = [status_and_json(answer.result(PATIENCE)) for answer in rest]
    assert [status for status, _ in answers] == [200, 500, 200]
    assert answers[1][1] == {"error": "the event could not be computed"}
    for number, event in ((0, events[1]), (2, events[2])):
        labels = next(output for output in answers[number][1]["outputs"] if output["name"] == "candidate_label")
        assert labels["data"] == gated._compute([event])[0]["candidate_label"].tolist()
    assert gated.batches == [1, 3, 1, 1, 1]
    assert "a broken event" in capsys.readouterr().err


def test_bodies_together_have_a_limit(gated: Gated, events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_LARGEST_BODIES", 1)
    body, size = request_body(events[0])
    monkeypatch.setattr(app, "_SMALL", len(body) - 1)
    limits = Limits(max_request_bytes=len(body) + 100, timeout=2 * PATIENCE)
    with ThreadPoolExecutor(3) as pool, running(gated.served, limits=limits) as server:
        with server.connect() as endless:  # of a body that is too large nothing is held
            chunk = b"%x\r\n%s\r\n" % (len(body), body)
            endless.sendall(post(b"", None, ["Transfer-Encoding: chunked"]) + chunk)
            server.wait_until(lambda: bool(server.application._held))
            endless.sendall(chunk)
            server.wait_until(lambda: not server.application._held)
            first = pool.submit(server.say, post(body, size))
            gated.wait_until_computing()
        status, said = status_and_json(server.say(post(body, size)))
        assert (status, "as fit into its memory" in said["error"]) == (503, True)
        monkeypatch.setattr(app, "_SMALL", len(body))
        small = [
            pool.submit(server.say, post(body, size)),
            pool.submit(server.say, post(zlib.compress(body), size, ["Content-Encoding: deflate"])),
        ]
        server.wait_until(lambda: waiting(server) == 2)
        gated.gate.set()
        assert [status_and_json(one.result(PATIENCE))[0] for one in (first, *small)] == [200] * 3


def test_a_stop_answers_what_was_accepted(gated: Gated, events: list[Event]) -> None:
    ready = b"GET /v2/health/ready HTTP/1.1\r\nHost: test\r\n\r\n"
    with ThreadPoolExecutor(4) as pool, running(gated.served) as server:
        accepted = [ask(pool, server, events[0], id="0")]
        gated.wait_until_computing()
        accepted.append(ask(pool, server, events[1], id="1"))
        server.wait_until(lambda: waiting(server) == 1)
        with server.connect() as watching:
            watching.sendall(ready)
            assert watching.recv(1000).startswith(b"HTTP/1.1 200")
            server.application.stop_being_ready()
            watching.sendall(ready)
            assert watching.recv(1000).startswith(b"HTTP/1.1 503")
        server.server.stop()
        server.wait_until(lambda: not _takes_connections(server))
        assert server.thread.is_alive()
        gated.gate.set()
        answers = [status_and_json(answer.result(PATIENCE)) for answer in accepted]
        server.thread.join(PATIENCE)
        assert not server.thread.is_alive()
    assert [(status, said["id"]) for status, said in answers] == [(200, "0"), (200, "1")]


def _takes_connections(server: Running) -> bool:
    try:
        socket.create_connection((server.host, server.port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True
