"""The folder of a run, known without torch.

settings.toml        the resolved settings
run.json             where it came from: code, versions, seeds
model.safetensors    the best network so far, by its jets in the validation; last.safetensors the newest one
checkpoints/         what an interrupted training goes on from
history.jsonl        one line per report and validation; tensorboard/ the same to look at
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ringflow.base.errors import FailureError
from ringflow.base.rundir import SETTINGS_FILE, write_errors

RUN_FILE, HISTORY_FILE, LAST_MODEL_FILE = "run.json", "history.jsonl", "last.safetensors"


def settings_of(folder: Path) -> Path | None:
    """The settings of the run in a folder, if there is one."""
    path = folder / SETTINGS_FILE
    return path if path.is_file() and (folder / RUN_FILE).is_file() else None


def has_checkpoint(folder: Path) -> bool:
    """Whether there is something to go on from."""
    return any((folder / "checkpoints").glob("step-*"))


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's history; one that is being written, or was cut short, is left out."""
    try:
        lines = (folder / HISTORY_FILE).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError):
            if isinstance(record := json.loads(line), dict) and "kind" in record and "step" in record:
                found.append(record)
    return found


@contextmanager
def claimed(folder: Path, what: str = "training") -> Iterator[None]:
    """Two trainings in one folder would spoil each other: an error if another process has it; ours until the end."""
    with write_errors(folder):
        lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise FailureError(f"another {what} is running in {folder}; wait for it or choose another folder") from None
    except OSError:
        pass  # a file system without locks: whoever uses it takes care
    try:
        yield
    finally:
        os.close(lock)  # which lets go of the lock, as the death of the process does
