"""A training of seconds, started in every way there is, and what is asked of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "unit" / "data"))
sys.path.append(str(Path(__file__).parent))

from fake_events import write_fake_dataset
from process_tree import descendants

from ringflow.models.file import load_model
from ringflow.recipes.train import train
from ringflow.train.settings import TrainSettings

SECONDS = 90.0
TINY = (
    "model.width=16",
    "model.layers=2",
    "model.heads=2",
    "model.hidden=16",
    "length.events=160",
    "length.validate_every=80",
    "length.validation_events=4",
    "compute.batch_elements=60",
    "compute.device=cpu",
    "compute.timeout=60",
    "source.lanes=2",
    "source.hide=0.1",
    "optimizer.warmup=0",
    "optimizer.final=1",
    "detector=fake",
)
#: Long enough to be disturbed in the middle, with checkpoints all the time.
LONGER = (*TINY, "length.events=1600", "length.validate_every=800", "length.checkpoint_seconds=0.1")


def make_dataset(folder: Path) -> Path:
    return write_fake_dataset(folder / "dataset", events=60)


def train_alone(dataset: Path, run: Path, words: tuple[str, ...] = TINY) -> Path:
    """The run of one process that takes both lanes."""
    train(TrainSettings.resolve(None, [f"data={dataset}", *words]), run)
    return run


def command_line(*words: Any) -> list[str]:
    return [sys.executable, "-m", "ringflow.cli", *map(str, words)]


def ringflow(*words: Any, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command_line(*words), capture_output=True, text=True, timeout=2 * SECONDS, env=environment, check=False
    )
    assert done.returncode == code, done.stderr
    return done


@contextmanager
def running(*words: Any, folder: Path | None = None, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs meanwhile, in a folder; nothing of it is left."""
    environment = {**os.environ, **variables}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command_line(*words), env=environment, cwd=folder, text=True, **streams) as process:
        try:
            yield process
        finally:
            left = descendants(process.pid)
            process.kill()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def wait_for(what: str, ready: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> Any:
    """Wait until something is there, while a process runs."""
    until = time.monotonic() + SECONDS
    while not (found := ready()):
        assert process is None or process.poll() is None, f"it ended before {what} came: {process.communicate()[1]}"
        assert time.monotonic() < until, f"{what} did not come"
        time.sleep(0.02)
    return found


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def trainings_below(pid: int) -> list[int]:
    """The processes that train, of those that another one started."""
    return sorted(child for child, line in descendants(pid).items() if "-m ringflow.cli train" in line)


def assert_same_training(run: Path, expected: Path) -> None:
    """The same weights, from the same events."""
    made, wanted = (load_model(folder / "last.safetensors") for folder in (run, expected))
    assert_same_weights(made.model.state_dict(), wanted.model.state_dict(), wanted.card["training"]["steps"])
    assert made.card["training"] == wanted.card["training"]
    assert shown(run) == shown(expected) != []


def assert_same_weights(made: dict[str, Any], wanted: dict[str, Any], steps: int, rate: float = 1e-3) -> None:
    """The same but for rounding, after so many steps of Adam.

    Softmax does not feel what all keys have in common, so the gradient of a key's bias is zero where no rotation by position
    makes a difference of it, and what is computed there is rounding. Adam divides a gradient by its own size, so rounding
    moves such a weight as well: by up to the rate in a step, in either training. All others are far from that.
    """
    for name, tensor in wanted.items():
        found = made[name]
        if name.endswith("to_qkv.bias"):
            query_key_value = zip(found.chunk(3), tensor.chunk(3), strict=True)
            (q, wanted_q), (k, wanted_k), (v, wanted_v) = query_key_value
            torch.testing.assert_close(k, wanted_k, atol=2 * rate * steps, rtol=0.0, msg=name)
            found, tensor = torch.cat([q, v]), torch.cat([wanted_q, wanted_v])
        # Gradients to 1e-6 of their size, times the rate and tens of steps, are 1e-7; rounding is not always kind.
        torch.testing.assert_close(found, tensor, atol=1e-5, rtol=0.0, msg=lambda said, name=name: f"{name}: {said}")
    assert made.keys() == wanted.keys()


def shown(run: Path) -> list[tuple[int, int]]:
    """Steps and events of the validations of a run."""
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return [(line["step"], line["events"]) for line in lines if "jet_matched_fraction" in line]


def spoken(stderr: str) -> list[str]:
    """What was said, without the progress of the training."""
    return [line for line in stderr.splitlines() if not line.startswith(("train:", "validation", "made:", "next:"))]
