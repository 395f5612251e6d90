"""Several processes train the network that one process trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import FOLDER
from fixtures.process_tree import descendants
from fixtures.tiny_training import (
    TINY,
    assert_same_training,
    assert_same_weights,
    checkpoints,
    make_dataset,
    ringflow,
    running,
    spoken,
    train_alone,
    trainings_below,
    wait_for,
)
from ringflow.base.errors import UsageError
from ringflow.models.file import load_model
from ringflow.train.parallel import require_spreadable
from ringflow.train.run import train
from ringflow.train.settings import TrainSettings

pytestmark = pytest.mark.xdist_group("processes")

WORDS = (*TINY, "model.dropout=0.1", "length.events=240", "length.validate_every=120")
STRATEGIES = ["replicate", "shard", "tensor", "pipeline"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


@pytest.fixture(scope="module")
def alone(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process that takes both lanes."""
    return train_alone(dataset, tmp_path_factory.mktemp("runs") / "alone", WORDS)


@pytest.fixture(scope="module")
def together(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes in every strategy, and half of each."""
    folder = tmp_path_factory.mktemp("together")
    halves = {"": (), "-half": ("length.events=120",)}
    commands = [
        [
            "train",
            f"data={dataset}",
            *WORDS,
            *more,
            f"compute.strategy={strategy}",
            "--out",
            str(folder / (strategy + half)),
        ]
        for strategy in STRATEGIES
        for half, more in halves.items()
    ]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    start = [*torchrun, str(FOLDER / "several_commands.py"), json.dumps(commands)]
    done = subprocess.run(start, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_are_as_one(strategy: str, together: Path, alone: Path):
    assert_same_training(together / strategy, alone)
    assert load_model(alone / "last.safetensors").card["training"]["steps"] >= 20
    made, expected = ((run / "history.jsonl").read_text().splitlines()[-1] for run in (together / strategy, alone))
    assert json.loads(made)["loss"] == pytest.approx(json.loads(expected)["loss"], rel=1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_number_of_processes_goes_on(strategy: str, dataset: Path, together: Path, alone: Path):
    run = together / f"{strategy}-half"
    before = load_model(run / "last.safetensors").card["training"]
    result = train(TrainSettings.resolve(None, [f"data={dataset}", *WORDS]), run)
    assert result["processes"] == 1
    assert 120 <= before["events"] < result["events"]
    assert_same_training(run, alone)


@pytest.mark.heavy
def test_copies_of_parts_are_as_one(dataset: Path, tmp_path: Path):
    words = (*WORDS, "model.backbone=kernel", "length.events=80")
    alone = train_alone(dataset, tmp_path / "alone", words)
    cut = ["compute.strategy=tensor", "compute.parts=2", "--out", tmp_path / "run"]
    ringflow("launch", "local", "--workers", 4, "--", "train", f"data={dataset}", *words, *cut)
    made, expected = (load_model(run / "last.safetensors") for run in (tmp_path / "run", alone))
    steps = expected.card["training"]["steps"]
    assert_same_weights(made.model.state_dict(), expected.model.state_dict(), steps)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["compute.strategy=tensor", "model.backbone=graph"], "cannot cut the backbone graph"),
        (["compute.strategy=tensor", "optimizer.name=lamb"], "optimizer.name=lamb measures whole tensors"),
        (["compute.strategy=tensor", "model.heads=1"], "2 processes cannot share model.heads=1 evenly"),
        (["compute.strategy=pipeline", "model.layers=1"], "2 processes cannot share model.layers=1"),
        (["compute.strategy=pipeline", "compute.parts=3"], "2 processes do not make copies of compute.parts=3"),
    ],
)
def test_what_cannot_be_cut_is_told(settings: list[str], expected: str):
    with pytest.raises(UsageError, match=expected):
        require_spreadable(TrainSettings.resolve(None, [*WORDS, *settings]), 2)


@pytest.mark.heavy
def test_a_number_that_does_not_divide_the_lanes_is_one_line(dataset: Path, tmp_path: Path):
    words = ["train", f"data={dataset}", *TINY, "--out", tmp_path / "run"]
    done = ringflow("launch", "local", "--workers", 3, "--", *words, code=2)
    assert done.stderr == (
        "ringflow: error: 3 processes cannot share 2 lanes evenly; start a number that divides 2, "
        "or train anew with source.lanes=3\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_killed_process_ends_the_launch_and_the_command_goes_on(dataset: Path, tmp_path: Path):
    run = tmp_path / "run"
    words = ["train", f"data={dataset}", *WORDS, "length.checkpoint_seconds=0.2", "--out", run]
    with running("launch", "local", "--", *words, "length.events=100000000") as process:
        wait_for("a checkpoint", lambda: checkpoints(run), process)
        workers = trainings_below(process.pid)
        assert len(workers) == 2
        os.kill(max(workers), signal.SIGKILL)
        _, said = process.communicate(timeout=110)  # less than that of the training
        assert process.returncode == 1
        assert descendants(process.pid) == {}
    *others, line = spoken(said)
    assert line.startswith("ringflow: error: process 1 was ended by SIGKILL")
    assert line.endswith("start again: it goes on from the last checkpoint")
    assert all("another process of this training ended" in other for other in others), said
    before = json.loads((checkpoints(run)[-1] / "state.json").read_text())["state"]
    longer = TrainSettings.resolve(None, [*words[1:-2], f"length.events={before['events'] + 40}"])
    result = train(longer, run)
    assert result["steps"] > before["step"]
    steps = [json.loads(line)["step"] for line in (run / "history.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert before["events"] + 40 <= result["events"] < before["events"] + 100


BROKEN = """
import os, sys
from ringflow.cli import main
from ringflow.train.step import TrainingStep

def broken(self, batches):
    raise RuntimeError("shapes do not fit")

if os.environ["RANK"] == "1":
    TrainingStep.gradients = broken
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.heavy
def test_a_mistake_of_one_is_no_lost_process_but_to_the_others(dataset: Path, tmp_path: Path):
    (tmp_path / "broken.py").write_text(BROKEN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = ["train", f"data={dataset}", *WORDS, "--out", str(tmp_path / "run")]
    start = [*torchrun, str(tmp_path / "broken.py"), *words]
    said = subprocess.run(start, capture_output=True, text=True, timeout=240, check=False).stderr
    assert "RuntimeError: shapes do not fit" in said
    lost = [line for line in said.splitlines() if "another process of this training ended" in line]
    assert not any(line.endswith("(process 1)") for line in lost), said
