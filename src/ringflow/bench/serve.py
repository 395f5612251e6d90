"""`ringflow bench serve`: what `ringflow serve` answers in a second, how long an answer takes, and whether it is the right one.

A server in a process of its own on loopback, and clients in this one that ask without a pause, each on its own connection.
They send simulated events of different sizes; every answer is compared with the one computed here before, and every request
has a name that its answer must bear: a lost or mixed-up answer is seen. ONNX must answer to the last bit, torch within
rounding that depends on what an event is computed with.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringflow.base.errors import FailureError
from ringflow.base.log import say
from ringflow.infer import shipped
from ringflow.recipes.serve import open_served, require_packages

if TYPE_CHECKING:
    from ringflow.infer.serve.served import ServedModel

CLIENTS = (1, 8, 64)
NUMBER = 12  # letters of the name of a request
_SEED, _EVENTS, _NAME = 78, 12, "ringflow"
_ROUNDING = 1e-3  # of momenta, relative to the largest of an event
_LOST_AFTER = 60.0  # seconds


def run(
    clients: Sequence[int] = (),
    seconds: float = 60.0,
    requests: int | None = None,
    model: Path | None = None,
    engine: str = "onnx",
    threads: int = 2,
) -> dict[str, Any]:
    """Rows of clients: for so long, or for so many requests if that is said."""
    require_packages()
    from ringflow.train.device import hardware

    path = shipped.model_file(model)
    with tempfile.TemporaryDirectory(prefix="ringflow-bench-") as folder:
        file = path
        if engine == "onnx" and path.suffix != ".onnx":  # one file for the server and for what is computed here
            from ringflow.infer.export import write_onnx
            from ringflow.models.file import load_model

            say("exporting the model")
            file = Path(folder) / "model.onnx"
            write_onnx(file, load_model(path))
        exchanges, exact = _exchanges(file, engine), engine == "onnx"
        with _server(file, engine, threads) as url:
            client_row(url, 1, Load(exchanges, exact, math.inf, 2 * len(exchanges)))  # everything once, to warm up
            rows = []
            for count in clients or CLIENTS:
                say(f"{count} clients")
                until = math.inf if requests else time.perf_counter() + seconds
                rows.append(client_row(url, count, Load(exchanges, exact, until, requests or math.inf)))
    return {
        "benchmark": "serve",
        "model": shipped.SHIPPED if path == shipped.MODEL else path.name,
        "engine": engine,
        "threads": threads,
        "distinct_events": len(exchanges),
        "rows": rows,
        **hardware("cpu"),
    }


@contextmanager
def _server(file: Path, engine: str, threads: int) -> Iterator[str]:
    """The address of a server that runs beside us."""
    words = f"--engine {engine} --device cpu --threads {threads} --port 0 --json".split()
    command = ["serve", "--model", str(file), *words]
    start = [sys.executable, "-m", "ringflow.cli", *command]
    with subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise FailureError("the server did not start; try: ringflow " + " ".join(command))
            yield json.loads(line)["url"]
        finally:
            process.terminate()
            process.wait()


class Exchange(NamedTuple):
    """A request and its answer, but for the name of the request, which stands between the two parts of either."""

    request: tuple[bytes, bytes]
    answer: tuple[bytes, bytes]
    json_size: int

    def is_answer(self, body: bytes, number: bytes, exact: bool) -> bool:
        """Whether this is what must come back: the same candidates, if not exactly with momenta that differ by rounding."""
        expected, first = number.join(self.answer), self.json_size
        if body == expected:
            return True
        if exact or len(body) != len(expected) or body[:first] != expected[:first]:
            return False
        for output in json.loads(expected[:first])["outputs"]:
            last = first + output["parameters"]["binary_data_size"]
            kind = np.float32 if output["datatype"] == "FP32" else np.int64
            here, there = (np.frombuffer(raw[first:last], kind) for raw in (body, expected))
            allowed = _ROUNDING * float(np.abs(there).max(initial=1.0)) if kind is np.float32 else 0.0
            if not np.allclose(here, there, rtol=0, atol=allowed):
                return False
            first = last
        return True


def _exchanges(file: Path, engine: str) -> list[Exchange]:
    """Simulated events as requests, with the answers of a session in this process."""
    from ringflow.bench.events import ttbar
    from ringflow.infer.runtime import event_values
    from ringflow.sim.blocks import SimulatedBlocks

    served = open_served(file, _NAME, engine, "cpu", 1)
    say(f"simulating {_EVENTS} ttbar events")
    detector = served.description.detector or "clic"
    source = SimulatedBlocks(ttbar(_SEED, detector=detector, events=_EVENTS, block_events=_EVENTS))
    events = list(event_values(source.block(0), served.description.inputs))
    source.close()
    return [exchange(served, event) for event in events]


def exchange(served: ServedModel, event: dict[str, Any]) -> Exchange:
    """The bytes that go to and fro for an event."""
    from ringflow.infer.serve.protocol import InferRequest, write

    number = "N" * NUMBER
    inputs = [
        {"name": kind, "shape": list(table.shape), "datatype": "FP32", "parameters": {"binary_data_size": table.nbytes}}
        for kind, table in event.items()
    ]
    header = json.dumps({"id": number, "inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join([header, *(table.tobytes() for table in event.values())])
    head = (
        f"POST /v2/models/{served.name}/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    asked = InferRequest(number, event, tuple((spec.name, True) for spec in served.outputs))
    parts, json_size = write(served.name, asked, served.compute([event])[0])
    assert json_size is not None
    before, _, after = (head + body).partition(number.encode())
    begin, _, end = b"".join(parts).partition(number.encode())
    return Exchange((before, after), (begin, end), json_size)


@dataclass
class Load:
    """What the clients of one row do and see."""

    exchanges: Sequence[Exchange]
    exact: bool
    until: float
    left: float
    latencies: list[float] = field(default_factory=list)
    wrong: int = 0
    failed: int = 0
    sent: int = 0

    def next(self) -> tuple[Exchange, bytes] | None:
        """One more request, unless that was enough."""
        if self.sent >= self.left or time.perf_counter() >= self.until:
            return None
        self.sent += 1
        return self.exchanges[self.sent % len(self.exchanges)], b"%0*d" % (NUMBER, self.sent)


async def client(host: str, port: int, load: Load) -> None:
    """Ask and wait, on one connection, which is made anew when it breaks."""
    writer = None
    while (planned := load.next()) is not None:
        asked, number = planned
        try:
            async with asyncio.timeout(_LOST_AFTER):
                if writer is None:
                    reader, writer = await asyncio.open_connection(host, port)
                begun = time.perf_counter()
                writer.write(number.join(asked.request))
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = re.search(rb"\r\ncontent-length: (\d+)", head)
                assert length is not None
                body = await reader.readexactly(int(length[1]))
        except (OSError, EOFError, TimeoutError):
            load.failed += 1
            if writer is not None:
                writer.close()
            writer = None
            continue
        if head.split(b" ", 2)[1] != b"200":
            load.failed += 1
        else:
            load.latencies.append(time.perf_counter() - begun)
            load.wrong += not asked.is_answer(body, number, load.exact)
    if writer is not None:
        writer.close()


def client_row(url: str, clients: int, load: Load) -> dict[str, Any]:
    """What so many clients saw of a server."""
    host, _, port = url.removeprefix("http://").rpartition(":")

    def memory() -> float:
        """Resident memory of the server in MB, as it says itself."""
        connection = http.client.HTTPConnection(host, int(port), timeout=_LOST_AFTER)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read()
        connection.close()
        found = re.search(rb"^process_resident_memory_bytes (\S+)", text, flags=re.MULTILINE)
        return round(float(found[1]) / 1e6, 1) if found else float("nan")

    async def all_clients() -> None:
        await asyncio.gather(*(client(host, int(port), load) for _ in range(clients)))

    before, started = memory(), time.perf_counter()
    asyncio.run(all_clients())
    elapsed = time.perf_counter() - started
    middle, tail = np.percentile(load.latencies or [np.nan], (50, 99))
    return {
        "clients": clients,
        "requests_per_second": round(len(load.latencies) / elapsed, 1),
        "p50_ms": round(1000.0 * float(middle), 2),
        "p99_ms": round(1000.0 * float(tail), 2),
        "requests": load.sent,
        "wrong": load.wrong,
        "failed": load.failed,
        "memory_mb_start": before,
        "memory_mb_end": memory(),
    }
