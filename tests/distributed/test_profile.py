"""A training that is measured: what two real processes did, who was waited for, and what went over the wire."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures import FOLDER
from fixtures.slow_rank import DELAY
from fixtures.tiny_training import make_dataset, ringflow, running, spoken, wait_for
from ringflow.models.file import load_model
from ringflow.train.profile import StepTable, Traffic, read_table
from ringflow.train.run import train
from ringflow.train.settings import TrainSettings

#: What a table of times says is tested on tables made up, in tests/unit/train/test_profile.py.
pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.heavy]

#: A megabyte of weights, so that small messages are small.
NETWORK = ("model.width=96", "model.layers=2", "model.heads=2", "model.hidden=384", "model.dropout=0.1")
SMALL = (
    *NETWORK,
    "length.events=200",
    "length.validate_every=150",
    "length.validation_events=4",
    "compute.batch_elements=30",
    "compute.device=cpu",
    "compute.timeout=120",
    "source.lanes=2",
    "detector=fake",
)
CUT_UP = ["tensor", "shard", "pipeline"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


@pytest.fixture(scope="module")
def runs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes of which the second is slow, one measured and one not."""
    wanted = {"plain": ["profile=false"], "replicate": []}
    return measured(tmp_path_factory.mktemp("runs"), dataset, wanted)


@pytest.fixture(scope="module")
def more_runs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in the other strategies."""
    return measured(tmp_path_factory.mktemp("more"), dataset, {name: cut_up(name) for name in CUT_UP})


def cut_up(strategy: str) -> list[str]:
    return [f"compute.strategy={strategy}", "length.events=60"]


def measured(folder: Path, dataset: Path, wanted: dict[str, list[str]]) -> Path:
    commands = [
        ["train", f"data={dataset}", *SMALL, "profile=true", *more, "--out", str(folder / name)]
        for name, more in wanted.items()
    ]
    script = FOLDER / "slow_rank.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, script, json.dumps(commands)],
        capture_output=True, text=True, timeout=240, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder / "said.txt").write_text(done.stderr)
    return folder


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "profile" / "summary.json").read_text())


def table(run: Path) -> StepTable:
    return read_table(run / "profile" / "steps.csv")


def test_a_slow_rank_is_named(runs: Path):
    (found,) = summary(runs / "replicate")["stragglers"]
    assert (found["rank"], found["slower_in"]) == (1, "data")
    assert found["slower_ms"] == pytest.approx(1e3 * DELAY, rel=0.3)
    assert found["share"] > 0.7
    said = spoken((runs / "said.txt").read_text())
    assert found["text"] in said
    assert f"profile: {runs / 'replicate' / 'profile' / 'report.html'}" in said


def test_the_fast_rank_is_idle_as_long_as_the_other_is_slow(runs: Path):
    steps = table(runs / "replicate")
    assert steps["idle_ms"][:, 0].mean() > 0.8e3 * DELAY
    assert steps["idle_ms"][:, 0].mean() > 3 * steps["idle_ms"][:, 1].mean()
    assert steps["data_ms"][:, 1].min() >= 1e3 * DELAY
    assert (steps["other_ms"] >= 0.0).all()


def test_measuring_does_not_change_the_training(runs: Path):
    measured, plain = (
        load_model(runs / name / "last.safetensors").model.state_dict() for name in ("replicate", "plain")
    )
    for name, weight in measured.items():
        assert torch.equal(weight, plain[name]), name
    assert not (runs / "plain" / "profile").exists()


def test_a_trace_shows_both_ranks(runs: Path):
    events = json.loads((runs / "replicate" / "profile" / "trace.json").read_text())
    blocks = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in blocks} == {0, 1}
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in blocks)
    names = {event["name"] for event in blocks if not event["name"].startswith("step ")}
    assert names >= {"data", "forward", "backward", "communication", "optimizer", "idle", "bucket 1"}
    waits = [event["args"]["waits_for"] for event in blocks if event["name"] == "idle" and event["pid"] == 0]
    assert waits.count("rank 1") > len(waits) / 3


def assert_measured(run: Path, strategy: str) -> None:
    told = summary(run)
    assert (told["strategy"], told["gradient_bytes"]) == (strategy, None)
    assert all(rank["communication_ms"] > 0.0 for rank in told["ranks"])
    assert (table(run)["idle_ms"][:, 0] > 0.5e3 * DELAY).mean() > 0.5
    assert (run / "profile" / "report.html").exists()


@pytest.mark.parametrize("strategy", CUT_UP)
def test_all_strategies_are_measured(more_runs: Path, strategy: str):
    assert_measured(more_runs / strategy, strategy)


@pytest.mark.skipif(bool(Traffic().reason), reason="no bytes are counted here")
@pytest.mark.parametrize("workers", [4, 8])
def test_bytes_are_those_of_a_ring(workers: int, dataset: Path, tmp_path: Path):
    words = [f"data={dataset}", *SMALL, "profile=true", f"source.lanes={workers}", f"length.events={20 * workers}"]
    ringflow(
        "launch", "local", "--workers", workers, "--", "train", *words, "--out", tmp_path / "run", OMP_NUM_THREADS="1"
    )
    measured, network = summary(tmp_path / "run"), load_model(tmp_path / "run" / "model.safetensors").model
    assert measured["gradient_bytes"] == sum(weight.nbytes for weight in network.parameters())
    assert measured["ring_bytes_per_step"] == 2 * (workers - 1) * measured["gradient_bytes"] / workers
    for rank in measured["ranks"]:
        assert rank["sent_over_ring"] == pytest.approx(1.0, abs=0.05)
        assert rank["received_over_ring"] == pytest.approx(1.0, abs=0.05)


def test_bytes_of_two_are_those_of_a_ring(runs: Path):
    for rank in summary(runs / "replicate")["ranks"]:
        assert rank["sent_over_ring"] == pytest.approx(1.0, abs=0.05)
        assert rank["received_over_ring"] == pytest.approx(1.0, abs=0.05)


def test_a_process_alone_is_measured_when_it_is_stopped_and_again_when_it_goes_on(dataset: Path, tmp_path: Path):
    run = tmp_path / "run"
    words = ["train", f"data={dataset}", *SMALL, "profile=true", "length.checkpoint_seconds=0.1", "--out", run]
    with running(*words, "length.events=100000000") as process:
        wait_for("a checkpoint", lambda: list((run / "checkpoints").glob("step-*")), process)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=180)
    assert process.returncode == 75, said
    assert f"profile: {run / 'profile' / 'report.html'}" in said.splitlines()
    before = table(run)
    assert summary(run)["processes"] == 1
    assert before["communication_ms"].min() < 0.1 * before["backward_ms"].min()  # nobody to talk to
    assert json.loads((run / "profile" / "trace.json").read_text())

    state = json.loads(max((run / "checkpoints").glob("step-*")).joinpath("state.json").read_text())["state"]
    longer = TrainSettings.resolve(None, [*map(str, words[1:-2]), f"length.events={state['events'] + 40}"])
    result = train(longer, run)
    assert result["profile"] == run / "profile" / "report.html"
    after = table(run)
    assert after["step"][0, 0] == state["step"] + 1 == before["step"][-1, 0] + 1
    assert train(longer, run)["profile"] == result["profile"]  # nothing is left to do
    assert len(table(run)["step"]) == len(after["step"])
