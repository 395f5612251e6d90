"""`ringflow tune work`: what the jobs of a study run; nobody types it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ringflow.base.options import Count


def work(
    study: Annotated[Path, Parameter(help="Folder of a study.")],
    /,
    *,
    workers: Annotated[Count, Parameter(help="Processes of the trials that it takes.")] = 1,
    idle: Annotated[Count, Parameter(help="Seconds without a trial after which it ends.")] = 60,
) -> None:
    """Train trials of a study in this job of Slurm, one after the other."""
    from ringflow.tune.executors import slurm_pilot

    slurm_pilot.work(study, workers, idle)
