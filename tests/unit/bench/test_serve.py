"""The benchmark of serving: what it reports, and that it sees an answer that is wrong, another's, or missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.fake_events import fake_block
from ringflow.bench import serve
from ringflow.bench.serve import NUMBER, Exchange, Load, client
from ringflow.infer.export import describe
from ringflow.infer.runtime import event_values
from ringflow.infer.serve.served import ServedModel
from ringflow.infer.session import Session
from ringflow.models.file import save_model

COLUMNS = ["clients", "requests_per_second", "p50_ms", "p99_ms", "requests", "wrong", "failed"]
COLUMNS += ["memory_mb_start", "memory_mb_end"]


@pytest.fixture
def exchanges(small_model: Callable[..., Any]) -> list[Exchange]:
    loaded = small_model()
    served = ServedModel("ringflow", Session(loaded), describe(loaded), "torch")
    return [serve.exchange(served, event) for event in event_values(fake_block(0, 5), served.description.inputs)]


def test_rows(
    tmp_path: Path,
    small_model: Callable[..., Any],
    exchanges: list[Exchange],
    command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = tmp_path / "model.safetensors"
    save_model(weights, small_model().model, card=small_model().card)
    monkeypatch.setattr(serve, "_exchanges", lambda file, engine: exchanges)
    words = ["--model", weights, "--engine", "torch", "--threads", 1, "--clients", 1, 4, "--requests", 40, "--json"]
    done = command("bench", "serve", *words)
    assert done.code == 0
    assert "80 requests, 0 of them answered wrong or not at all" in done.stderr
    result = json.loads(done.stdout)
    assert [list(row) for row in result["rows"]] == [COLUMNS] * 2
    assert [[row[name] for name in ("clients", "requests", "wrong", "failed")] for row in result["rows"]] == [
        [1, 40, 0, 0],
        [4, 40, 0, 0],
    ]
    assert all(row["requests_per_second"] > 0 and row["memory_mb_end"] > 10 for row in result["rows"])
    assert (result["benchmark"], result["engine"], result["distinct_events"]) == ("serve", "torch", 5)


@pytest.mark.parametrize(
    ("kind", "wrong", "failed"),
    [("right", 0, 0), ("of another event", 1, 0), ("of another request", 1, 0), ("refused", 0, 1), ("lost", 0, 1)],
)
@pytest.mark.parametrize("exact", [True, False])
def test_an_answer_is_looked_at(exchanges: list[Exchange], kind: str, wrong: int, failed: int, exact: bool) -> None:
    """Ten requests of two clients to a server that answers the third one as told."""
    count = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                count += 1
                number, chosen = body[8 : 8 + NUMBER], kind if count == 3 else "right"
                if chosen == "lost":
                    break
                asked = next(index for index, e in enumerate(exchanges) if number.join(e.request) == head + body)
                answer = exchanges[asked - (chosen == "of another event")].answer
                said = (b"9" * NUMBER if chosen == "of another request" else number).join(answer)
                status = b"503" if chosen == "refused" else b"200"
                writer.write(b"HTTP/1.1 %s X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(said), said))
        except (EOFError, OSError):
            pass
        finally:
            writer.close()

    async def ask(load: Load) -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await asyncio.gather(*(client("127.0.0.1", port, load) for _ in range(2)))
        server.close()
        await server.wait_closed()

    load = Load(exchanges, exact, until=float("inf"), left=10)
    asyncio.run(ask(load))
    assert (load.sent, len(load.latencies), load.wrong, load.failed) == (10, 10 - failed, wrong, failed)


def test_rounding(exchanges: list[Exchange]) -> None:
    number = b"0" * NUMBER
    asked = max(exchanges, key=lambda one: len(one.answer[1]))
    right = number.join(asked.answer)
    said = json.loads(right[: asked.json_size])["outputs"]
    momentum = asked.json_size + sum(output["parameters"]["binary_data_size"] for output in said[:2])
    assert said[2]["name"] == "candidate_momentum"

    def changed(first: int, kind: str, factor: float) -> bytes:
        values = np.frombuffer(right[first : first + 8], kind) * factor
        return right[:first] + values.astype(kind).tobytes() + right[first + 8 :]

    near = changed(momentum, "<f4", 1 + 1e-6)
    assert near != right
    assert asked.is_answer(near, number, exact=False)
    assert not asked.is_answer(near, number, exact=True)
    for other in (changed(momentum, "<f4", 3.0), changed(asked.json_size, "<i8", 2), right[:-8]):
        assert not asked.is_answer(other, number, exact=False)
