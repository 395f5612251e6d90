"""What the package computes, frozen: whoever moves code around must come to the same bytes.

    python tests/golden/test_records.py      # write the records again, after a change that was meant to change them

Bits depend on the processor and on the build of torch, so the exact records name both and hold there only; elsewhere the same
work is done, and what must be equal to itself on any machine is: two trainings, a training that was resumed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

STORED = Path(__file__).with_name("records.json")
SCHEDULERS = ("none", "halving", "hyperband", "asha", "asha-promote", "rasda", "rasda-idle")
#: Some twenty steps of 640 elements.
TRAINING = (
    *(
        "model.width=16",
        "model.layers=2",
        "model.heads=2",
        "model.hidden=16",
        "source.lanes=2",
        "source.chunk_events=20",
    ),
    *("length.events=120", "length.validate_every=60", "length.validation_events=4", "compute.device=cpu"),
    *("compute.batch_elements=640", "length.checkpoint_seconds=1e9"),
)


#: The last bits of a sum depend on the number of threads.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def ringflow(*words: object) -> Any:
    """What a command prints with `--json`, run in a process of its own."""
    start = [sys.executable, "-m", "ringflow.cli", *map(str, words), "--json"]
    done = subprocess.run(start, capture_output=True, text=True, check=False, timeout=300, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def machine() -> dict[str, str]:
    """What the last bits of a result depend on."""
    cpu = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in cpu.read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def simulate(folder: Path) -> list[str]:
    """A small dataset; the hashes of its shards."""
    ringflow("simulate", "ttbar", "--events", 40, "--seed", 3, "--out", folder, "production.events_per_shard=20")
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*.parquet"))]


def train(dataset: Path, run: Path, *launcher: object, more: tuple[str, ...] = ()) -> str:
    """Train the small network; a hash of its weights, bit for bit."""
    ringflow(*launcher, "train", "clic_tiny", f"data={dataset}", *TRAINING, *more, "--out", run)
    weights = load_file(run / "model.safetensors")
    sums = hashlib.sha256()
    for name in sorted(weights):
        sums.update(name.encode())
        sums.update(weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return sums.hexdigest()


def interrupted(dataset: Path, run: Path) -> str:
    """The same training, stopped in the middle by a signal and taken up again."""
    words = ["train", "clic_tiny", f"data={dataset}", *TRAINING, "--out", run]
    start = [sys.executable, "-m", "ringflow.cli", *map(str, words)]
    piped = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(start, **piped, text=True, env=ENVIRONMENT) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("train: "):  # it has made a few steps
                process.terminate()
                break
        process.communicate(timeout=120)
    assert process.returncode == 75, "it came to its end before it could be stopped"
    return train(dataset, run)


def candidates(dataset: Path, out: Path) -> dict[str, Any]:
    """What the shipped model finds: how many of which class, and a hash of every number."""
    ringflow("reconstruct", dataset, "--out", out, "--threads", 1)
    table = pq.read_table(out).sort_by("event_number")
    flat = {name: table[name].combine_chunks() for name in table.column_names}
    values = {name: (part.flatten() if hasattr(part, "flatten") else part) for name, part in flat.items()}
    sums = hashlib.sha256()
    for name in sorted(values):
        sums.update(name.encode())
        sums.update(np.ascontiguousarray(values[name].to_numpy(zero_copy_only=False)).tobytes())
    return {
        "columns": sorted(table.column_names),
        "number": len(values["candidate_px"]),
        "sum_of_pt": float(np.hypot(values["candidate_px"].to_numpy(), values["candidate_py"].to_numpy()).sum()),
        "hash": sums.hexdigest(),
    }


def decisions(scheduler: str) -> Any:
    """Studies on the recorded trainings that come with the package, on a simulated cluster."""
    from ringflow.cli import main

    words = ("tune", "replay", "--devices", "16", "--trials", "60", "--orders", "2", "--scheduler", scheduler, "--json")
    with redirect_stdout(io.StringIO()) as said:
        assert main(list(words)) == 0
    made = json.loads(said.getvalue())
    return {part: made[part] for part in ("rungs", "rows", "scaling")}


def command_table() -> dict[str, list[str]]:
    """Every command with the options it takes."""
    from cyclopts import App

    from ringflow.cli import app

    found: dict[str, list[str]] = {}

    def visit(part: App, words: tuple[str, ...]) -> None:
        for name in sorted(part):
            if name.startswith("-"):
                continue
            below = part[name]
            if below.default_command is not None:
                options = below.assemble_argument_collection()
                found[" ".join((*words, name))] = sorted(one.names[0] for one in options if one.names)
            visit(below, (*words, name))

    visit(app, ())
    return found


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(STORED.read_text())
    return read


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder: Path = tmp_path_factory.mktemp("golden") / "dataset"
    return folder, simulate(folder)


@pytest.fixture(scope="module")
def alone(dataset: tuple[Path, list[str]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    run: Path = tmp_path_factory.mktemp("golden") / "alone"
    return run, train(dataset[0], run)


@pytest.fixture(scope="module")
def two(dataset: tuple[Path, list[str]], tmp_path_factory: pytest.TempPathFactory) -> str:
    run = tmp_path_factory.mktemp("golden") / "two"
    return train(dataset[0], run, "launch", "local", "--workers", 2, "--")


@pytest.fixture(scope="module")
def here(stored: dict[str, Any]) -> None:
    if stored["machine"] != machine():
        pytest.skip(f"bits were recorded on {stored['machine']}, this is {machine()}")


@pytest.mark.usefixtures("here")
def test_the_dataset(dataset: tuple[Path, list[str]], stored: dict[str, Any]) -> None:
    assert dataset[1] == stored["shards"]


@pytest.mark.usefixtures("here")
def test_weights_of_one_process(alone: tuple[Path, str], stored: dict[str, Any]) -> None:
    assert alone[1] == stored["weights"]["one"]


@pytest.mark.usefixtures("here")
def test_weights_of_two_processes(two: str, stored: dict[str, Any]) -> None:
    assert two == stored["weights"]["two"]


def test_weights_of_a_resumed_training(
    dataset: tuple[Path, list[str]], alone: tuple[Path, str], tmp_path: Path
) -> None:
    assert interrupted(dataset[0], tmp_path / "run") == alone[1]


def test_candidates_of_the_shipped_model(
    dataset: tuple[Path, list[str]], tmp_path: Path, stored: dict[str, Any]
) -> None:
    made, expected = candidates(dataset[0], tmp_path / "candidates.parquet"), stored["candidates"]
    assert made["columns"] == expected["columns"]
    if stored["machine"] == machine():
        assert made == expected
    # Elsewhere a candidate near its threshold may come or go, out of some four thousand.
    assert made["number"] == pytest.approx(expected["number"], rel=2e-3)
    assert made["sum_of_pt"] == pytest.approx(expected["sum_of_pt"], rel=2e-3)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_decisions_of_a_scheduler(scheduler: str, stored: dict[str, Any]) -> None:
    assert decisions(scheduler) == stored["decisions"][scheduler]


def test_the_command_table(stored: dict[str, Any]) -> None:
    made, expected = (
        {name: [option for option in options if option != "*"] for name, options in commands.items()}
        for commands in (command_table(), stored["commands"])
    )  # a star is a record of options in the signature, nothing that anybody types
    assert made == expected


def write() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards = simulate(folder / "dataset")
        data = folder / "dataset"
        records = {
            "machine": machine(),
            "shards": shards,
            "weights": {
                "one": train(data, folder / "one"),
                "two": train(data, folder / "two", "launch", "local", "--workers", 2, "--"),
            },
            "candidates": candidates(data, folder / "candidates.parquet"),
            "decisions": {scheduler: decisions(scheduler) for scheduler in SCHEDULERS},
            "commands": command_table(),
        }
    STORED.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write()
