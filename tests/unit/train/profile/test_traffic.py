"""Bytes of sockets are those that were sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ringflow.train.profile.traffic import Traffic

pytestmark = pytest.mark.skipif(bool(Traffic().reason), reason=f"no bytes are counted here: {Traffic().reason}")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            yield near, far


def talk(pair: Pair, size: int) -> None:
    near, far = pair
    near.sendall(b"x" * size)
    left = size
    while left:
        left -= len(far.recv(left))


def test_bytes_are_counted_from_the_beginning(pair: Pair):
    talk(pair, 5000)
    traffic = Traffic()
    assert (traffic.sent, traffic.received) == (0, 0)
    talk(pair, 70_000)  # both ends are ours
    assert (traffic.sent, traffic.received) == (70_000, 70_000)


def test_a_new_connection_counts_and_a_closed_one_still_does(pair: Pair):
    traffic = Traffic()
    talk(pair, 300)
    assert traffic.sent == 300
    pair[0].close()
    assert traffic.sent == 300
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            talk((near, far), 44)
            assert traffic.sent == 344
            assert traffic.received in (344, 345)  # that a connection was closed is a byte


def test_other_kinds_of_sockets_are_left_alone(pair: Pair):
    traffic = Traffic()
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"x" * 100)
        assert there.recv(100) == b"x" * 100
        assert traffic.sent == 0
    talk(pair, 10)  # looking has closed nothing
    assert traffic.sent == 10


def test_where_nothing_is_counted_the_reason_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.platform", "darwin")
    traffic = Traffic()
    assert (traffic.sent, traffic.received) == (None, None)
    assert traffic.reason == "darwin does not count the bytes of a socket"
