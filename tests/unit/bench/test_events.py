"""What an event costs: what the benchmarks of simulation, rules, networks and engines report, not how fast they are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.fake_events import write_fake_dataset
from ringflow.base.errors import UsageError
from ringflow.bench import events as timing
from ringflow.bench import write_record
from ringflow.data.read import Dataset
from ringflow.infer import shipped
from ringflow.infer.export import describe
from ringflow.models.file import save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings

COLUMNS = ["backbone", "num_elements", "parameters", "cpu_ms_per_event", "wall_ms_per_event", "peak_mb"]


def made_up(work: object, backbone: str, num_elements: int) -> dict[str, Any]:
    """A row as if time were 0.01 ms times the elements to the power 1.25, but for small events."""
    time = 0.01 * num_elements**1.25 if num_elements >= 1000 else 1e6
    return dict(zip(COLUMNS, (backbone, num_elements, 1, time, 1.0, 1.0), strict=True))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No repetition, and nothing that would stay for the tests that follow."""
    monkeypatch.setattr("ringflow.bench._LEAST_SECONDS", 0.0)
    monkeypatch.setattr(timing, "keep_freed_memory", lambda: None)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, small_onnx: Callable[..., Path], short: None) -> None:
    """Fake events, no tracing, no process per row."""

    def copied(path: Path, loaded: Any, portable: bool = False) -> Any:
        path.write_bytes(small_onnx().read_bytes())
        return describe(loaded)

    monkeypatch.setattr(timing, "_ROUNDS", 2)
    made_up = lambda settings, folder: write_fake_dataset(folder, settings.production.events)  # noqa: E731
    monkeypatch.setattr(timing, "produce", made_up)
    monkeypatch.setattr(timing, "in_fresh_process", lambda work, *words: work(*words))
    monkeypatch.setattr("ringflow.infer.export.write_onnx", copied)


@pytest.fixture
def weights(tmp_path: Path, small_model: Callable[..., Any]) -> Path:
    path = tmp_path / "model.safetensors"
    save_model(path, small_model().model, card=small_model().card)
    return path


@pytest.mark.heavy
def test_a_row_of_its_own_process(command: Callable[..., Any]):
    done = command("bench", "model", "--backbones", "mlp", "--elements", "20000", "--json")
    assert done.code == 0
    result = json.loads(done.stdout)
    [row] = result["rows"]
    assert list(row) == COLUMNS
    assert (row["backbone"], row["num_elements"]) == ("mlp", 20_000)
    assert row["parameters"] == Model(ModelSettings(backbone="mlp")).num_parameters
    assert 20 < row["peak_mb"] < 500  # one hidden layer of 512 numbers per element is 41
    assert (result["batch"], result["threads"], result["exponents"]) == (1, 2, {})


def test_exponents_are_fitted_in_the_range(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timing, "in_fresh_process", made_up)
    result = timing.time_models(["graph", "attention", "mlp"])
    assert result["exponents"] == {"graph": 1.25, "attention": 1.25, "mlp": 1.25}
    sizes = {
        name: [row["num_elements"] for row in result["rows"] if row["backbone"] == name]
        for name in ("graph", "attention")
    }
    assert sizes["graph"] == list(timing.MODEL_ELEMENTS)
    assert sizes["attention"] == [count for count in timing.MODEL_ELEMENTS if count <= 16_384]
    assert timing.time_models(["graph"], [1000, 2000])["exponents"] == {}


