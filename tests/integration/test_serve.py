"""`ringflow serve` as a process: it says where it is, answers the client of Triton, and ends as it should on signals."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput

from fixtures.networks import random_network
from ringflow.models.file import save_model
from ringflow.recipes.serve import open_served

PATIENCE = 120.0


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, random_network(), card={"detector": "clic"})
    return path


class Server:
    """A server that runs beside the test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.said = json.loads(process.stdout.readline())
        self.where = self.said["url"].removeprefix("http://")

    def connect(self) -> socket.socket:
        host, port = self.where.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=PATIENCE)

    def wait_for(self, words: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if words in line:
                return
        raise AssertionError(f"the server never said {words!r}")


@pytest.fixture
def serve(weights: Path) -> Callable[..., Any]:
    @contextmanager
    def start() -> Iterator[Server]:
        words = ["serve", "--model", str(weights), "--engine", "torch", "--device", "cpu", "--port", "0", "--json"]
        command = [sys.executable, "-m", "ringflow.cli", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield Server(process)
            finally:
                process.kill()

    return start


def event(said: dict[str, Any]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {entry["name"]: rng.uniform(0.5, 2, (9, entry["shape"][1])).astype(np.float32) for entry in said["inputs"]}


def test_a_stop_answers_who_was_accepted(serve: Callable[..., Any], weights: Path) -> None:
    served = open_served(weights, "ringflow", "torch", "cpu", 1)
    with serve() as server:
        assert (server.said["model"], server.said["engine"], server.said["detector"]) == ("ringflow", "torch", "clic")
        tables = event(server.said)
        expected = served.compute([tables])[0]
        inputs = [InferInput(kind, list(table.shape), "FP32") for kind, table in tables.items()]
        for given, table in zip(inputs, tables.values(), strict=True):
            given.set_data_from_numpy(table)
        with InferenceServerClient(server.where) as client:
            result = client.infer("ringflow", inputs)
            body, size = client.generate_request_body(inputs)
        assert len(expected["candidate_label"]) > 3
        for name, value in expected.items():
            np.testing.assert_allclose(result.as_numpy(name), value, rtol=1e-4, atol=1e-4)

        head = (
            f"POST /v2/models/ringflow/infer HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n"
            f"Inference-Header-Content-Length: {size}\r\n\r\n"
        )
        with server.connect() as slow:
            slow.sendall(head.encode() + body[:100])
            with InferenceServerClient(server.where) as client:
                assert client.is_server_ready()  # so the head before it was read
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("stopping; 1 requests are answered first")
            slow.sendall(body[100:])
            answer = b""
            while chunk := slow.recv(1 << 16):
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(expected[list(expected)[-1]].tobytes())
        assert server.process.wait(PATIENCE) == 0
        assert server.process.stdout.read() == ""


def test_a_second_signal_ends_at_once(serve: Callable[..., Any]) -> None:
    with serve() as server, server.connect() as slow:
        slow.sendall(b"POST /v2/models/ringflow/infer HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n{")
        with InferenceServerClient(server.where) as client:
            assert client.is_server_live()
        server.process.send_signal(signal.SIGINT)
        server.wait_for("stopping; 1 requests are answered first")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 130
