"""mpiexec starts the processes: they train what one process trains, and none of them dies unnoticed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from fixtures.process_tree import descendants
from fixtures.tiny_training import (
    LONGER,
    TINY,
    assert_same_training,
    checkpoints,
    make_dataset,
    ringflow,
    running,
    spoken,
    train_alone,
    trainings_below,
    wait_for,
)
from ringflow.base.errors import FailureError
from ringflow.launch.mpi import mpiexec


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        mpiexec()
    except FailureError as error:
        pytest.skip(str(error))
    return make_dataset(tmp_path_factory.mktemp("events"))


def test_two_processes_are_as_one(dataset: Path, tmp_path: Path) -> None:
    words = ["train", f"data={dataset}", *TINY, "--out", tmp_path / "run"]
    # Numbers that are left from elsewhere are not believed.
    done = ringflow("launch", "mpi", "--workers", 2, "--json", "--", *words, RANK="7", WORLD_SIZE="9")
    assert json.loads(done.stdout)["processes"] == 2
    assert spoken(done.stderr) == []
    assert_same_training(tmp_path / "run", train_alone(dataset, tmp_path / "alone"))


@pytest.mark.heavy
def test_a_killed_process_ends_the_launch_when_there_are_no_restarts_left(dataset: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", f"data={dataset}", *LONGER, "length.events=100000000", "--out", run]
    with running("launch", "mpi", "--restarts", 1, "--", *words) as process:
        for left in (1, 0):
            before = checkpoints(run)
            wait_for("a checkpoint", lambda before=before: checkpoints(run)[-1:] != before[-1:], process)
            workers = trainings_below(process.pid)
            assert len(workers) == 2
            os.kill(workers[left], signal.SIGKILL)
            wait_for("the end", lambda workers=workers: not set(workers) & set(descendants(process.pid)))
        stdout, stderr = process.communicate(timeout=110)  # less than that of the training
    killed = "a process was ended by SIGKILL, and the others with it; start again: it goes on from the last checkpoint"
    assert (process.returncode, stdout) == (1, "")
    ours = [line for line in spoken(stderr) if "another process of this training ended" not in line]
    assert ours == [f"ringflow: {killed}", "ringflow: starting again, 1 of 1", f"ringflow: error: {killed}"]
