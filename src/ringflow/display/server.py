"""A small server for the page: on this machine only, and for nothing but the page and its events.

It answers GET and HEAD for a fixed table of paths; whatever else is asked, how badly it may be asked, is refused with a line
of text. So is a request under another host name or by a page of another site: no web site can read events through the
reader's browser, or have them computed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from ringflow.base.errors import FailureError, RingflowError
from ringflow.base.log import say
from ringflow.display.phoenix import phoenix_file
from ringflow.display.source import EventSource
from ringflow.display.static import FILES, add_errors, as_json, event_list, read_page

HOST = "127.0.0.1"
_JSON = "application/json; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Nine digits are more than any dataset has.
_EVENT = re.compile(r"/(scene|phoenix)/([0-9]{1,9})\.json")
_SCENES_KEPT = 16
_SECONDS_PER_REQUEST = 30.0
#: Work that goes into the ranking whenever the page asks for it, unless somebody waits for an event.
_SECONDS_OF_RANKING = 1.0

Answer = tuple[HTTPStatus, str, bytes]


def serve(source: EventSource, *, start: int, port: int, ready: Callable[[str], None]) -> None:
    """Show events until interrupted. The first one is computed before `ready` is called with the address of the page."""
    answers = Answers(source, start)
    answers.scene(start)
    with open_server(answers, port) as server:
        try:
            ready(f"http://{HOST}:{server.server_address[1]}/")
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("stopped")  # as it was told


class Answers:
    """What is at every path."""

    def __init__(self, source: EventSource, start: int) -> None:
        self._source = source
        self._fixed = {f"/{name}": (HTTPStatus.OK, kind, read_page(name)) for name, kind in FILES.items()}
        self._fixed["/"] = self._fixed["/index.html"]
        self._fixed["/events.json"] = _json(event_list(source, start))
        self._scene = lru_cache(_SCENES_KEPT)(source.scene)
        self._scenes, self._ranks = Lock(), Lock()
        self._ranking: dict[str, Any] = {"done": 0, "of": source.num_events, "failure": "", "errors": {}}

    def get(self, path: str) -> Answer:
        """The answer to a path, which is compared as it is: nothing in it is decoded, joined or looked up on disk."""
        if path in self._fixed:
            return self._fixed[path]
        if path == "/ranking.json":
            return _json(self.ranking())
        if (match := _EVENT.fullmatch(path)) is None:
            return HTTPStatus.NOT_FOUND, _TEXT, b"no such page\n"
        kind, index = match[1], int(match[2])
        if index >= self._source.num_events:
            text = f"no event {index}; there are {self._source.num_events}, counted from 0\n"
            return HTTPStatus.NOT_FOUND, _TEXT, text.encode()
        try:
            scene = self.scene(index)
        except RingflowError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, f"{error}\n".encode()
        return _json(scene if kind == "scene" else phoenix_file([scene]))

    def scene(self, index: int) -> dict[str, Any]:
        """A scene, computed once as long as it is among the last ones asked for, and before any other is ranked."""
        with self._scenes:
            return self._scene(index)

    def ranking(self) -> dict[str, Any]:
        """Which events are worst: errors of the first events, of more of them each time it is asked, as the page does."""
        with self._ranks:
            found, until = self._ranking, time.monotonic() + _SECONDS_OF_RANKING
            while (
                found["done"] < found["of"]
                and not found["failure"]
                and not self._scenes.locked()
                and time.monotonic() < until
            ):
                try:
                    add_errors(found["errors"], self._source.errors(found["done"]))
                except Exception as error:  # the page says why; the events themselves can still be shown
                    found["failure"] = " ".join(str(error).split()) or type(error).__name__
                    break
                found["done"] += 1
            return deepcopy(found)


def _json(value: object) -> Answer:
    return HTTPStatus.OK, _JSON, as_json(value).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who went away is no matter."""


def open_server(answers: Answers, port: int) -> ThreadingHTTPServer:
    """A server that listens on the loopback address; port 0 is any that is free."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _SECONDS_PER_REQUEST
        error_message_format = "%(code)d %(message)s\n"
        error_content_type = _TEXT

        def do_GET(self) -> None:
            port, path = self.connection.getsockname()[1], self.path.partition("?")[0]
            hosts = [f"{name}:{port}" for name in (HOST, "localhost")]
            host, origin = self.headers.get_all("Host", []), self.headers.get("Origin")
            own = origin in (None, *(f"http://{one}" for one in host))
            if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
                own = own and path == "/"  # a link may lead here
            if own and len(host) == 1 and host[0] in hosts:
                status, kind, content = answers.get(path)
            else:
                status, kind, content = HTTPStatus.FORBIDDEN, _TEXT, b"this server is for this machine only\n"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def end_headers(self) -> None:
            """Those of every answer, errors too."""
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            super().end_headers()

        do_HEAD = do_GET  # noqa: N815

        def version_string(self) -> str:
            return "ringflow"

        def log_message(self, format: str, *arguments: Any) -> None:
            """People do not want to read requests."""

    try:
        return _Server((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FailureError(f"cannot listen on port {port}: {reason}; choose another with --port, or 0") from None
