"""Trainings as a user runs them: simulated events, an interruption of any kind, and the same network in the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

WORDS = (
    "data=sim:gun_photon,gun_pion",
    "model.width=16",
    "model.layers=1",
    "model.heads=2",
    "model.hidden=16",
    "source.chunk_events=40",
    "source.block_events=10",
    "source.reuse=2",
    "length.events=240",
    "length.validate_every=120",
    "length.validation_events=10",
    "length.checkpoint_seconds=0.001",
    "compute.batch_elements=30",
    "compute.device=cpu",
)


def start(run: Path, *more: str) -> subprocess.Popen[str]:
    """A training in a process group of its own."""
    words = (sys.executable, "-m", "ringflow.cli", "train", *WORDS, *more, "--out", str(run))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment)


def finish(run: Path, *more: str) -> dict[str, torch.Tensor]:
    """Train to the end; the weights."""
    process = start(run, *more)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return load_file(run / "last.safetensors")


def checkpoints(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").glob("step-*")}


def wait_for_checkpoint(run: Path, process: subprocess.Popen[str], other_than: Collection[str] = ()) -> None:
    while not checkpoints(run).difference(other_than):
        assert process.poll() is None, "the training ended before it could be interrupted"
        time.sleep(0.005)


def assert_all_gone(group: int) -> None:
    """Those who simulate end with their parent, however it ended."""
    deadline = time.monotonic() + 30
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert members(group) == []


def members(group: int) -> list[int]:
    """Processes of a group that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            found.append(int(path.parent.name))
    return found


def interrupt(run: Path, process: subprocess.Popen[str]) -> None:
    """Type Ctrl-C when there is a checkpoint; it says that it goes on, and does not look like an error of ours."""
    wait_for_checkpoint(run, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.fullmatch(
        r"ringflow: error: stopped by SIGINT after \d+ events, and all is saved; the same command goes on from there",
        said.splitlines()[-1],
    )
    assert "Traceback" not in said


def test_ctrl_c_ends_a_training_with_a_checkpoint(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "length.events=100000")
    interrupt(tmp_path / "run", process)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.heavy
def test_an_interrupted_training_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    run = tmp_path / "cut"
    process = start(run)
    interrupt(run, process)
    assert_all_gone(process.pid)

    process = start(run)
    wait_for_checkpoint(run, process, other_than=checkpoints(run))
    process.kill()
    process.communicate(timeout=60)
    assert_all_gone(process.pid)

    gone_on, uninterrupted = finish(run, "source.workers=2"), finish(tmp_path / "whole")
    assert gone_on.keys() == uninterrupted.keys()
    assert all(torch.equal(gone_on[name], uninterrupted[name]) for name in gone_on)
