"""Clients that are broken, slow, greedy or gone: each gets what it deserves, and the next one gets its answer."""

from __future__ import annotations

import json
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

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
    until_closed,
)
from ringflow.infer.serve import server as server_module
from ringflow.infer.serve.app import Limits
from ringflow.infer.serve.served import ServedModel

LIMITS = Limits(max_request_bytes=100_000, max_event_elements=500, timeout=1.0)


@pytest.fixture(scope="module")
def served(small_model: Callable[..., Any]) -> ServedModel:
    return served_by_torch(small_model())


@pytest.fixture(scope="module")
def server(served: ServedModel) -> Iterator[Running]:
    with running(served, limits=LIMITS) as one:
        yield one


@pytest.fixture
def event(served: ServedModel) -> Event:
    return events_of(served, fake_block(0, 1))[0]


@pytest.fixture(autouse=True)
def goes_on(server: Running, event: Event) -> Iterator[None]:
    """After every test the server still answers."""
    yield
    status, _ = status_and_json(server.say(post(*request_body(event))))
    assert status == 200


@pytest.mark.parametrize(
    "noise",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        b"hello\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n",
        b"GET /v2/\xff HTTP/1.1\r\nHost: test\r\n\r\n",
        post(b"", None, ["Content-Length: -5"]),
        post(b"", None, ["Content-Length: 99999999999999999999999"]),
        post(b"abcdefgh\r\n", None, ["Content-Length: 10", "Transfer-Encoding: chunked"]),
        post(b"zzz\r\n", None, ["Transfer-Encoding: chunked"]),
    ],
)
def test_what_is_not_http(server: Running, noise: bytes) -> None:
    answer = server.say(noise)
    assert answer.startswith(b"HTTP/1.1 4")
    assert list(status_and_json(answer)[1]) == ["error"]


