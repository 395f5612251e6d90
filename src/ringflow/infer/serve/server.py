"""The process that serves: an address, a web server on it, and an end in which everyone is answered."""

from __future__ import annotations

import errno
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from ringflow.base.errors import FailureError
from ringflow.base.log import say
from ringflow.infer.serve.app import Application
from ringflow.infer.serve.connection import limited

MOST_CONNECTIONS = 512
_KEEP_ALIVE_SECONDS = 60
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_REASONS = {
    errno.EADDRINUSE: "it is in use; choose another --port, or 0 for any that is free",
    errno.EACCES: "no permission; choose a --port above 1023",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose another --host",
}


def bind(host: str, port: int) -> socket.socket:
    """An address for the server, taken before long work is done in vain."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, protocol)
    except OSError:
        raise FailureError(f"cannot listen on {host!r}: no such host; choose another --host") from None
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise _cannot_listen(host, port, error) from None
    return taken


def address(taken: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = taken.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class ModelServer(uvicorn.Server):
    """Runs an application until a signal comes; a second one ends the process at once."""

    def __init__(self, application: Application, timeout: float, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                application.asgi,
                http=limited(timeout, MOST_CONNECTIONS),
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
        self._application, self._ready = application, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, and answer whom is left."""
        say(f"stopping; {len(self.server_state.tasks)} requests are answered first")
        await super().shutdown(sockets)

    def stop(self) -> None:
        """Begin to stop; may be called from a signal or from another thread."""
        self._application.stop_being_ready()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals stop the server instead of the process, and the command ends well."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops; the second does not wait for threads that compute."""
        if self.should_exit:
            os._exit(128 + sig)
        self.stop()


def run(server: ModelServer, taken: socket.socket) -> None:
    """Serve on a bound socket until the server is stopped."""
    host, port = taken.getsockname()[:2]
    try:
        server.run([taken])
    except OSError as error:  # another process listened first
        if error.errno not in _REASONS:
            raise
        raise _cannot_listen(host, port, error) from None


def _cannot_listen(host: str, port: int, error: OSError) -> FailureError:
    reason = _REASONS.get(error.errno or 0, str(error))
    return FailureError(f"cannot listen on port {port} of {host}: {reason}")
