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

COLUMNS = [
    "clients",
    "requests_per_second",
    "p50_ms",
    "p99_ms",
    "requests",
    "wrong",
    "failed",
    "memory_mb_start",
    "memory_mb_end",
]


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
    assert [(row["clients"], row["requests"], row["wrong"], row["failed"]) for row in result["rows"]] == [
        (1, 40, 0, 0),
        (4, 40, 0, 0),
    ]
    assert all(row["requests_per_second"] > 0 and row["memory_mb_end"] > 10 for row in result["rows"])
    assert (result["benchmark"], result["engine"], result["distinct_events"]) == ("serve", "torch", 5)


def against(exchanges: list[Exchange], answer: Callable[[Exchange, bytes, int], bytes], exact: bool) -> Load:
    """Ten requests to a server that answers as told."""

    async def run() -> Load:
        count = 0

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal count
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    body = await reader.readexactly(
                        int(head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])
                    )
                    count += 1
                    number = body[8 : 8 + NUMBER]
                    asked = next(e for e in exchanges if number.join(e.request) == head + body)
                    writer.write(answer(asked, number, count))
            except (EOFError, OSError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        made = Load(exchanges, exact, until=float("inf"), left=10)
        await asyncio.gather(*(client("127.0.0.1", port, made) for _ in range(2)))
        server.close()
        await server.wait_closed()
        return made

    return asyncio.run(run())


def http(body: bytes, status: int = 200) -> bytes:
    return (
        b"HTTP/1.1 %d X\r\nInference-Header-Content-Length: 3\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        + body
    )


def test_right_answers(exchanges: list[Exchange]) -> None:
    made = against(exchanges, lambda asked, number, count: http(number.join(asked.answer)), exact=True)
    assert (made.sent, len(made.latencies), made.wrong, made.failed) == (10, 10, 0, 0)


def test_answers_of_others(exchanges: list[Exchange]) -> None:
    def another(asked: Exchange, number: bytes, count: int) -> bytes:
        if count == 3:  # the answer to another event
            return http(number.join(exchanges[exchanges.index(asked) - 1].answer))
        if count == 5:  # the right event, but of another request
            return http((b"9" * NUMBER).join(asked.answer))
        return http(number.join(asked.answer))

    for exact in (True, False):
        made = against(exchanges, another, exact)
        assert (made.sent, made.wrong, made.failed) == (10, 2, 0)


def test_answers_that_fail_or_are_lost(exchanges: list[Exchange]) -> None:
    def broken(asked: Exchange, number: bytes, count: int) -> bytes:
        return http(b"{}", 503) if count == 3 else http(number.join(asked.answer))

    made = against(exchanges, broken, exact=True)
    assert (made.sent, len(made.latencies), made.wrong, made.failed) == (10, 9, 0, 1)


def test_rounding(exchanges: list[Exchange]) -> None:
    number = b"0" * NUMBER
    asked = max(exchanges, key=lambda one: len(one.answer[1]))
    right = number.join(asked.answer)
    said = json.loads(right[: asked.json_size])["outputs"]
    sizes = [output["parameters"]["binary_data_size"] for output in said]
    momentum = asked.json_size + sum(sizes[:2])
    assert [output["name"] for output in said][2] == "candidate_momentum"

    def changed(first: int, kind: str, factor: float) -> bytes:
        values = np.frombuffer(right[first : first + 8], kind) * factor
        return right[:first] + values.astype(kind).tobytes() + right[first + 8 :]

    near, far = changed(momentum, "<f4", 1 + 1e-6), changed(momentum, "<f4", 3.0)
    assert near != right
    assert asked.is_answer(near, number, exact=False)
    assert not asked.is_answer(near, number, exact=True)
    assert not asked.is_answer(far, number, exact=False)
    assert not asked.is_answer(changed(asked.json_size, "<i8", 2), number, exact=False)
    assert not asked.is_answer(right[:-8], number, exact=False)
