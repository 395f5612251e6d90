"""The benchmark of networks: what it reports, not how fast they are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ringflow.base.errors import UsageError
from ringflow.bench import model as timing
from ringflow.elements.batch import random_elements
from ringflow.infer import shipped
from ringflow.models.file import save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings

COLUMNS = ["backbone", "num_elements", "parameters", "cpu_ms_per_event", "wall_ms_per_event", "peak_mb"]


def made_up(backbone: str, num_elements: int) -> dict[str, Any]:
    """A row as if time were 0.01 ms times the elements to the power 1.25."""
    values = (backbone, num_elements, 1, 0.01 * num_elements**1.25, 1.0, 1.0)
    return dict(zip(COLUMNS, values, strict=True))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_LEAST_SECONDS", 0.0)


@pytest.mark.usefixtures("short")
def test_a_row_is_measured():
    threads = torch.get_num_threads()
    row = timing.measure("graph", 40)
    torch.set_num_threads(threads)
    assert list(row) == COLUMNS
    assert row["parameters"] == Model(ModelSettings(backbone="graph")).num_parameters
    assert row["cpu_ms_per_event"] > 0
    assert row["wall_ms_per_event"] > 0


def test_a_row_of_its_own_process(command: Callable[..., Any]):
    done = command("bench", "model", "--backbones", "mlp", "--elements", "20000", "--json")
    assert done.code == 0
    result = json.loads(done.stdout)
    [row] = result["rows"]
    assert list(row) == COLUMNS
    assert (row["backbone"], row["num_elements"]) == ("mlp", 20_000)
    assert 20 < row["peak_mb"] < 500  # one hidden layer of 512 numbers per element is 41
    assert (result["batch"], result["threads"], result["exponents"]) == (1, 2, {})


def test_exponents_are_fitted_in_the_range(monkeypatch: pytest.MonkeyPatch):
    def bent(backbone: str, num_elements: int) -> dict[str, Any]:
        row = made_up(backbone, num_elements)
        return row if num_elements >= 1000 else {**row, "cpu_ms_per_event": 1e6}

    monkeypatch.setattr(timing, "_measured_apart", bent)
    result = timing.run(["graph", "attention", "mlp"])
    assert result["exponents"] == {"graph": 1.25, "attention": 1.25, "mlp": 1.25}
    sizes = {
        name: [row["num_elements"] for row in result["rows"] if row["backbone"] == name]
        for name in ("graph", "attention")
    }
    assert sizes["graph"] == list(timing.ELEMENTS)
    assert sizes["attention"] == [count for count in timing.ELEMENTS if count <= 16_384]
    assert timing.run(["graph"], [1000, 2000])["exponents"] == {}


def test_the_shipped_model_is_measured_if_it_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(timing, "_measured_apart", made_up)
    monkeypatch.setattr(shipped, "MODEL", tmp_path / "clic.safetensors")
    without = timing.run(["shipped"])
    assert without["rows"] == []
    assert "no shipped model" in without["notes"][-1]
    save_model(shipped.MODEL, Model(ModelSettings(width=16, heads=2, layers=1)))
    rows = timing.run(["shipped"])["rows"]
    assert {row["backbone"] for row in rows} == {"shipped"}
    assert rows[0]["num_elements"] == 128
    assert rows[-1]["num_elements"] == 16_384  # it is an attention model


@pytest.mark.usefixtures("short")
def test_the_shipped_row_is_the_model_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(shipped, "MODEL", tmp_path / "clic.safetensors")
    model = Model(ModelSettings(width=16, heads=2, layers=1))
    save_model(shipped.MODEL, model)
    threads = torch.get_num_threads()
    assert timing.measure("shipped", 20)["parameters"] == model.num_parameters
    torch.set_num_threads(threads)


def test_an_unknown_backbone_is_a_usage_error():
    with pytest.raises(UsageError, match="no backbone named 'swarm'; choose from graph"):
        timing.run(["swarm"])


def test_peak_memory_is_that_of_the_work():
    # In a process of its own: one that kept freed memory from earlier work would take the block from there.
    code = (
        "import torch; from ringflow.bench.model import peak_megabytes as peak; "
        "print(peak(lambda: torch.ones(64 << 20, dtype=torch.uint8)), peak(lambda: None))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    of_work, of_nothing = map(float, done.stdout.split())
    assert 60 < of_work < 100
    assert of_nothing < 10


def test_random_elements_look_like_elements():
    batch = random_elements([3, 0, 4], "hit")
    assert batch.counts_B.tolist() == [3, 0, 4]
    assert (batch.features_NF.isnan().any(1) & ~batch.features_NF.isnan().all(1)).all()
    momentum = batch.reference_N4[:, 0] * torch.cosh(batch.reference_N4[:, 1])
    assert torch.allclose(batch.reference_N4[:, 3], momentum)
