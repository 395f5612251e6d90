"""Processes that die, differ or cannot meet: started again, or one clear line, and never a wait without end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures.process_tree import descendants, listening
from fixtures.tiny_training import (
    LONGER,
    SECONDS,
    TINY,
    assert_same_training,
    checkpoints,
    make_dataset,
    running,
    spoken,
    train_alone,
    trainings_below,
    wait_for,
)
from ringflow.launch.environment import QUIET, free_port


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


@pytest.mark.heavy
def test_all_start_again_after_one_was_killed_and_no_event_is_lost_or_seen_twice(dataset: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", f"data={dataset}", *LONGER, "--out", run]
    with running("launch", "local", "--restarts", 1, "--json", "--", *words) as process:
        wait_for("a checkpoint", lambda: checkpoints(run), process)
        first = trainings_below(process.pid)
        os.kill(first[-1], signal.SIGKILL)
        _, said = process.communicate(timeout=2 * SECONDS)
    assert process.returncode == 0, said
    lines = [line for line in spoken(said) if "another process of this training ended" not in line]
    assert [line.split(";")[0] for line in lines] == [
        "ringflow: process 1 was ended by SIGKILL, and the others with it",
        "ringflow: starting again, 1 of 1",
    ]
    assert_same_training(run, train_alone(dataset, tmp_path / "alone", LONGER))


@pytest.mark.parametrize(
    ("way", "number"), [("local", signal.SIGTERM), pytest.param("mpi", signal.SIGUSR1, marks=pytest.mark.heavy)]
)
def test_a_launch_that_is_told_to_stop_leaves_a_checkpoint(
    way: str, number: signal.Signals, dataset: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ["train", f"data={dataset}", *LONGER, "length.events=100000000", "--out", run]
    with running("launch", way, "--restarts", 1, "--", *words) as process:
        wait_for("a checkpoint", lambda: checkpoints(run), process)
        seen = set(listening([process.pid, *descendants(process.pid)]))
        process.send_signal(number)
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 75, said
    [line] = spoken(said)
    events = json.loads((checkpoints(run)[-1] / "state.json").read_text())["state"]["events"]
    assert line.startswith(f"ringflow: error: stopped by {number.name} after {events} events, and all is saved")
    assert seen, "its processes meet somewhere"
    assert way != "local" or all(one.on_loopback for one in seen)


@contextmanager
def by_hand(folders: Sequence[Path], *words: Sequence[Any], port: int = 0) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that were started by hand, each in a folder and with words of its own."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port()), "WORLD_SIZE": str(len(words))}
    with ExitStack() as started:
        yield [
            started.enter_context(running(*said, folder=folder, **meeting, **QUIET, RANK=str(rank)))
            for rank, (folder, said) in enumerate(zip(folders, words, strict=True))
        ]


def assert_refused(processes: list[subprocess.Popen[str]], code: int, expected: str) -> None:
    """All of them end, and one of them says why."""
    said = [process.communicate(timeout=SECONDS)[1] for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), said
    assert "".join(said) == f"ringflow: error: {expected}\n"


@pytest.mark.heavy
def test_another_version_of_the_data_is_one_line(dataset: Path, tmp_path: Path) -> None:
    here, there = folders = (tmp_path / "here", tmp_path / "there")
    for folder in folders:
        shutil.copytree(dataset, folder / "data")
    manifest = there / "data" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"sample": "fake"', '"sample": "other"'))
    words = ["train", "data=data", *TINY, "--out", tmp_path / "run"]
    with by_hand(folders, words, words) as processes:
        expected = "process 1 has another version of the data than process 0; give all of them the same"
        assert_refused(processes, 2, expected)
    assert not (tmp_path / "run").exists()
    assert [path.name for path in here.iterdir()] == ["data"]


def test_other_settings_are_one_line(dataset: Path, tmp_path: Path) -> None:
    words = ["train", f"data={dataset}", *TINY, "--out", tmp_path / "run"]
    with by_hand((tmp_path, tmp_path), words, [*words, "optimizer.rate=0.5"]) as processes:
        assert_refused(processes, 2, "process 1 has another optimizer.rate than process 0; give all of them the same")
    assert not (tmp_path / "run").exists()
