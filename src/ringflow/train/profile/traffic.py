"""Bytes that went through the TCP sockets of this process, as the kernel counted them.

    traffic = Traffic()
    ...
    traffic.sent, traffic.received

Nothing is computed from sizes of tensors: Linux counts the bytes of every connection (`TCP_INFO`), without headers and without
what had to be sent twice. What travels otherwise (NCCL over NVLink or InfiniBand, shared memory) is not seen.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import NamedTuple

_SOCKETS = "/proc/self/fd"
#: Where in `struct tcp_info` of Linux the counts are: bytes received (Linux 4.1), bytes sent and sent again (4.19).
_RECEIVED_AT, _SENT_AT, _INFO_LENGTH = 128, 200, 216


class Bytes(NamedTuple):
    """What went out and what came in."""

    sent: int
    received: int


class Traffic:
    """Bytes through sockets of this process since this was made, those of sockets that were closed meanwhile included.

    What a socket carried between the last look and its end is missed: look at borders that matter.
    """

    def __init__(self) -> None:
        #: Why nothing can be counted; empty where it can.
        self.reason = _missing()
        self._gone = Bytes(0, 0)
        self._open = {} if self.reason else _connections()
        self._before = _sum(self._open)

    def look(self) -> Bytes | None:
        """Bytes so far, or None where the kernel does not tell."""
        if self.reason:
            return None
        now = _connections()
        self._gone = _plus(self._gone, _sum({key: count for key, count in self._open.items() if key not in now}))
        self._open = now
        total = _plus(self._gone, _sum(now))
        return Bytes(total.sent - self._before.sent, total.received - self._before.received)

    @property
    def sent(self) -> int | None:
        """Bytes that left so far."""
        return None if (now := self.look()) is None else now.sent

    @property
    def received(self) -> int | None:
        """Bytes that arrived so far."""
        return None if (now := self.look()) is None else now.received


def _missing() -> str:
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} does not count the bytes of a socket"
    if not os.path.isdir(_SOCKETS):
        return f"{_SOCKETS} is not there"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return "" if _counts(probe) is not None else "this kernel does not count the bytes of a socket"


def _connections() -> dict[str, Bytes]:
    """What every TCP socket of this process carried so far, by the name of the socket."""
    found = {}
    for number in os.listdir(_SOCKETS):
        try:
            name = os.readlink(f"{_SOCKETS}/{number}")
            counts = _counts_of(int(number)) if name.startswith("socket:") else None
        except OSError:  # closed meanwhile
            continue
        if counts is not None:
            found[name] = counts  # several descriptors may lead to one socket
    return found


def _counts_of(descriptor: int) -> Bytes | None:
    borrowed = socket.socket(fileno=descriptor)
    try:
        is_tcp = borrowed.family in (socket.AF_INET, socket.AF_INET6) and borrowed.type == socket.SOCK_STREAM
        return _counts(borrowed) if is_tcp else None
    finally:
        borrowed.detach()  # it belongs to somebody else


def _counts(connection: socket.socket) -> Bytes | None:
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_LENGTH)
    if len(information) < _INFO_LENGTH:
        return None
    (received,) = struct.unpack_from("=Q", information, _RECEIVED_AT)
    sent, again = struct.unpack_from("=QQ", information, _SENT_AT)
    return Bytes(sent - again, received)


def _sum(connections: dict[str, Bytes]) -> Bytes:
    return Bytes(
        sum(count.sent for count in connections.values()), sum(count.received for count in connections.values())
    )


def _plus(some: Bytes, more: Bytes) -> Bytes:
    return Bytes(some.sent + more.sent, some.received + more.received)
