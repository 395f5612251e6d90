"""A server in a thread of the test, and ways to talk to it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.event.block import EventBlock
from ringflow.export.onnx import describe
from ringflow.export.runtime import event_values
from ringflow.infer.serve.app import Application, Limits
from ringflow.infer.serve.batching import BatchSettings
from ringflow.infer.serve.served import ServedModel
from ringflow.infer.serve.server import ModelServer, bind, run
from ringflow.infer.session import Session

Event = dict[str, npt.NDArray[np.float32]]
PATIENCE = 60.0  # seconds after which a test fails instead of waiting for ever


def served_by_torch(loaded: Any) -> ServedModel:
    return ServedModel("ringflow", Session(loaded), describe(loaded), "torch")


def events_of(served: ServedModel, block: EventBlock) -> list[Event]:
    return [
        {kind: table.copy() for kind, table in event.items()}
        for event in event_values(block, served.description.inputs)
    ]


def same_answer(here: dict[str, npt.NDArray[Any]], there: dict[str, npt.NDArray[Any]]) -> bool:
    """Equal but for the rounding of momenta, which depends on what an event was computed with."""
    return list(here) == list(there) and all(
        here[name].shape == there[name].shape and np.allclose(here[name], there[name], rtol=2e-4, atol=1e-4)
        for name in there
    )


@dataclass
class Running:
    """A server that runs."""

    host: str
    port: int
    server: ModelServer
    application: Application
    thread: threading.Thread

    @property
    def where(self) -> str:
        return f"{self.host}:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=PATIENCE)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Fail if it does not come true."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def say(self, *parts: bytes) -> bytes:
        """Everything that comes back until the server closes the connection."""
        with self.connect() as connection:
            for part in parts:
                connection.sendall(part)
            return until_closed(connection)


def until_closed(connection: socket.socket) -> bytes:
    received = b""
    try:
        while chunk := connection.recv(1 << 16):
            received += chunk
    except ConnectionResetError:
        pass
    return received


@contextmanager
def running(
    served: ServedModel,
    batches: BatchSettings | None = None,
    limits: Limits | None = None,
    send_buffer: int | None = None,
) -> Iterator[Running]:
    limits = limits or Limits(timeout=PATIENCE)
    application = Application(served, batches or BatchSettings(), limits)
    taken = bind("127.0.0.1", 0)  # the server closes it
    if send_buffer is not None:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    host, port = taken.getsockname()
    ready = threading.Event()
    server = ModelServer(application, limits.timeout, ready.set)
    thread = threading.Thread(target=run, args=(server, taken))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield Running(host, port, server, application, thread)
    finally:
        server.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def request_body(event: Event, **more: Any) -> tuple[bytes, int]:
    """A request with raw values, and the length of its JSON."""
    inputs = [
        {"name": kind, "shape": list(table.shape), "datatype": "FP32", "parameters": {"binary_data_size": table.nbytes}}
        for kind, table in event.items()
    ]
    text = json.dumps({"inputs": inputs, **more}).encode()
    return b"".join([text, *(table.tobytes() for table in event.values())]), len(text)


def post(body: bytes, json_size: int | None = None, headers: Sequence[str] = (), path: str = "ringflow/infer") -> bytes:
    """The bytes of a request that wants no other to follow."""
    lines = [f"POST /v2/models/{path} HTTP/1.1", "Host: test", "Connection: close", *headers]
    if json_size is not None:
        lines.append(f"Inference-Header-Content-Length: {json_size}")
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def status_and_json(answer: bytes) -> tuple[int, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), json.loads(body)
