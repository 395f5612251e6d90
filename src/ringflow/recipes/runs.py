"""The folder of a run, known without torch.

settings.toml        the resolved settings
run.json             where it came from: code, versions, seeds
model.safetensors    the best network so far, by its jets in the validation; last.safetensors the newest one
checkpoints/         what an interrupted training goes on from
history.jsonl        one line per report and validation; tensorboard/ the same to look at
"""

from __future__ import annotations

from pathlib import Path

from ringflow.base.rundir import SETTINGS_FILE

RUN_FILE = "run.json"


def settings_of(folder: Path) -> Path | None:
    """The settings of the run in a folder, if there is one."""
    path = folder / SETTINGS_FILE
    return path if path.is_file() and (folder / RUN_FILE).is_file() else None


def has_checkpoint(folder: Path) -> bool:
    """Whether there is something to go on from."""
    return any((folder / "checkpoints").glob("step-*"))
