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
from threading import Event, Lock, Thread
from typing import Any

import pytest

from fixtures.display_server import served
from ringflow.base.errors import DatasetError, FailureError
from ringflow.display.server import Answers, open_server
from ringflow.display.source import open_source

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


OTHERS = (
    "/../../etc/passwd /%2e%2e/%2e%2e/etc/passwd //etc/passwd /build.json /page/ /scene/ /scene/-1.json /scene/3.json"
)
OTHERS += " /scene/1e1.json /scene/999999999999999999999.json /scene/../display.js"


@pytest.mark.parametrize("path", OTHERS.split())
def test_nothing_else_is_there(port: int, path: str) -> None:
    status, _, body = get(port, path)
    assert status == 404
    assert len(body) < 200


def test_other_host_names_and_methods_are_refused(port: int) -> None:
    assert get(port, "/events.json", Host=f"localhost:{port}")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
        assert get(port, "/events.json", Host=host)[0] == 403
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "CONNECT"):
        status, headers, _ = get(port, "/events.json", method)
        assert (status, headers["X-Content-Type-Options"]) == (501, "nosniff")


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, "/scene/1.json", 200),
        ({"Sec-Fetch-Site": "none"}, "/scene/1.json", 200),
        ({"Sec-Fetch-Site": "cross-site"}, "/", 200),  # a link
        ({"Sec-Fetch-Site": "cross-site"}, "/scene/1.json", 403),
        ({"Sec-Fetch-Site": "same-site"}, "/ranking.json", 403),  # another port of this machine
        ({"Origin": "http://127.0.0.1:{port}"}, "/scene/1.json", 200),
        ({"Origin": "http://localhost:{port}"}, "/scene/1.json", 403),
        ({"Origin": "https://evil.example"}, "/scene/1.json", 403),
        ({"Origin": "null"}, "/", 403),
    ],
)
def test_pages_of_other_sites_are_refused(port: int, headers: dict[str, str], path: str, status: int) -> None:
    assert get(port, path, **{name: value.format(port=port) for name, value in headers.items()})[0] == status


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
    answers = Answers(Made(1), 0)  # type: ignore[arg-type]
    with pytest.raises(FailureError, match=f"cannot listen on port {port}"):
        open_server(answers, port)
    with open_server(answers, 0) as server:
        assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.heavy)])
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


class Made:
    """Events that are made up; like the real ones, they are computed one at a time."""

    notes = explained = ()

    def __init__(self, events: int, seconds: float = 0.0, broken_from: int = 10**6) -> None:
        self.num_events, self.about = events, {"truth": True}
        self._seconds, self._broken_from, self._lock, self.begun, self.ranked = seconds, broken_from, Lock(), Event(), 0

    def scene(self, index: int) -> dict[str, Any]:
        with self._lock:
            if index >= self._broken_from:
                raise DatasetError("the shard is gone; make it again")
            return {"event": {"index": index}}

    def errors(self, index: int) -> dict[str, dict[str, float]]:
        with self._lock:
            self.begun.set()
            time.sleep(self._seconds)
            if index >= self._broken_from:
                raise DatasetError("the shard is gone")
            self.ranked += 1
            return {"model": {"jet": float(index), "energy": 0.0}}


def test_what_a_person_asks_for_goes_before_the_ranking() -> None:
    source = Made(100, seconds=0.05)
    answers = Answers(source, 0)  # type: ignore[arg-type]
    asking = Thread(target=answers.get, args=("/ranking.json",))
    asking.start()
    assert source.begun.wait(PATIENCE)
    before = source.ranked
    assert answers.get("/scene/7.json")[0] == 200
    assert source.ranked - before <= 2  # the one it was at
    asking.join()
    known = json.loads(answers.get("/ranking.json")[2])  # and it goes on
    assert source.ranked == known["done"] == len(known["errors"]["model"]["jet"])
    assert before < known["done"] < known["of"] == 100


def test_what_cannot_be_read_is_one_line_and_ends_the_ranking() -> None:
    answers = Answers(Made(30, broken_from=20), 0)  # type: ignore[arg-type]
    assert answers.get("/scene/20.json")[::2] == (500, b"the shard is gone; make it again\n")
    for _ in range(2):
        known = json.loads(answers.get("/ranking.json")[2])
        assert (known["done"], known["of"], known["failure"]) == (20, 30, "the shard is gone")
    assert known["errors"]["model"]["jet"] == [float(event) for event in range(20)]
