"""The body of a request: no larger than it may be, no slower than it may be, and of all of them together no more than fits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

from ringflow.infer.serve.protocol import RequestError

#: Bytes of a refused body that are read and thrown away, so that the client gets to reading why.
_DISCARDED = 64 << 20


class ClientGoneError(Exception):
    """Nobody is there to be answered."""


class MemoryGate:
    """Bytes of requests that are held at a time; what does not fit is refused until others are done."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    @contextmanager
    def held_by_one(self) -> Iterator[GatePass]:
        """The bytes of one request, given back at the end."""
        one = GatePass(self)
        try:
            yield one
        finally:
            self.held -= one.held

    def take(self, amount: int) -> None:
        """Hold more, or refuse."""
        if self.held + amount > self._most:
            raise RequestError("the server holds as many requests as fit into its memory; try again", 503)
        self.held += amount


class GatePass:
    """What one request holds."""

    def __init__(self, gate: MemoryGate) -> None:
        self._gate = gate
        self.held = 0

    def take(self, amount: int) -> None:
        """Hold more, or refuse."""
        self._gate.take(amount)
        self.held += amount


async def read_body(request: Request, most: int, seconds: float, memory: GatePass) -> bytes:
    """A body of `most` bytes at most, that arrives within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            chunks, fits = await _read(request, most, memory)
    except TimeoutError:
        raise RequestError(f"the body did not arrive within {seconds:g} s", 408) from None
    if not fits:
        raise RequestError(f"the body is larger than the {most} bytes that this server takes", 413)
    return b"".join(chunks)


async def _read(request: Request, most: int, memory: GatePass) -> tuple[list[bytes], bool]:
    """The body, and whether it is not too large; if it is, nothing of it is kept."""
    announced = request.headers.get("content-length", "0")
    fits = announced.isdecimal() and len(announced) < 20 and int(announced) <= most
    chunks: list[bytes] = []
    size, more = 0, fits or "expect" not in request.headers  # who asked before sending is told at once
    while more and size < most + _DISCARDED:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if fits and size <= most:
            memory.take(len(chunk))
            chunks.append(chunk)
        else:
            fits = False
            chunks.clear()
    return chunks, fits
