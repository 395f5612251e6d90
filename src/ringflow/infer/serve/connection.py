"""A connection with the limits that uvicorn leaves open: slow or endless heads, answers that nobody reads, too many clients.

Without them a client that sends a letter of its head every now and then, or never reads, keeps its connection for ever.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes of a message that are not its body: the head, above all.
MOST_OVERHEAD = 64 << 10
MOST_HEADERS = 128
#: Requests that are sent before the answer to the first of them is there.
MOST_PIPELINED = 32


class LimitedConnection(HttpToolsProtocol):
    """HTTP on one connection. A server takes a subclass with its own limits, see `limited`."""

    head_seconds: ClassVar[float] = 10.0
    read_seconds: ClassVar[float] = 30.0
    most_connections: ClassVar[int] = 512

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head, unless there are too many connections already."""
        super().connection_made(transport)
        self._overhead = 0
        self._head_limit: asyncio.TimerHandle | None = None
        self._read_limit: asyncio.TimerHandle | None = None
        if len(self.connections) > self.most_connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "as many clients are connected as may be; try again")
        else:
            self._limit_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the limits."""
        self._forget_head()
        self._forget_reading()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, as long as it looks like requests."""
        self._overhead += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._overhead > MOST_OVERHEAD:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head of the request is too large")
        elif (self.cycle is None or self.cycle.response_complete) and self.timeout_keep_alive_task is None:
            self._limit_head()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._overhead = 0
        self._limit_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One more header, or trailer."""
        if len(self.headers) >= MOST_HEADERS:
            raise ValueError("too many headers")  # answered as any other request that is not HTTP
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there; the application limits what follows."""
        self._forget_head()
        if len(self.pipeline) >= MOST_PIPELINED:
            raise ValueError("too many requests in advance")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Chunks may carry as much overhead as content."""
        self._overhead -= 2 * len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        """An answer is on its way."""
        super().on_response_complete()
        self._limit_end()

    def pause_writing(self) -> None:
        """More is written than is read; whoever reads nothing is left."""
        super().pause_writing()
        self._limit_reading()

    def resume_writing(self) -> None:
        """It was read."""
        super().resume_writing()
        self._forget_reading()
        self._limit_end()

    def timeout_keep_alive_handler(self) -> None:
        """No other request came."""
        super().timeout_keep_alive_handler()
        self._limit_end()

    def shutdown(self) -> None:
        """The server stops."""
        super().shutdown()
        self._limit_end()

    def _limit_head(self) -> None:
        if self._head_limit is None:
            self._head_limit = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _limit_end(self) -> None:
        """A closed connection ends when everything is read, which may be never."""
        if self.transport.is_closing():
            self._limit_reading()

    def _limit_reading(self) -> None:
        if self._read_limit is None:
            self._read_limit = self.loop.call_later(self.read_seconds, self.transport.abort)

    def _forget_reading(self) -> None:
        if self._read_limit is not None:
            self._read_limit.cancel()
            self._read_limit = None

    def _forget_head(self) -> None:
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        """Answer without the application, and close; within a request, only close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
            return
        body = json.dumps({"error": why})
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        retry = "Retry-After: 1\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else ""
        self.transport.write(f"{head}{retry}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        self.transport.close()
        self._limit_end()


def limited(seconds: float, most_connections: int) -> type[LimitedConnection]:
    """Connections on which a head and the reading of an answer take so long at most."""
    own: dict[str, Any] = {
        "head_seconds": min(seconds, LimitedConnection.head_seconds),
        "read_seconds": seconds,
        "most_connections": most_connections,
    }
    return type("Connection", (LimitedConnection,), own)