@pytest.mark.usefixtures("short")
def test_the_shipped_model_is_measured_if_it_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(shipped, "MODEL", tmp_path / "clic.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(timing, "in_fresh_process", made_up)
        without = timing.time_models(["shipped"])
        assert without["rows"] == []
        assert "no shipped model" in without["notes"][-1]
        model = Model(ModelSettings(width=16, heads=2, layers=1))
        save_model(shipped.MODEL, model)
        rows = timing.time_models(["shipped"])["rows"]
        assert {row["backbone"] for row in rows} == {"shipped"}
        assert (rows[0]["num_elements"], rows[-1]["num_elements"]) == (128, 16_384)  # it is an attention model
    row = timing.measure_model("shipped", 20)
    assert row["parameters"] == model.num_parameters
    assert min(row["cpu_ms_per_event"], row["wall_ms_per_event"]) > 0


def test_peak_memory_is_that_of_the_work():
    # In a process of its own: one that kept freed memory from earlier work would take the block from there.
    code = (
        "import torch; from ringflow.bench import peak_megabytes as peak; "
        "print(peak(lambda: torch.ones(64 << 20, dtype=torch.uint8)), peak(lambda: None))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    of_work, of_nothing = map(float, done.stdout.split())
    assert 60 < of_work < 100
    assert of_nothing < 10


@pytest.mark.usefixtures("quick")
def test_rows_of_all_engines(weights: Path, command: Callable[..., Any]):
    done = command("bench", "infer", "--model", weights, "--elements", 8, 20, "--events", 12, "--json")
    assert done.code == 0
    result = json.loads(done.stdout)
    assert [(row["engine"], row["num_elements"]) for row in result["rows"]] == [
        (engine, count) for engine in timing.ENGINES for count in (8, 20)
    ]
    for row in result["rows"]:
        assert list(row) == ["engine", "num_elements", "events_per_second", "cpu_ms_per_event", "peak_mb"]
        assert min(row["events_per_second"], row["cpu_ms_per_event"]) > 0
    assert set(result["file_to_file_events_per_second"]) == set(timing.ENGINES)
    assert min(result["file_to_file_events_per_second"].values()) > 0
    assert (result["threads"], result["batch"], result["model"]) == (2, 1, "model.safetensors")


def test_an_event_has_the_number_of_elements(tmp_path: Path, small_model: Callable[..., Any]):
    inputs = describe(small_model()).inputs
    block = next(Dataset(write_fake_dataset(tmp_path / "dataset")).events(columns=list(inputs)))
    event = timing.draw_event(block, inputs, 1000)
    share = len(block["track"]) / (len(block["track"]) + len(block["cluster"]))
    assert sum(map(len, event.values())) == 1000
    assert len(event["track"]) == pytest.approx(1000 * share, abs=1)
    with pytest.raises(UsageError, match="no backbone named 'swarm'; choose from graph"):
        timing.time_models(["swarm"])
    with pytest.raises(UsageError, match="no engine named 'abacus'; choose from torch, onnx, onnx-int8"):
        timing.time_engines(["abacus"])


def test_a_production_is_timed_and_the_machine_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timing, "_BLOCKS", 1)
    result = timing.simulate(events=20, workers=1, detector="clic", device="cpu")
    assert result["events_per_second_per_core"] == pytest.approx(result["events_per_second"], abs=0.01)
    assert result["events_per_second"] > 0
    assert result["kilobytes_per_event"] > 10
    assert set(result["milliseconds_per_event"]) == {"generate", "detector"}
    assert result["cores"] >= 1
    assert json.loads(write_record(result, tmp_path / "record.json").read_text(encoding="utf-8")) == result
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="device 'cuda' cannot be used here"):
            timing.simulate(events=10, workers=1, detector="clic", device="cuda")


def test_the_rules_report_speed_and_growth():
    result = timing.baseline(events=12, detector="clic")
    assert result["events_per_second_per_core"] > 0
    assert [row["pions"] for row in result["pions"]] == list(timing.PIONS)
    assert result["pions"][-1]["milliseconds_per_event"] > result["pions"][0]["milliseconds_per_event"]
    assert 0.5 < result["exponent"] < 3.0


def test_pions_are_on_their_mass_shell_and_in_the_barrel():
    events = timing.many_pions(25, 8)
    assert events.counts.tolist() == [25] * 8
    p2 = events.px**2 + events.py**2 + events.pz**2
    assert np.sqrt(events.energy**2 - p2) == pytest.approx(0.13957, rel=1e-3)
    assert (np.abs(events.pz) < 0.7 * np.sqrt(p2)).all()
