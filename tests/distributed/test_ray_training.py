"""Ray Train on two nodes: the network of one process, whoever dies meanwhile."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures.process_tree import descendants
from fixtures.tiny_training import (
    LONGER,
    TINY,
    assert_same_training,
    checkpoints,
    make_dataset,
    spoken,
    train_alone,
    wait_for,
)

pytestmark = [
    pytest.mark.xdist_group("ray"),
    # Ray Data, which Ray Train imports, warns of settings that it copies itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
]
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


def trainings(cluster: Any) -> list[int]:
    """Processes of Ray Train that train."""
    nodes = [process.process.pid for node in cluster.list_all_nodes() for process in node.all_processes["raylet"]]
    return sorted(pid for node in nodes for pid, words in descendants(node).items() if "RayTrainWorker" in words)


@contextmanager
def one_killed_meanwhile(cluster: Any, run: Path) -> Iterator[None]:
    """Kill a worker when there is a checkpoint."""
    over, killed = threading.Event(), []

    def kill() -> None:
        wait_for("a checkpoint", lambda: over.is_set() or checkpoints(run))
        if not over.is_set():
            killed.append(max(trainings(cluster)))
            os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()
    assert killed, "it ended before there was a checkpoint"


def test_two_workers_are_as_one(
    dataset: Path, tmp_path: Path, ray_nodes: Any, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of files are meant from here, wherever a worker is
    words = ["train", f"data={dataset}", *TINY, "--out", "run"]
    done = command("launch", "ray", "--address", ray_nodes.address, "--json", "--", *words)
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["processes"] == 2
    assert spoken(done.stderr) == []
    assert_same_training(tmp_path / "run", train_alone(dataset, tmp_path / "alone", TINY))


@pytest.mark.heavy
def test_two_workers_are_as_one_even_if_one_was_killed(
    dataset: Path, tmp_path: Path, ray_nodes: Any, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of files are meant from here, wherever a worker is
    words = ["train", f"data={dataset}", *LONGER, "--out", "run"]
    with one_killed_meanwhile(ray_nodes, tmp_path / "run"):
        done = command("launch", "ray", "--address", ray_nodes.address, "--restarts", 1, "--json", "--", *words)
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["processes"] == 2
    assert [line for line in spoken(done.stderr) if "another process of this training ended" not in line] == []
    assert "train: 1,600 of 1,600 events" in done.stderr
    assert_same_training(tmp_path / "run", train_alone(dataset, tmp_path / "alone", LONGER))
    assert not (Path(os.environ["HOME"]) / "ray_results").exists()


@pytest.mark.heavy
def test_a_killed_worker_ends_the_launch(dataset: Path, tmp_path: Path, ray_nodes: Any, command: Command) -> None:
    run = tmp_path / "run"
    words = ["train", f"data={dataset}", *LONGER, "length.events=100000000", "--out", run]
    with one_killed_meanwhile(ray_nodes, run):
        done = command("launch", "ray", "--address", ray_nodes.address, "--", *words)
    assert (done.code, done.stdout) == (1, "")
    said = [line for line in spoken(done.stderr) if "another process of this training ended" not in line]
    assert len(said) == 1, done.stderr
    assert said[0].startswith("ringflow: error: process ")
    assert said[0].endswith("start again: it goes on from the last checkpoint")
    assert trainings(ray_nodes) == []
