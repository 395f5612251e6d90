"""A small server for the page: on this machine only, and for nothing but the page and its events.

It answers GET and HEAD for a fixed table of paths; whatever else is asked, how badly it may be asked, is refused with a line
of text. A request for another host name is refused too, so that no web site can read events through the reader's browser.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from ringflow.base.errors import FailureError, RingflowError
from ringflow.base.log import say
from ringflow.display.page import FILES, event_list, read_page
from ringflow.display.phoenix import phoenix_file
from ringflow.display.ranking import Ranking
from ringflow.display.source import EventSource

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

Answer = tuple[HTTPStatus, str, bytes]


class Answers:
    """What is at every path."""

    def __init__(self, source: EventSource, start: int) -> None:
        self._source = source
        self._ranking = Ranking(source.errors, source.num_events)
        self._files = {f"/{name}": (kind, read_page(name)) for name, kind in FILES.items()}
        self._files["/"] = self._files["/index.html"]
        self._events = _json(event_list(source, start))
        self._scenes: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._lock = Lock()

    def get(self, path: str) -> Answer:
        """The answer to a path, which is compared as it is: nothing in it is decoded, joined or looked up on disk."""
        if path in self._files:
            return (HTTPStatus.OK, *self._files[path])
        if path == "/events.json":
            return HTTPStatus.OK, _JSON, self._events
        if path == "/ranking.json":
            return HTTPStatus.OK, _JSON, _json(self._ranking.known())
        if match := _EVENT.fullmatch(path):
            return self._event(match[1], int(match[2]))
        return HTTPStatus.NOT_FOUND, _TEXT, b"no such page\n"

    def scene(self, index: int) -> dict[str, Any]:
        """A scene, computed once as long as it is among the last ones asked for, and before any other is ranked."""
        with self._ranking.giving_way(), self._lock:
            if index not in self._scenes:
                self._scenes[index] = self._source.scene(index)
                if len(self._scenes) > _SCENES_KEPT:
                    self._scenes.popitem(last=False)
            self._scenes.move_to_end(index)
            return self._scenes[index]

    def stop(self) -> None:
        """End what runs in the background."""
        self._ranking.stop()

    def _event(self, kind: str, index: int) -> Answer:
        if index >= self._source.num_events:
            text = f"no event {index}; there are {self._source.num_events}, counted from 0\n"
            return HTTPStatus.NOT_FOUND, _TEXT, text.encode()
        try:
            scene = self.scene(index)
        except RingflowError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, f"{error}\n".encode()
        return HTTPStatus.OK, _JSON, _json(scene if kind == "scene" else phoenix_file([scene]))


def open_server(answers: Answers, port: int) -> ThreadingHTTPServer:
    """A server that listens on the loopback address; port 0 is any that is free."""
    try:
        return _Server((HOST, port), _handler(answers))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FailureError(f"cannot listen on port {port}: {reason}; choose another with --port, or 0") from None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who went away is no matter."""


def _handler(answers: Answers) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _SECONDS_PER_REQUEST
        error_message_format = "%(code)d %(message)s\n"
        error_content_type = _TEXT

        def do_GET(self) -> None:
            self._reply(self._answer(), body=True)

        def do_HEAD(self) -> None:
            self._reply(self._answer(), body=False)

        def _answer(self) -> Answer:
            assert isinstance(self.server, ThreadingHTTPServer)
            port = self.server.server_address[1]
            if self.headers.get_all("Host") not in [[f"{name}:{port}"] for name in (HOST, "localhost")]:
                return HTTPStatus.FORBIDDEN, _TEXT, b"this server is for this machine only\n"
            return answers.get(self.path.partition("?")[0])

        def _reply(self, answer: Answer, *, body: bool) -> None:
            status, kind, content = answer
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def version_string(self) -> str:
            return "ringflow"

        def log_message(self, format: str, *arguments: Any) -> None:
            """People do not want to read requests."""

    return Handler


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


#: Called with the address of the page as soon as it can be opened.
Ready = Callable[[str], None]


def serve(source: EventSource, *, start: int, port: int, ready: Ready) -> None:
    """Show events until interrupted. The first one is computed before anybody is told the address."""
    answers = Answers(source, start)
    answers.scene(start)
    server = open_server(answers, port)
    try:
        ready(f"http://{HOST}:{server.server_address[1]}/")
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        say("stopped")  # as it was told
    finally:
        server.server_close()
        answers.stop()
