"""The folder of a study, known without torch.

study.toml       how many trials, who searches, who decides
settings.toml    settings of a training that the space varies
space.toml       what is varied
origin.json      code, versions and data that it belongs to, and the earlier study that it learned from
study.db         everything that happened (SQLite), see `log`
optuna.db        the same for Optuna and its dashboard; made again from the log when it is missing
trials/0007/     the run of a trial, complete, as `ringflow train` leaves it; what its processes said is in trials/0007.log
desk/            orders and reports under way
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError
from ringflow.base.rundir import SETTINGS_FILE
from ringflow.train.settings import TrainSettings
from ringflow.tune.log import LOG_FILE, read_rows
from ringflow.tune.record import StudyRecord
from ringflow.tune.schedulers import Ladder
from ringflow.tune.settings import StudySettings
from ringflow.tune.space import Space
from ringflow.tune.space_file import read_space

STUDY_FILE, SPACE_FILE, ORIGIN_FILE = "study.toml", "space.toml", "origin.json"
OPTUNA_FILE, TRIALS_FOLDER = "optuna.db", "trials"


@dataclass(frozen=True)
class StudyFolder:
    """What lies in a study's folder; an error if it is none."""

    path: Path

    def __post_init__(self) -> None:
        if not (self.path / STUDY_FILE).is_file():
            raise InputFileError(f"{self.path} holds no study; give a folder made by `ringflow tune`")

    @cached_property
    def settings(self) -> StudySettings:
        """How the study goes."""
        return StudySettings.resolve(self.path / STUDY_FILE)

    @cached_property
    def training(self) -> TrainSettings:
        """What trials train, before the space changes it."""
        return TrainSettings.resolve(self.settings_file, complete=False)

    @cached_property
    def space(self) -> Space:
        """What trials differ in."""
        return read_space(self.path / SPACE_FILE)

    @cached_property
    def origin(self) -> dict[str, Any]:
        """Code, versions and data."""
        try:
            found: dict[str, Any] = json.loads((self.path / ORIGIN_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputFileError(f"{self.path / ORIGIN_FILE} is missing or damaged; put a copy of it back") from None
        return found

    @property
    def settings_file(self) -> Path:
        """File of the settings of a training."""
        return self.path / SETTINGS_FILE

    @property
    def ladder(self) -> Ladder:
        """The resources at which trials are compared."""
        return Ladder(self.settings.least, self.training.length.events, self.settings.eta)

    @property
    def log(self) -> Path:
        """File of the log."""
        return self.path / LOG_FILE

    def run(self, trial: int) -> Path:
        """Folder of a trial's run."""
        return self.path / TRIALS_FOLDER / f"{trial:04d}"

    def record(self) -> StudyRecord:
        """All that happened until now; others may be writing."""
        return StudyRecord(self.training.length.events, read_rows(self.log))
