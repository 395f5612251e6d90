"""The first thing a newcomer runs, as a newcomer runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.config import write
from ringflow.recipes import demo as recipe
from ringflow.train.settings import TrainSettings


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-m", "ringflow.cli", *words)
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def test_a_small_demo_makes_checked_datasets_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipe, "SAMPLES", ("zh",))
    monkeypatch.setattr(recipe, "EVENTS", 20)
    monkeypatch.setattr(recipe, "WORKERS", 1)
    done = command("demo", "--json")
    result = json.loads(done.stdout)
    assert [(name, made["summary"]["events"]) for name, made in result["datasets"].items()] == [("zh", 20)]
    assert all(
        "model" in {**e["reconstructions"], **e["not_available"]} for e in result["evaluation"]["samples"].values()
    )
    assert (tmp_path / "demo" / "report" / "index.html").stat().st_size > 100_000
    assert "made: demo/report/index.html" in done.stderr
    page = (tmp_path / result["events"]).read_text()
    assert page.count("data-scene=") == 5
    assert done.stderr.endswith("made: demo/events/index.html\nnext: ringflow display demo/zh\n")


@pytest.mark.heavy
def test_the_demo_makes_checked_datasets_and_a_report(tmp_path: Path) -> None:
    done = run(tmp_path, "demo", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"]
    assert list(result["datasets"]) == ["ttbar", "zh"]
    for made in result["datasets"].values():
        assert made["summary"]["events"] == 300
        assert len(made["gates"]) >= 15
    for entry in result["evaluation"]["samples"].values():
        found = entry["reconstructions"]
        assert found["perfect"]["particle_f1"]["lo"] > found["baseline"]["particle_f1"]["hi"]
        assert "model" in {**found, **entry["not_available"]}
    assert result["report"] == "demo/report/index.html"
    assert (tmp_path / "demo" / "report" / "index.html").stat().st_size > 100_000
    assert "made: demo/report/index.html" in done.stderr

    # A dataset whose shard was cut short is told, without a traceback.
    shard = next((tmp_path / "demo" / "ttbar").rglob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-100])
    check = run(tmp_path, "check", "demo/ttbar", "--json")
    assert check.returncode == 1
    assert "Traceback" not in check.stderr
    assert [row["gate"] for row in json.loads(check.stdout) if not row["ok"]]


def test_training_in_the_demo_puts_both_networks_into_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["model.width=16", "model.layers=1", "model.heads=2", "model.hidden=16", "length.events=64"]
    few = ["length.validate_every=64", "length.validation_events=4"]
    write(TrainSettings.resolve("clic_tiny", [*small, *few]), tmp_path / "small.toml")
    monkeypatch.setattr(recipe, "SAMPLES", ("ww",))
    monkeypatch.setattr(recipe, "EVENTS", 20)
    monkeypatch.setattr(recipe, "LEARNED_EVENTS", 40)
    monkeypatch.setattr(recipe, "WORKERS", 1)
    monkeypatch.setattr(recipe, "PRESET", str(tmp_path / "small.toml"))
    drawn: list[Path] = []
    monkeypatch.setattr("ringflow.evaluate.report.write_report", lambda *_: drawn.append(_[2]))
    result = recipe.demo(tmp_path / "demo", training=True)
    found = result["evaluation"]["samples"]["ww"]["reconstructions"]
    assert {"baseline", "attention", "mlp"} <= set(found)
    assert result["evaluation"]["samples"]["ww"]["events"] == 20
    assert result["training"]["mlp"]["events"] >= 64
    assert drawn == [tmp_path / "demo" / "report"]


@pytest.mark.parametrize(
    ("widths", "beaten"), [((0.05, 0.1), True), ((0.1, 0.05), False), ((None, 0.1), False), ((0.1, None), True)]
)
def test_one_beats_the_other_by_narrower_jets(widths: tuple[Any, Any], beaten: bool) -> None:
    found = {name: {"jet_iqr_over_median": {"value": w}} for name, w in zip(("a", "b"), widths, strict=True)}
    better = {name: {"jet_iqr_over_median": {"value": w}} for name, w in zip(("a", "b"), (0.1, 0.2), strict=True)}
    evaluation = {"samples": {"one": {"reconstructions": better}, "two": {"reconstructions": found}}}
    assert recipe._beaten(evaluation, "a", "b") is beaten


@pytest.mark.heavy
def test_a_network_trained_in_the_demo_beats_the_one_without_exchange(tmp_path: Path) -> None:
    done = run(tmp_path, "demo", "--train", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]
