"""`ringflow bench serve`: what `ringflow serve` answers in a second, how long an answer takes, and whether it is the right one.

A server in a process of its own on loopback, and clients in this one that ask without a pause, each on its own connection.
They send simulated events of different sizes; every answer is compared with the one computed here before, and every request
has a name that its answer must bear: a lost or mixed-up answer is seen. ONNX must answer to the last bit, torch within
rounding that depends on what an event is computed with.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringflow.base.errors import FailureError
from ringflow.base.log import say
from ringflow.bench.load import NUMBER, Exchange, Load, client, response
from ringflow.bench.record import hardware
from ringflow.infer import shipped
from ringflow.infer.shipped import model_file
from ringflow.recipes.serve import require_packages

if TYPE_CHECKING:
    from ringflow.infer.serve.served import ServedModel

CLIENTS = (1, 8, 64)
_SAMPLE, _SEED, _EVENTS = "ttbar", 78, 12
_NAME = "ringflow"


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
    path = model_file(model)
    with tempfile.TemporaryDirectory(prefix="ringflow-bench-") as folder:
        file = _for_engine(path, Path(folder), engine)
        exchanges = _exchanges(file, engine)
        with _server(file, engine, threads) as url:
            host, port = url.removeprefix("http://").rsplit(":", 1)
            asyncio.run(
                _row(host, int(port), 1, 1e9, 2 * len(exchanges), exchanges, engine)
            )  # everything once, to warm up
            rows = []
            for count in clients or CLIENTS:
                say(f"{count} clients")
                length = (1e9, requests) if requests else (seconds, 1 << 60)
                rows.append(asyncio.run(_row(host, int(port), count, *length, exchanges, engine)))
    return {
        "benchmark": "serve",
        "model": "shipped" if path == shipped.MODEL else path.name,
        "engine": engine,
        "threads": threads,
        "distinct_events": len(exchanges),
        "rows": rows,
        **hardware("cpu"),
    }


def _for_engine(path: Path, folder: Path, engine: str) -> Path:
    """One file for the server and for what is computed here."""
    if engine == "torch" or path.suffix == ".onnx":
        return path
    from ringflow.infer.export import write_onnx
    from ringflow.models.file import load_model

    say("exporting the model")
    write_onnx(folder / "model.onnx", load_model(path))
    return folder / "model.onnx"


def _exchanges(file: Path, engine: str) -> list[Exchange]:
    """Simulated events as requests, with the answers of a session in this process."""
    from ringflow.infer.runtime import event_values
    from ringflow.recipes.serve import open_served
    from ringflow.sim.blocks import SimulatedBlocks
    from ringflow.sim.settings import GeneratorSettings, ProductionSettings, SimulateSettings

    served = open_served(file, _NAME, engine, "cpu", 1)
    say(f"simulating {_EVENTS} {_SAMPLE} events")
    settings = SimulateSettings(
        detector=served.description.detector or "clic",
        generator=GeneratorSettings(sample=_SAMPLE, seed=_SEED),
        production=ProductionSettings(events=_EVENTS, block_events=_EVENTS),
    )
    source = SimulatedBlocks(settings)
    events = list(event_values(source.block(0), served.description.inputs))
    source.close()
    return [exchange(served, event) for event in events]


def exchange(served: ServedModel, event: dict[str, Any]) -> Exchange:
    """The bytes that go to and fro for an event."""
    from ringflow.infer.serve.protocol import InferRequest, write

    number = "N" * NUMBER
    inputs = [
        {
            "name": kind,
            "shape": list(table.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": table.nbytes},
        }
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
    return Exchange(_around(head + body, number), _around(b"".join(parts), number), json_size)


def _around(body: bytes, number: str) -> tuple[bytes, bytes]:
    before, after = body.split(number.encode(), 1)
    return before, after


async def _row(
    host: str, port: int, clients: int, seconds: float, requests: int, exchanges: Sequence[Exchange], engine: str
) -> dict[str, Any]:
    import numpy as np

    before = await _memory(host, port)
    started = time.perf_counter()
    load = Load(exchanges, engine == "onnx", started + seconds, requests)
    await asyncio.gather(*(client(host, port, load) for _ in range(clients)))
    elapsed = time.perf_counter() - started
    middle, tail = np.percentile(load.latencies, (50, 99)) if load.latencies else (np.nan, np.nan)
    return {
        "clients": clients,
        "requests_per_second": round(len(load.latencies) / elapsed, 1),
        "p50_ms": round(1000.0 * float(middle), 2),
        "p99_ms": round(1000.0 * float(tail), 2),
        "requests": load.sent,
        "wrong": load.wrong,
        "failed": load.failed,
        "memory_mb_start": before,
        "memory_mb_end": await _memory(host, port),
    }


async def _memory(host: str, port: int) -> float:
    """Resident memory of the server in MB, as it says itself."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    _, text = await response(reader)
    writer.close()
    found = re.search(rb"^process_resident_memory_bytes (\S+)", text, flags=re.MULTILINE)
    return round(float(found[1]) / 1e6, 1) if found else float("nan")


@contextmanager
def _server(file: Path, engine: str, threads: int) -> Iterator[str]:
    """The address of a server that runs beside us."""
    words = [
        "serve",
        "--model",
        file,
        "--engine",
        engine,
        "--device",
        "cpu",
        "--threads",
        threads,
        "--port",
        0,
        "--json",
    ]
    command = [sys.executable, "-m", "ringflow.cli", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(os.environ)) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise FailureError("the server did not start; try: ringflow " + " ".join(map(str, words)))
            yield json.loads(line)["url"]
        finally:
            process.terminate()
            process.wait()
