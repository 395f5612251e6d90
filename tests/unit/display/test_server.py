"""The server: for this machine only, for nothing but the page, and not to be upset."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pytest

from fixtures.display_server import served
from ringflow.base.errors import DatasetError, FailureError
from ringflow.display.server import Answers, open_server
from ringflow.display.source import Errors, open_source

PATIENCE = 60.0


@pytest.fixture(scope="module")
def port(shown: Path) -> Iterator[int]:
    with served(open_source(shown), 1) as url:
        yield int(url.rsplit(":", 1)[1].rstrip("/"))


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_the_page_and_its_events(port: int) -> None:
    status, headers, page = get(port, "/")
    assert status == 200
    assert b"display.js" in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "http" not in headers["Content-Security-Policy"]
    events = json.loads(get(port, "/events.json")[2])
    assert (events["count"], events["start"]) == (3, 1)
    assert json.loads(get(port, "/scene/2.json")[2])["event"]["index"] == 2
    assert "event 2" in json.loads(get(port, "/phoenix/2.json?again")[2])
    assert json.loads(get(port, "/ranking.json")[2])["of"] == 3
    for name, kind in (("display.js", "text/javascript"), ("display.css", "text/css")):
        status, headers, _ = get(port, f"/{name}")
        assert status == 200
        assert headers["Content-Type"].startswith(kind)
    status, headers, body = get(port, "/display.js", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100_000


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/build.json",
        "/scene/",
        "/scene/-1.json",
        "/scene/3.json",
        "/scene/1e1.json",
        "/scene/999999999999999999999.json",
        "/scene/../display.js",
        "/page/",
    ],
)
def test_nothing_else_is_there(port: int, path: str) -> None:
    status, _, body = get(port, path)
    assert status == 404
    assert len(body) < 200


def test_other_host_names_are_refused(port: int) -> None:
    assert get(port, "/events.json", Host=f"localhost:{port}")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
        assert get(port, "/events.json", Host=host)[0] == 403


def test_other_methods_are_refused(port: int) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "CONNECT"):
        assert get(port, "/events.json", method)[0] == 501


MALFORMED = {
    "nonsense": b"nonsense\r\n\r\n",
    "version": b"GET / HTTP/9.9\r\n\r\n",
    "bytes": b"GET /\xff\xfe\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "foreign digits": b"GET /scene/\xd9\xa3.json HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "long path": b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00",
    "empty lines": b"\r\n\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("request_bytes", MALFORMED.values(), ids=MALFORMED)
def test_what_is_malformed_is_survived(port: int, request_bytes: bytes) -> None:
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        try:
            connection.sendall(request_bytes)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                answer += part
        except TimeoutError:
            pytest.fail("it neither answered nor hung up")
        except OSError:
            pass  # it hung up before it had read everything
    assert b" 200 " not in answer.split(b"\r\n")[0]
    assert b"Traceback" not in answer
    assert get(port, "/")[0] == 200


def test_it_listens_on_this_machine_only_and_says_if_it_cannot(port: int) -> None:
    answers = _Nothing()
    with pytest.raises(FailureError, match=f"cannot listen on port {port}"):
        open_server(answers, port)  # type: ignore[arg-type]
    server = open_server(answers, 0)  # type: ignore[arg-type]
    assert server.server_address[0] == "127.0.0.1"
    server.server_close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_well(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "event.json").write_text('{"a": {"CaloClusters": {"EM": [{"energy": 4.0, "eta": 0.0, "phi": 1.5}]}}}')
    words = ["display", tmp_path / "event.json", "--no-open"]
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from ringflow.cli import main; main()"
    begun = [sys.executable, "-c", code, *map(str, words), "--json"]  # ignoring Ctrl-C, as in the background of a shell
    with subprocess.Popen(begun, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "http://127.0.0.1:" in process.stdout.readline()
        process.send_signal(number)
        said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0
    assert "Traceback" not in said


class _Nothing:
    def get(self, path: str) -> Any:
        return 404, "text/plain", b""


class Broken:
    num_events = 1
    notes = ()
    explained = ()
    about: dict[str, Any] = {}  # noqa: RUF012 - as the protocol has it

    def scene(self, index: int) -> dict[str, Any]:
        raise DatasetError("the shard is gone; make it again")

    def errors(self, start: int, stop: int) -> Errors | None:
        return None


class Slow(Broken):
    """As many events as keep a ranking busy for seconds; like the real one, it does one thing at a time."""

    num_events = 60

    def __init__(self) -> None:
        self._lock, self.ranking, self.ranked = Lock(), Event(), 0

    def scene(self, index: int) -> dict[str, Any]:
        with self._lock:
            return {"event": {"index": index}}

    def errors(self, start: int, stop: int) -> Errors | None:
        for _ in range(start, stop):
            with self._lock:
                self.ranking.set()
                time.sleep(0.05)
                self.ranked += 1
        return {"model": {"jet": [1.0] * (stop - start)}}


def test_what_a_person_asks_for_goes_before_the_ranking() -> None:
    source = Slow()
    answers = Answers(source, 0)
    try:
        answers.get("/ranking.json")
        assert source.ranking.wait(PATIENCE)
        for asked in (7, 8, 9):
            before = source.ranked
            assert answers.get(f"/scene/{asked}.json")[0] == 200
            assert source.ranked - before <= 1  # the one it was at
        deadline = time.monotonic() + PATIENCE
        while (known := json.loads(answers.get("/ranking.json")[2]))["done"] < 4:  # and it goes on
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert known["done"] < source.num_events
    finally:
        answers.stop()


def test_an_event_that_cannot_be_read_is_one_line() -> None:
    answers = Answers(Broken(), 0)
    assert answers.get("/scene/0.json")[0] == 500
    assert answers.get("/scene/0.json")[2] == b"the shard is gone; make it again\n"
