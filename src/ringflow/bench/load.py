"""Clients that ask a server without a pause and compare every answer with the one that must come."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

NUMBER = 12  # letters of the name of a request
_ROUNDING = 1e-3  # of momenta, relative to the largest of an event
_LOST_AFTER = 60.0  # seconds


@dataclass(frozen=True)
class Exchange:
    """A request and its answer, but for the name of the request, which stands between the two parts of either."""

    request: tuple[bytes, bytes]
    answer: tuple[bytes, bytes]
    json_size: int

    def is_answer(self, body: bytes, number: bytes, exact: bool) -> bool:
        """Whether this is what must come back."""
        if body == number.join(self.answer):
            return True
        return not exact and _close(body, number.join(self.answer), self.json_size)


@dataclass
class Load:
    """What the clients of one row do and see."""

    exchanges: Sequence[Exchange]
    exact: bool
    until: float
    left: int
    latencies: list[float] = field(default_factory=list)
    wrong: int = 0
    failed: int = 0
    sent: int = 0

    def next(self) -> tuple[Exchange, bytes] | None:
        """One more request, unless that was enough."""
        if self.left <= 0 or time.perf_counter() >= self.until:
            return None
        self.left -= 1
        self.sent += 1
        return self.exchanges[self.sent % len(self.exchanges)], b"%0*d" % (NUMBER, self.sent)


def _close(body: bytes, expected: bytes, json_size: int) -> bool:
    """The same candidates, with momenta that differ by rounding."""
    if len(body) != len(expected) or body[:json_size] != expected[:json_size]:
        return False
    first = json_size
    for output in json.loads(expected[:json_size])["outputs"]:
        last = first + output["parameters"]["binary_data_size"]
        kind = np.float32 if output["datatype"] == "FP32" else np.int64
        here, there = (np.frombuffer(raw[first:last], kind) for raw in (body, expected))
        allowed = _ROUNDING * float(np.abs(there).max(initial=1.0)) if kind is np.float32 else 0.0
        if not np.allclose(here, there, rtol=0, atol=allowed):
            return False
        first = last
    return True


async def client(host: str, port: int, load: Load) -> None:
    """Ask and wait, on one connection, which is made anew when it breaks."""
    while (planned := load.next()) is not None:
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except OSError:
            load.failed += 1
            continue
        try:
            while planned is not None:
                exchange, number = planned
                begun = time.perf_counter()
                writer.write(number.join(exchange.request))
                async with asyncio.timeout(_LOST_AFTER):
                    status, body = await response(reader)
                if status != 200:
                    load.failed += 1
                else:
                    load.latencies.append(time.perf_counter() - begun)
                    load.wrong += not exchange.is_answer(body, number, load.exact)
                planned = load.next()
        except (OSError, EOFError, TimeoutError):
            load.failed += 1
        finally:
            writer.close()


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of an answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = re.search(rb"\r\ncontent-length: (\d+)", head)
    assert length is not None
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length[1]))
