"""The benchmark of several processes: what it makes of what they report, and what it says when an engine fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ringflow.base.errors import FailureError
from ringflow.bench import scaling as timing
from ringflow.train.settings import TrainSettings

TINY = ("model.width=16", "model.layers=1", "model.heads=2", "model.hidden=16", "compute.batch_elements=64")
SETTINGS = TrainSettings.resolve(None, [*TINY, "compute.device=cpu"])
PARAMETERS = 1000
#: Seconds per step by engine and processes, one number per round.
SPEEDS = {
    ("local", 1, False): (0.10, 0.12),
    ("local", 2, False): (0.13, 0.11),
    ("mpi", 1, False): (0.11, 0.10),
    ("mpi", 2, False): (0.121, 0.15),
    ("local", 2, True): (0.15, 0.105),
}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, int, list[str]]]:
    """Starts of nothing: what processes would report is made up."""
    made: list[tuple[str, int, list[str]]] = []

    def launch(case: timing.Case, words: Sequence[str], plan: timing.ScalingPlan, folder: Path) -> None:
        engine, workers, apart = case
        before = sum(made_of == (engine, workers, apart) for made_of in ((e, n, "--apart" in w) for e, n, w in made))
        made.append((engine, workers, list(words)))
        if engine == "ray":
            raise FailureError("ray is not installed; pip install 'ringflow[ray]'")
        seconds = 0.2 if "compute.batch_elements=256" in words else SPEEDS[engine, workers, apart][before % 2]
        sent = 4.0 * PARAMETERS * 2 * (workers - 1) / workers
        found = {
            "workers": workers,
            "apart": apart,
            "strategy": "replicate",
            "device": "cpu",
            "parameters": PARAMETERS,
            "events_per_step": 8 * workers,
            "steps": 10,
            "seconds_per_step": seconds,
            "events_per_second": 8 * workers / seconds,
            "step_spread": 0.01,
            "first_step_at": 1e12,
            "bytes_per_step": 0.0 if apart else 1.01 * sent,
            "all_reduce": [{"bytes": 4096, "seconds": 1e-4}] if workers > 1 else [],
        }
        Path(words[words.index("--out") + 1]).write_text(json.dumps(found))

    monkeypatch.setattr(timing, "launch", launch)
    monkeypatch.chdir(tmp_path)
    return made


def test_the_fastest_round_counts(launches: list[Any], tmp_path: Path) -> None:
    plan = timing.ScalingPlan(engines=("local", "mpi"), workers=(2,), ring=(4,), num_elements=8, rounds=2)
    result = timing.run(SETTINGS, plan)
    rows = {(row["engine"], row["workers"]): row for row in result["rows"]}
    assert list(rows) == [("local", 1), ("mpi", 1), ("local", 2), ("mpi", 2), ("apart", 2)]
    assert rows["local", 1]["events_per_second"] == pytest.approx(80.0)
    assert rows["local", 1]["efficiency"] == 1.0
    assert rows["local", 2]["efficiency"] == pytest.approx(0.10 / 0.11, abs=1e-4)
    assert rows["mpi", 2]["efficiency"] == pytest.approx(0.10 / 0.121, abs=1e-4)
    assert rows["apart", 2]["efficiency"] == pytest.approx(0.10 / 0.105, abs=1e-4)
    assert rows["mpi", 2]["over_torchrun_percent"] == pytest.approx(10.0)
    assert rows["local", 2]["over_torchrun_percent"] == 0.0
    assert rows["local", 2]["bytes_over_ring"] == pytest.approx(1.01)
    assert [rows[key]["bytes_over_ring"] for key in (("local", 1), ("apart", 2))] == [None, None]
    assert result["ring"] == [{"workers": 4, "bytes_per_step": 6060, "ring_bytes": 6000, "bytes_over_ring": 1.01}]
    assert result["all_reduce"] == [{"bytes": 4096, "seconds": 1e-4}]
    # Engines and processes take turns, so that no one of them has all of a noisy minute.
    order = [(engine, workers) for engine, workers, _ in launches[:5]]
    assert order == [(engine, workers) for engine, workers, _ in launches[5:10]]
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_fails_is_a_row_and_is_not_tried_again(
    launches: list[Any], command: Callable[..., Any], tmp_path: Path
) -> None:
    plan = timing.ScalingPlan(engines=("local", "ray"), workers=(1,), ring=(), num_elements=8, rounds=2)
    result = timing.run(SETTINGS, plan)
    assert [row["engine"] for row in result["rows"]] == ["local", "ray"]
    assert result["rows"][1] == {
        "engine": "ray",
        "workers": 1,
        "error": "ray is not installed; pip install 'ringflow[ray]'",
    }
    assert [engine for engine, *_ in launches] == ["local", "ray", "local"]
    with pytest.raises(FailureError, match="no engine could be timed: ray is not installed"):
        timing.run(SETTINGS, plan._replace(engines=("ray",)))
    words = ("--engines", "local", "ray", "--workers", 1, "--ring", 2, "--elements", 8, "--rounds", 1)
    done = command("bench", "scaling", "clic_tiny", *words, "--out", tmp_path / "scaling.json")
    assert (done.code, done.stdout) == (0, "")
    assert "ray x 1: ray is not installed; pip install 'ringflow[ray]'" in done.stderr
    assert json.loads((tmp_path / "scaling.json").read_text())["benchmark"] == "scaling"


def test_one_of_a_team_times_the_team(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    words = ("clic_tiny", *TINY, "--elements", 8, "--seconds", 0.01, "--json", "--out", tmp_path / "found.json")
    done = command("bench", "scaling", *words)
    torch.set_num_threads(threads)
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "found.json").read_text())
    assert (found["workers"], found["events_per_step"], found["all_reduce"]) == (1, 8, [])
    assert found["bytes_per_step"] in (None, 0.0)
    assert found["events_per_second"] == pytest.approx(8 / found["seconds_per_step"])
    assert found["steps"] >= 3
    assert found["step_spread"] >= 0.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engines", "horovod"), "no engine named 'horovod'; choose from local, ray, spark, mpi, slurm"),
        (("--elements", 9_999_999), "an event of 9999999 elements does not fit into compute.batch_elements="),
        (("--workers", 0), "--workers"),
        (("compute.strategie=shard",), "did you mean 'compute.strategy'"),
    ],
)
def test_wrong_usage_is_one_line(command: Callable[..., Any], words: tuple[object, ...], message: str) -> None:
    done = command("bench", "scaling", "clic_tiny", *words)
    assert done.code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_an_engine_said_last_is_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert timing.last_words(log) == "nothing"
    for text, reason in (("hello\nringflow: error: taken\nmore\n", "taken"), ("hello\nbye\n", "bye")):
        log.write_text(text)
        assert timing.last_words(log) == reason
