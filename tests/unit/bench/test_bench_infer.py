"""The benchmark of engines: what it reports, not how fast they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures.fake_events import write_fake_dataset
from ringflow.base.errors import UsageError
from ringflow.bench import infer as timing
from ringflow.infer.export import describe
from ringflow.models.file import save_model

COLUMNS = ["engine", "num_elements", "events_per_second", "cpu_ms_per_event", "peak_mb"]


@pytest.fixture
def weights(tmp_path: Path, small_model: Callable[..., Any]) -> Path:
    path = tmp_path / "model.safetensors"
    save_model(path, small_model().model, card=small_model().card)
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, small_onnx: Callable[..., Path]) -> Iterator[None]:
    """Fake events, no tracing, no process per row, no repetition."""

    def copied(path: Path, loaded: Any, portable: bool = False) -> Any:
        path.write_bytes(small_onnx().read_bytes())
        return describe(loaded)

    monkeypatch.setattr(timing, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(timing, "_ROUNDS", 2)
    monkeypatch.setattr(timing, "_simulate", lambda folder, events: write_fake_dataset(folder, events))
    monkeypatch.setattr(timing, "_measured_apart", timing.measure)
    monkeypatch.setattr(timing, "keep_freed_memory", lambda: None)  # it would stay so for the tests that follow
    monkeypatch.setattr("ringflow.infer.export.write_onnx", copied)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("quick")
def test_rows_of_all_engines(weights: Path, command: Callable[..., Any]):
    done = command("bench", "infer", "--model", weights, "--elements", 8, 20, "--events", 12, "--json")
    assert done.code == 0
    result = json.loads(done.stdout)
    assert [(row["engine"], row["num_elements"]) for row in result["rows"]] == [
        (engine, count) for engine in timing.ENGINES for count in (8, 20)
    ]
    for row in result["rows"]:
        assert list(row) == COLUMNS
        assert row["events_per_second"] > 0
        assert row["cpu_ms_per_event"] > 0
    assert set(result["file_to_file_events_per_second"]) == set(timing.ENGINES)
    assert min(result["file_to_file_events_per_second"].values()) > 0
    assert (result["threads"], result["batch"], result["model"]) == (2, 1, "model.safetensors")


@pytest.mark.usefixtures("quick")
def test_the_table_for_people(weights: Path, command: Callable[..., Any]):
    done = command("bench", "infer", "--model", weights, "--engines", "torch", "--elements", 8, "--events", 10)
    assert (done.code, done.stdout) == (0, "")
    assert "CPU ms per event" in done.stderr
    assert "events per second from file to file" in done.stderr


def test_an_event_has_the_number_of_elements(tmp_path: Path, small_model: Callable[..., Any]):
    inputs = describe(small_model()).inputs
    block = timing._first_block(write_fake_dataset(tmp_path / "dataset"), tuple(inputs))
    event = timing._event(block, inputs, 1000)
    share = len(block["track"]) / (len(block["track"]) + len(block["cluster"]))
    assert sum(map(len, event.values())) == 1000
    assert len(event["track"]) == pytest.approx(1000 * share, abs=1)
    assert event["cluster"].shape[1] == len(inputs["cluster"])


def test_an_unknown_engine_is_a_usage_error():
    with pytest.raises(UsageError, match="no engine named 'abacus'; choose from torch, onnx, onnx-int8"):
        timing.run(["abacus"])
