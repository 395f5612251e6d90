"""Who may ask: names of the server, pages of other sites, tokens; and what is answered compressed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fixtures.fake_events import fake_block
from fixtures.serving import Event, Running, events_of, post, request_body, running, served_by_torch, status_and_json
from ringflow.infer.serve.app import Access
from ringflow.infer.serve.served import ServedModel

TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def served(small_model: Callable[..., Any]) -> ServedModel:
    return served_by_torch(small_model())


@pytest.fixture(scope="module")
def server(served: ServedModel) -> Iterator[Running]:
    with running(served, access=Access(frozenset({"localhost", "test"}), TOKEN)) as one:
        yield one


@pytest.fixture
def event(served: ServedModel) -> Event:
    return events_of(served, fake_block(0, 3))[0]


def get(server: Running, *headers: str, path: str = "/v2") -> int:
    lines = [f"GET {path} HTTP/1.1", "Connection: close", *headers]
    return int(status_and_json(server.say("\r\n".join(lines).encode() + b"\r\n\r\n"))[0])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LocalHost.", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("10.1.2.3:9", 200),
        ("evil.example", 421),
        ("localhost.evil.example:8000", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)
def test_names_of_the_server(server: Running, host: str, status: int) -> None:
    assert get(server, f"Host: {host}", f"Authorization: Bearer {TOKEN}") == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 200),
        (["Origin: http://test"], 200),
        (["Sec-Fetch-Site: same-origin"], 200),
        (["Origin: http://evil.example"], 403),
        (["Origin: null"], 403),
        (["Sec-Fetch-Site: cross-site"], 403),
        (["Sec-Fetch-Site: same-site"], 403),
    ],
)
def test_pages_of_other_sites(server: Running, event: Event, headers: list[str], status: int) -> None:
    asked = post(*request_body(event), [f"Authorization: Bearer {TOKEN}", *headers])
    assert status_and_json(server.say(asked))[0] == status


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe9"])
def test_a_token_is_asked_for(server: Running, event: Event, given: str) -> None:
    asked = post(*request_body(event), [f"Authorization: {given}"] if given else []).replace(b"\xc3\xa9", b"\xe9")
    answer = server.say(asked)
    assert (
        status_and_json(answer)[0],
        b"www-authenticate: Bearer" in answer.lower().replace(b"bearer", b"Bearer"),
    ) == (
        401,
        True,
    )


def test_health_needs_no_token(server: Running) -> None:
    answer = server.say(b"GET /v2/health/ready HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [("gzip", True), ("br;q=1, GZIP;q=0.5", True), ("identity", False), ("gzip;q=0.0", False), ("", False)],
)
def test_answers_are_compressed_for_whom_asks(served: ServedModel, accepted: str, compressed: bool) -> None:
    many = max(events_of(served, fake_block(0, 20)), key=lambda one: sum(map(len, one.values())))
    with running(served) as server:
        plain = status_and_json(server.say(post(*request_body(many))))[1]
        assert len(json.dumps(plain)) > 1400
        head, _, body = server.say(post(*request_body(many), [f"Accept-Encoding: {accepted}"])).partition(b"\r\n\r\n")
    assert (b"content-encoding: gzip" in head.lower()) == compressed
    assert json.loads(gzip.decompress(body) if compressed else body) == plain