def test_noise_after_the_answer(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 404")
        connection.sendall(b"zzz\r\n")
        until_closed(connection)
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /", 404),
        ("GET /v2/models/ringflow/infer", 405),
        ("GET /v2/models/../../etc/passwd", 404),
        ("GET /v2/models/ringflow/versions/9", 404),
        ("DELETE /v2", 405),
        ("POST /v2/models/%00%ff/infer", 404),
        ("GET /v2/", 404),
        ("GET http://evil.example/v2", 404),
    ],
)
def test_paths_that_are_not_there(server: Running, request_line: str, status: int) -> None:
    answer = server.say(f"{request_line} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
    found, said = status_and_json(answer)
    assert (found, list(said)) == (status, ["error"])


def test_bodies_that_lie(server: Running, event: Event) -> None:
    body, size = request_body(event)
    deep = post(b'{"inputs":' + b"[" * 900)
    lies = (
        post(body, size + 1),
        post(body, -1),
        post(body[:-4], size),
        post(body + b"more", size),
        post(b"{", 1),
        deep,
    )
    for lie in lies:
        status, said = status_and_json(server.say(lie))
        assert (status, list(said)) == (400, ["error"])


@pytest.mark.parametrize(("rows", "status"), [(10**18, 413), (501, 413), (-1, 400)])
def test_huge_and_negative_shapes(server: Running, event: Event, rows: int, status: int) -> None:
    shapes = {kind: [rows, table.shape[1]] for kind, table in event.items()}
    inputs = [{"name": kind, "shape": shape, "datatype": "FP32", "data": []} for kind, shape in shapes.items()]
    assert status_and_json(server.say(post(json.dumps({"inputs": inputs}).encode())))[0] == status


def test_a_body_that_is_too_large(server: Running) -> None:
    chunk = b"8000\r\n" + bytes(0x8000) + b"\r\n"
    chunks = [post(b"", None, ["Transfer-Encoding: chunked"]), *[chunk] * 6, b"0\r\n\r\n"]
    before_sending = [post(b"", None, ["Content-Length: 200000", "Expect: 100-continue"])]
    for parts in ([post(bytes(200_000))], chunks, before_sending):
        status, said = status_and_json(server.say(*parts))
        assert (status, "100000" in said["error"]) == (413, True)


def test_a_bomb(server: Running) -> None:
    bomb = zlib.compress(bytes(50_000_000), 9)
    assert len(bomb) < LIMITS.max_request_bytes
    status, said = status_and_json(server.say(post(bomb, None, ["Content-Encoding: deflate"])))
    assert (status, said["error"]) == (413, "the decompressed body is larger than 100000 bytes")
    assert status_and_json(server.say(post(bomb, None, ["Content-Encoding: br"])))[0] == 415


@pytest.mark.parametrize(
    "begin",
    [b"GET /v2 HTTP/1.1\r\nHost: test\r\nx: ", post(b"", None, ["Transfer-Encoding: chunked"]) + b"1\r\na\r\n0\r\nx: "],
)
def test_a_head_or_tail_without_end(served: ServedModel, begin: bytes) -> None:
    with running(served) as patient, patient.connect() as connection:
        connection.sendall(begin)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # the server reads no more
            connection.sendall(bytes([ord("y")]) * 20_000_000)


def test_bodies_of_too_many_parts(served: ServedModel) -> None:
    """They take no time and no memory, however many there are in a body of the size that is allowed."""
    many = 1_500_000
    bodies = (
        b'{"inputs": [' + b"{}," * many + b"{}]}",
        b"[" * many + b"]" * many,
        b'{"inputs": {' + b'"a":0,' * 300_000 + b'"a":0}}',  # no more commas than the values of an event have
        b'{"inputs": [' + b"0," * many + b"0]}",
    )
    with running(served) as roomy:
        for body in bodies:
            status, said = status_and_json(roomy.say(post(body)))
            assert (status, "; send values as binary tensors" in said["error"]) == (413, True)


def test_a_slow_head(server: Running) -> None:
    with server.connect() as silent, server.connect() as slow:
        slow.sendall(b"POST /v2/models/ringflow/infer HTTP/1.1\r\n")
        with dripping(slow):
            assert until_closed(silent) == until_closed(slow) == b""


def test_a_slow_body(server: Running) -> None:
    with server.connect() as slow:
        slow.sendall(post(b'{"inputs": [', None, ["Content-Length: 5000"]))
        with dripping(slow):
            status, said = status_and_json(until_closed(slow))
    assert (status, said["error"]) == (408, "the body did not arrive within 1 s")


def test_a_body_that_goes_on_after_the_answer(server: Running) -> None:
    with server.connect() as slow:
        slow.sendall(b"POST /nowhere HTTP/1.1\r\nHost: test\r\nContent-Length: 5000\r\n\r\n")
        with dripping(slow):
            assert until_closed(slow).startswith(b"HTTP/1.1 404")


@contextmanager
def dripping(connection: socket.socket) -> Iterator[None]:
    """Sends a byte every now and then."""
    over = threading.Event()

    def run() -> None:
        with suppress(OSError):
            while not over.wait(0.1):
                connection.send(b"x")

    thread = threading.Thread(target=run)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.parametrize("last", [b"", b"GET /v2 HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"])
def test_who_does_not_read_is_left(served: ServedModel, last: bytes) -> None:
    with running(served, limits=LIMITS, send_buffer=4096) as server, deaf_client(server, 20, last):
        server.wait_until(lambda: server.connections == 1)
        server.wait_until(lambda: server.connections == 0)


@contextmanager
def deaf_client(server: Running, requests: int, last: bytes = b"") -> Iterator[None]:
    """Asks and does not read."""
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.connect((server.host, server.port))
        deaf.sendall(b"GET /v2/models/ringflow HTTP/1.1\r\nHost: test\r\n\r\n" * requests + last)
        yield


def test_who_does_not_read_holds_up_no_stop(served: ServedModel) -> None:
    with running(served, limits=LIMITS, send_buffer=4096) as server, deaf_client(server, 3):
        server.wait_until(lambda: server.server.server_state.total_requests == 3)
        server.server.stop()
        server.thread.join(PATIENCE)
        assert not server.thread.is_alive()
        assert server.connections == 0


def test_requests_far_in_advance_wait_for_their_turn(server: Running) -> None:
    asked = b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n"
    answer = server.say(asked * 999, asked.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert answer.count(b"HTTP/1.1 200") == 1000


def test_pipelined_requests_are_answered_in_order(server: Running, event: Event) -> None:
    requests = [post(*request_body(event, id=str(number))) for number in range(3)]
    answer = server.say(*[request.replace(b"Connection: close\r\n", b"") for request in requests[:2]], requests[2])
    places = [answer.find(b'"id": "%d"' % number) for number in range(3)]
    assert 0 < places[0] < places[1] < places[2]


def test_too_many_clients(served: ServedModel, event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 3)
    begun = post(b"{", None, ["Content-Length: 9"])
    with running(served) as small:
        held = [small.connect() for _ in range(3)]
        for connection in held:
            connection.sendall(begun)
        small.wait_until(lambda: sum(one.asks for one in small.server.server_state.connections) == 3)
        refused = small.say(post(*request_body(event)))
        status, said = status_and_json(refused)
        assert b"retry-after: 1\r\n" in refused.lower()
        assert (status, "as many clients are connected as may be" in said["error"]) == (503, True)
        for connection in held:
            connection.sendall(b"}" * 8)
            assert until_closed(connection).startswith(b"HTTP/1.1 400")
            connection.close()
        small.wait_until(lambda: small.connections == 0)
        assert status_and_json(small.say(post(*request_body(event))))[0] == 200


def test_idle_clients_give_way(served: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n"
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 2)
    with running(served) as small, small.connect() as first, small.connect() as second:
        for connection in (first, second, first):
            connection.sendall(asked)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert small.say(asked.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert until_closed(second) == b""  # idle for longest
        first.sendall(asked)
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_silent_clients_give_way(served: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are silent for longest, as soon as somebody else connects."""
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 3)
    with running(served) as small, ExitStack() as open_ones:
        silent = [open_ones.enter_context(small.connect()) for _ in range(2)]
        small.wait_until(lambda: small.connections == 2)
        begun = open_ones.enter_context(small.connect())
        begun.sendall(b"GET /v2/health/live HTTP/1.1\r\n")
        small.wait_until(lambda: small.connections == 3)
        for connection in silent:
            open_ones.enter_context(small.connect())
            assert until_closed(connection) == b""
        begun.sendall(b"Host: test\r\n\r\n")
        assert begun.recv(1 << 16).startswith(b"HTTP/1.1 200")
