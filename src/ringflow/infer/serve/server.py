"""The process that serves: an address, a web server on it, and an end in which everyone is answered.

Uvicorn on h11 bounds heads and takes one request of a connection at a time. What it would wait for without end, a head that
comes letter by letter or a client that does not read its answer, is watched here.
"""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ringflow.base.errors import FailureError
from ringflow.base.log import say
from ringflow.infer.serve.app import Application

MOST_CONNECTIONS = 512
#: Bytes of a head, or of anything else that is not yet whole.
MOST_HEAD_BYTES = 64 << 10
_HEAD_SECONDS, _KEEP_ALIVE_SECONDS, _SECONDS_BETWEEN_LOOKS = 10.0, 60, 0.25
_REASONS = {
    errno.EADDRINUSE: "it is in use; choose another --port, or 0 for any that is free",
    errno.EACCES: "no permission; choose a --port above 1023",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose another --host",
}


def bind(host: str, port: int) -> socket.socket:
    """An address for the server, taken before long work is done in vain; it listens, but nobody is answered yet."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise FailureError(f"cannot listen on {host!r}: no such host; choose another --host") from None
    try:
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, dualstack_ipv6=both)
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, str(error))
        raise FailureError(f"cannot listen on port {port} of {host}: {reason}") from None


def address(taken: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = taken.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Connection(H11Protocol):
    """One whose errors are objects of JSON also where a request is not even HTTP, and that knows whether it is of use."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, in place of others where there are too many."""
        super().connection_made(transport)
        self.since = time.monotonic()
        make_room(self.connections, self)

    def on_response_complete(self) -> None:
        """Note since when nothing is asked."""
        self.since = time.monotonic()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong, unless an answer was begun, and hang up."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": msg}).encode()
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            answer = h11.Response(status_code=400, headers=list(headers.items()), reason=b"Bad Request")
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def asks(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def has_no_head(self) -> bool:
        """Whether a head is expected: neither is a request under way, nor is it idle since the last one."""
        return not self.asks and self.timeout_keep_alive_task is None

    @property
    def is_unread(self) -> bool:
        """Whether an answer waits to be read. A connection that is closed ends when everything is, which may be never."""
        return self.flow.write_paused or self.transport.is_closing()


def make_room(connections: Iterable[Any], newest: Connection | None = None) -> bool:
    """End those that asked nothing for longest, but the newest, where there are too many; false if too many ask."""
    there = [one for one in connections if not one.transport.is_closing()]
    if (excess := len(there) - MOST_CONNECTIONS) <= 0:
        return True
    silent = sorted((one for one in there if not one.asks and one is not newest), key=lambda one: one.since)
    for one in silent[:excess]:
        one.transport.abort()
    return len(silent) >= excess


class ModelServer(uvicorn.Server):
    """Runs an application until a signal comes; a second one ends the process at once."""

    def __init__(self, application: Application, timeout: float, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                self._admitted,
                interface="asgi3",
                http=Connection,
                h11_max_incomplete_event_size=MOST_HEAD_BYTES,
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                # A body and an answer may take that long each, and whoever does not read is left after as long.
                timeout_graceful_shutdown=math.ceil(3 * timeout) + 1,
            )
        )
        self._application, self._timeout, self._ready = application, timeout, ready

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: Any = self._application.asgi
        if scope["type"] == "http" and not make_room(self.server_state.connections):
            headers = {"Retry-After": "1", "Connection": "close"}
            app = JSONResponse({"error": "as many clients are connected as may be; try again"}, 503, headers)
        await app(scope, receive, send)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._watch = asyncio.create_task(self._leave_the_slow())
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, and answer whom is left."""
        say(f"stopping; {len(self.server_state.tasks)} requests are answered first")
        await super().shutdown(sockets)
        self._watch.cancel()

    async def _leave_the_slow(self) -> None:
        """End connections whose head, or the reading of whose answer, takes too long; the application limits bodies."""
        since: dict[tuple[Any, Any, bool], float] = {}
        head_seconds = min(self._timeout, _HEAD_SECONDS)
        while True:
            now = time.monotonic()
            connections: list[Any] = list(self.server_state.connections)  # each is a `Connection`
            waits = [(one, one.cycle, one.is_unread) for one in connections if one.is_unread or one.has_no_head]
            since = {wait: since.get(wait, now) for wait in waits}
            for (connection, _, unread), begun in since.items():
                if now - begun >= (self._timeout if unread else head_seconds):
                    connection.transport.abort()
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)

    def stop(self) -> None:
        """Begin to stop; may be called from a signal or from another thread."""
        self._application.stop_being_ready()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops, and the command ends well; the second does not wait for threads that compute."""
        if self.should_exit:
            os._exit(128 + sig)
        self.stop()
