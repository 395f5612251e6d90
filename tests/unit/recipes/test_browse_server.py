"""The live page: this machine only, three kinds of answers, nothing outside the folder, and it survives nonsense."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from ringflow.base.errors import FailureError
from ringflow.recipes.browse.commands import browse_command
from ringflow.recipes.browse.server import BrowseServer

Answer = tuple[int, bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "a"
    (run / "report").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"settings": {"length": {"events": 10}}}))
    (run / "history.jsonl").write_text('{"kind": "validation", "step": 1, "events": 10, "loss": 1.5}\n')
    (run / "report" / "index.html").write_text("a report")
    (run / "model.safetensors").write_text("weights")
    (run / ".secret.html").write_text("hidden")
    (tmp_path / "outside.html").write_text("outside")
    (run / "link.html").symlink_to(tmp_path / "outside.html")
    return tmp_path / "runs"


@pytest.fixture
def server(folder: Path) -> Iterator[BrowseServer]:
    with BrowseServer(folder, 0) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()


def get(server: BrowseServer, path: str, host: str | None = None) -> Answer:
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        connection.request("GET", path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_page_and_its_data_are_served(server: BrowseServer, folder: Path) -> None:
    status, page = get(server, "/")
    assert status == 200
    assert b'data-live="data.json"' in page
    before = json.loads(get(server, "/data.json")[1])
    assert [(run["name"], run["state"]) for run in before["runs"]] == [("a", "finished")]
    (folder / "b").mkdir()
    (folder / "b" / "run.json").write_text("{}")
    assert len(json.loads(get(server, "/data.json")[1])["runs"]) == 2
    (address,) = [address for label, address in before["runs"][0]["pages"] if label == "report"]
    assert get(server, address) == (200, b"a report")


@pytest.mark.parametrize(
    "path",
    [
        "/files/a/model.safetensors",
        "/files/a/.secret.html",
        "/files/../outside.html",
        "/files/a/../../outside.html",
        "/files/%2e%2e/outside.html",
        "/files/a/%2e%2e/%2e%2e/outside.html",
        "/files//etc/passwd",
        "/files/a/link.html",
        "/files/a/report",
        "/files/a%00.html",
        "/files/",
        "/nothing",
        "/run.json",
    ],
)
def test_nothing_else_is_served(server: BrowseServer, path: str) -> None:
    assert get(server, path)[0] == 404


def test_another_name_of_this_machine_is_refused(server: BrowseServer) -> None:
    assert get(server, "/data.json", host="evil.example:80")[0] == 403
    assert get(server, "/data.json", host=f"localhost:{server.server_address[1]}")[0] == 200


def test_it_listens_on_loopback_only_and_survives_nonsense(server: BrowseServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    for nonsense in (b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=10) as talk:
            talk.sendall(nonsense)
            talk.shutdown(socket.SHUT_WR)
            assert b" 200 " not in talk.recv(4096)
    assert get(server, "/")[0] == 200


def test_a_port_that_is_taken_is_told_in_one_line(server: BrowseServer, folder: Path) -> None:
    with pytest.raises(FailureError, match="cannot listen on port"):
        browse_command(folder, port=server.server_address[1])
