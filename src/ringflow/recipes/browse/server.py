"""A live page: a server for this machine only, which reads the folder again when it is asked.

It answers three kinds of requests: the page, its data, and pages and pictures under the folder. Nothing else is served.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ringflow.recipes.browse.page import as_json, collect, render

HOST = "127.0.0.1"
FILES = "/files/"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".pdf": "application/pdf",
    ".css": "text/css; charset=utf-8",
}
#: Files larger than this are not for looking at.
_LARGEST = 64 << 20
#: Pages that lie in the folder may run their own scripts, but not ask anybody for anything.
_POLICY = "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


class BrowseServer(ThreadingHTTPServer):
    """Serves a folder; `url` says where."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder.resolve()
        self._given = folder
        self._reading = threading.Lock()
        super().__init__((HOST, port), _Answer)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def data(self) -> dict[str, Any]:
        """What lies in the folder now; one request reads at a time."""
        with self._reading:
            found = collect(self.folder, lambda path: FILES + quote(str(path.relative_to(self.folder))))
        return {**found, "folder": str(self._given)}

    def file(self, path: str) -> Path | None:
        """The file that a request asks for, if it may be looked at."""
        parts = unquote(path).split("/")
        if any(part.startswith(".") or not part or "\0" in part for part in parts):
            return None
        try:
            found = self.folder.joinpath(*parts).resolve()
            inside = found.is_relative_to(self.folder) and found.is_file() and found.stat().st_size <= _LARGEST
        except (OSError, ValueError):
            return None
        return found if inside and found.suffix in _TYPES else None


class _Answer(BaseHTTPRequestHandler):
    server: BrowseServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "ringflow", ""
    timeout = 30

    def do_GET(self) -> None:
        # Who comes by another name was sent by a page of somebody else.
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host not in (HOST, "localhost"):
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"forbidden\n")
        path = urlsplit(self.path).path
        if path == "/":
            return self._made(lambda: (render(self.server.data(), live=True).encode(), _TYPES[".html"]))
        if path == "/data.json":
            return self._made(lambda: (as_json(self.server.data()).encode(), _TYPES[".json"]))
        found = self.server.file(path.removeprefix(FILES)) if path.startswith(FILES) else None
        if found is None:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")
        return self._made(lambda: (found.read_bytes(), _TYPES[found.suffix]), policy=_POLICY)

    def _made(self, make: Callable[[], tuple[bytes, str]], policy: str | None = None) -> None:
        try:
            content, kind = make()
        except OSError:  # gone between two looks
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")
        return self._send(HTTPStatus.OK, kind, content, policy)

    def _send(self, status: HTTPStatus, kind: str, content: bytes, policy: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        if policy is not None:
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the page asks every few seconds."""
