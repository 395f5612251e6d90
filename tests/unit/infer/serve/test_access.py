"""Who may ask: names of the server, pages of other sites, tokens; and what is answered compressed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fixtures.fake_events import fake_block
from fixtures.serving import Event, Running, events_of, post, request_body, running, served_by_torch, status_and_json
from ringflow.infer.serve.app import Access, host_name
from ringflow.infer.serve.served import ServedModel
from ringflow.models.file import LoadedModel

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


BEARER = f"Authorization: Bearer {TOKEN}"


def get(server: Running, *headers: str, path: str = "/v2", version: str = "1.1") -> int:
    lines = [f"GET {path} HTTP/{version}", "Connection: close", *headers]
    return int(status_and_json(server.say("\r\n".join(lines).encode() + b"\r\n\r\n"))[0])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("localhost:", 200),
        ("LocalHost.", 200),
        ("localhost.:80", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("[fe80::1%25eth0]", 200),
        ("10.1.2.3:9", 200),
        ("", 200),  # what a browser never sends
        ("evil.example", 421),
        ("evil.example:", 421),
        ("localhost.evil.example:8000", 421),
        ("127.0.0.1.evil.example", 421),
        ("user@localhost", 421),
        ("localhost, evil.example", 421),
        ("localhost:80:80", 421),
    ],
)
def test_names_of_the_server(server: Running, host: str, status: int) -> None:
    assert get(server, f"Host: {host}", BEARER) == status


def test_requests_without_a_host_or_with_two(server: Running) -> None:
    assert get(server, BEARER, version="1.0") == 200
    assert get(server, BEARER) == 400
    assert get(server, "Host: localhost", "Host: evil.example", BEARER) == 400


def test_names_are_given_as_they_are_sent() -> None:
    given = ("PF.example.org", "pf.example.org.", "pf.example.org:443", "[::1]:80", "*")
    assert [host_name(name) for name in given] == [*["pf.example.org"] * 3, "::1", "*"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 200),
        (["Origin: http://test"], 200),
        (["Origin: https://TEST"], 200),  # behind a proxy
        (["Sec-Fetch-Site: same-origin"], 200),
        (["Origin: http://evil.example"], 403),
        (["Origin: http://test:8001"], 403),
        (["Origin: http://test.evil.example"], 403),
        (["Origin: null"], 403),
        (["Origin:"], 403),
        (["Sec-Fetch-Site: cross-site"], 403),
        (["Sec-Fetch-Site: same-site"], 403),
    ],
)
def test_pages_of_other_sites(server: Running, event: Event, headers: list[str], status: int) -> None:
    asked = post(*request_body(event), [BEARER, *headers])
    assert status_and_json(server.say(asked))[0] == status


def test_a_page_that_says_not_of_which_site(server: Running, event: Event) -> None:
    asked = post(*request_body(event), [BEARER, "Origin: null"]).replace(b"1.1\r\nHost: test\r\n", b"1.0\r\n")
    assert status_and_json(server.say(asked))[0] == 403


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe9"])
def test_a_token_is_asked_for(server: Running, event: Event, given: str, capfd: pytest.CaptureFixture[str]) -> None:
    asked = post(*request_body(event), [f"Authorization: {given}"] if given else []).replace(b"\xc3\xa9", b"\xe9")
    answer = server.say(asked)
    assert status_and_json(answer)[0] == 401
    assert b"\r\nwww-authenticate: bearer\r\n" in answer.lower()
    assert TOKEN not in answer.decode() + "".join(capfd.readouterr())


def test_who_is_refused_gets_to_know_it(server: Running, event: Event) -> None:
    """Though much more is sent than was read, and on the same connection somebody with a token may ask."""
    large = post(bytes(3_000_000)).replace(b"Connection: close\r\n", b"")
    answers = server.say(large, post(*request_body(event), [BEARER]))
    assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"401", b"200"]


def test_health_needs_no_token(server: Running) -> None:
    answer = server.say(b"GET /v2/health/ready HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    for path in ("/v2/health/live/", "/v2/health/../models/ringflow", "/metrics", "//v2/health/live"):
        assert get(server, "Host: test", path=path) == 401


@pytest.fixture(scope="module")
def talkative(small_model: Callable[..., Any]) -> Iterator[Running]:
    """A server of a network that makes every element a candidate."""
    loaded = small_model()
    with running(served_by_torch(LoadedModel(loaded.model, 0.0, loaded.card))) as one:
        yield one


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [
        (["gzip"], True),
        (["br;q=1, GZIP;q=0.5"], True),
        (["deflate", "gzip"], True),
        (["gzip ; q=1.000"], True),
        (["identity"], False),
        (["gzip;q=0.0"], False),
        (["gzip; q=0"], False),
        (["xgzip, gzipped"], False),
        ([""], False),
    ],
)
def test_answers_are_compressed_for_whom_asks(
    talkative: Running, served: ServedModel, accepted: list[str], compressed: bool
) -> None:
    events = sorted(events_of(served, fake_block(0, 20)), key=lambda one: sum(map(len, one.values())))
    for event, large in ((events[0], False), (events[-1], True)):
        plain = status_and_json(talkative.say(post(*request_body(event))))[1]
        assert (len(json.dumps(plain)) > 1400) == large
        asked = post(*request_body(event), [f"Accept-Encoding: {one}" for one in accepted])
        head, _, body = talkative.say(asked).partition(b"\r\n\r\n")
        assert b"\r\nvary: accept-encoding" in head.lower()
        assert (b"content-encoding: gzip" in head.lower()) == (compressed and large)
        assert json.loads(gzip.decompress(body) if compressed and large else body) == plain
