"""Settings of a study. What a trial trains is the settings of a training; these say how many, how long, and who decides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ringflow.base.config import Settings
from ringflow.tune.schedulers import ETA

SearchName = Literal["grid", "random", "evolution", "tpe", "gp", "forest"]
SchedulerName = Literal["none", "halving", "hyperband", "asha", "asha-promote", "rasda", "rasda-idle"]


class StudySettings(Settings):
    """Everything a study needs beside the settings of its trainings and its space."""

    trials: int = Field(default=24, ge=1)
    search: SearchName = "tpe"
    scheduler: SchedulerName = "asha"
    #: What is made small, by name; the first one decides how long a trial lives.
    objectives: tuple[str, ...] = Field(default=("loss",), min_length=1)
    #: Events after which trials are compared for the first time; one in `eta` goes on to `eta` times as many, and the last
    #: ones to `length.events` of the training.
    least: int = Field(ge=1)
    eta: int = Field(default=ETA, ge=2)
    #: Processes of a trial at first, and at most (a trial grows with `rasda`).
    workers_per_trial: int = Field(default=1, ge=1)
    most_workers: int = Field(default=1, ge=1)
    #: Processes of all trials together, for `rasda-idle`, which lets trials grow onto those that nobody uses.
    processes: int | None = Field(default=None, ge=1)
    #: How often a trial may fail before it is given up.
    retries: int = Field(default=2, ge=0)
    seed: int = Field(default=1, ge=0)
    #: Whether the first trial has the settings that the space varies as they are, if they are a point of it.
    default_first: bool = True
    #: Values of every range in a grid.
    grid_steps: int = Field(default=3, ge=1)
