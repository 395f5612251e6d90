"""Frameworks that may not be installed, and addresses where nobody may answer: told in one line, before a framework tries."""

from __future__ import annotations

import importlib
import os
import socket
from typing import Any

from ringflow.base.errors import FailureError

_SECONDS_TO_ANSWER = 5.0


def framework(module: str, extra: str) -> Any:
    """A module of an extra, or one line that says how to get it."""
    # ONNX Runtime would look up a host of its makers and keep a database under ~/.cache.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = (error.name or module).split(".")[0]
        raise FailureError(f"{name} is not installed; pip install 'ringflow[{extra}]'") from None


def one_line(text: str) -> str:
    """The beginning of what a framework says on many lines."""
    return " ".join(text.split())[:160]


def require_answer(what: str, host: str, port: int, advice: str) -> socket.socket:
    """A connection to what listens there, made before a framework tries it for minutes."""
    try:
        return socket.create_connection((host, port), _SECONDS_TO_ANSWER)
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise FailureError(f"no {what} answers at {host}:{port} ({reason}); {advice}") from None


def split_address(address: str) -> tuple[str, int] | None:
    """Host and port of `host:port`; None if it is no such thing."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return host.strip("[]"), int(port)
