"""Hyper-parameter search: Optuna decides what is tried, schedulers decide how long, executors decide where."""

from typing import Literal

ExecutorName = Literal["local", "ray", "slurm"]
SearchName = Literal["grid", "random", "evolution", "tpe", "gp", "forest", "cmaes", "qmc"]
SchedulerName = Literal["none", "halving", "hyperband", "asha", "asha-promote", "rasda", "rasda-idle"]
