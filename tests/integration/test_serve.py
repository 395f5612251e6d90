"""`ringflow serve` as a process: it says where it is, answers the client of Triton among clients of all kinds, and ends as
it should on signals."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput

from fixtures.hostile_clients import attack, scripts
from fixtures.networks import random_network
from ringflow.bench.serve import NUMBER, Load, client_row, exchange
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
        said = ""
        for line in self.process.stderr:
            if words in line:
                return
            said += line
        raise AssertionError(f"the server never said {words!r} but {said!r}")


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
            f"POST /v2/models/ringflow/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
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
        slow.sendall(b"POST /v2/models/ringflow/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        with InferenceServerClient(server.where) as client:
            assert client.is_server_live()
        server.process.send_signal(signal.SIGINT)
        server.wait_for("stopping; 1 requests are answered first")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 130


#: Clients of either kind, good and hostile.
_CLIENTS = 32


@pytest.mark.parametrize(
    (
        "seconds",
        "more_memory",
    ),  # MB, in the second half than in the first: in a few seconds, what may be held at a time
    [(3.0, 300.0), pytest.param(60.0, 32.0, marks=pytest.mark.heavy)],
)
def test_good_clients_among_hostile_ones(
    serve: Callable[..., Any], weights: Path, seconds: float, more_memory: float
) -> None:
    """Nobody gets a wrong answer or none, nothing but what is wrong with a request is an error, and memory stays.

    With `-s` it says what good clients saw, alone and among the others.
    """
    served = open_served(weights, "ringflow", "torch", "cpu", 1)
    with serve() as server:
        rng = np.random.default_rng(2)
        widths = {spec["name"]: spec["shape"][1] for spec in server.said["inputs"]}
        events = [
            {name: rng.uniform(0.5, 2, (rows, width)).astype(np.float32) for name, width in widths.items()}
            for rows in (3, 40, 90)
        ]
        exchanges = [exchange(served, event) for event in events]
        host, _, port = server.where.partition(":")
        good = (b"0" * NUMBER).join(exchanges[0].request)

        def quarter() -> dict[str, Any]:
            load = Load(exchanges, False, time.perf_counter() + seconds / 4, math.inf)
            return client_row(server.said["url"], _CLIENTS, load)

        alone = [quarter() for _ in range(4)]
        with attack(host, int(port), _CLIENTS, seconds, good) as hostile:
            mixed = [quarter() for _ in range(4)]
    for name, rows in (("alone", alone), ("mixed", mixed)):
        said = {key: [row[key] for row in rows] for key in ("requests", "p50_ms", "p99_ms", "memory_mb_end")}
        sys.stderr.write(f"{name}: {said}, load {os.getloadavg()[0]:.1f}\n")
    sys.stderr.write(f"hostile: {hostile}\n")
    assert {(row["wrong"], row["failed"]) for row in alone + mixed} == {(0, 0)}
    assert sum(row["requests"] for row in mixed) > _CLIENTS
    for kind, (statuses, _) in scripts(good).items():
        assert hostile[kind].keys() <= set(map(str, statuses)), kind
    memory = [row["memory_mb_end"] for row in mixed]
    assert min(memory[2:]) - max(memory[:2]) < more_memory
