"""Start a study, or go on with one: from settings and a space to the best trial."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ringflow.base.errors import StoppedError
from ringflow.base.log import say
from ringflow.base.threads import usable_cores
from ringflow.train.runs import claimed
from ringflow.tune.create import require_same_origin
from ringflow.tune.desk import DESK_FOLDER
from ringflow.tune.drive import drive
from ringflow.tune.executor import Executor
from ringflow.tune.folder import StudyFolder
from ringflow.tune.hparams import write_hparams
from ringflow.tune.log import StudyLog
from ringflow.tune.mirror import Mirror
from ringflow.tune.options import Place
from ringflow.tune.schedulers import one_bracket
from ringflow.tune.study import Study
from ringflow.tune.table import LiveTable
from ringflow.tune.warm_start import earlier_trials


def run(folder: StudyFolder, place: Place, *, allow_changes: bool = False) -> dict[str, Any]:
    """Go on with a study to its end; the result, ready for JSON."""
    if not allow_changes:
        require_same_origin(folder)
    with claimed(folder.path, "study"), StudyLog(folder.log) as log, _stoppable(folder.path):
        earlier = earlier_trials([Path(path) for path in folder.origin["warm_start"]], folder.space, folder.settings)
        study = Study(folder, log, earlier)
        _clear_desk(folder.path / DESK_FOLDER)
        if told := one_bracket(folder.settings.scheduler, folder.ladder, folder.settings.trials):
            say(told)
        if not study.finished:
            _run(study, place)
            write_hparams(folder.path)
        return summary(folder, study)


def _run(study: Study, place: Place) -> None:
    mirror, shown = Mirror(study.folder), 0
    with LiveTable(study.settings.trials, study.settings.objectives[0]) as table:

        def look(study: Study) -> None:
            nonlocal shown
            table.show(study.record)
            mirror.apply(study.rows[shown:])
            shown = len(study.rows)

        try:
            executor = make_executor(study.folder, place)
            try:
                drive(study, executor, look)
            finally:
                executor.close()
        finally:
            mirror.close()


def make_executor(folder: StudyFolder, place: Place) -> Executor:
    """The executor of this name."""
    device = folder.training.compute.device
    match place.executor:
        case "local":
            from ringflow.tune.executors.local import LocalExecutor

            return LocalExecutor(folder.path, place.workers or default_workers(device), accelerators(device))
        case "ray":
            from ringflow.tune.executors.ray import RayExecutor

            return RayExecutor(place.address, place.workers, on_gpus=device != "cpu")
        case _:
            from ringflow.tune.executors.slurm import SlurmExecutor

            return SlurmExecutor(folder.path, place.job(), place.max_jobs, place.idle)


def default_workers(device: str) -> int:
    """One per accelerator, or else one per core."""
    return accelerators(device) or usable_cores()


def accelerators(device: str) -> int:
    """How many there are for trainings on this device."""
    if device == "cpu":
        return 0
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return 0 if found is None or found.type == "mps" else torch.accelerator.device_count()


def _clear_desk(desk: Path) -> None:
    """Orders of an earlier start; their trials will tell again what was not heard."""
    for ticket in desk.glob("[0-9]*-*"):
        shutil.rmtree(ticket, ignore_errors=True)


@contextmanager
def _stoppable(path: Path) -> Iterator[None]:
    """A SIGTERM ends the study well: its trials write checkpoints."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedError(
            f"stopped by {signal.Signals(number).name}, and all is saved; `ringflow tune resume {path}` goes on"
        )

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def summary(folder: StudyFolder, study: Study) -> dict[str, Any]:
    """What came of a study."""
    record, best = study.record, study.record.best
    states = [trial.state for trial in record.trials]
    name = folder.settings.scheduler
    return {
        "path": str(folder.path),
        "trials": len(states),
        "complete": states.count("complete"),
        "stopped": states.count("stopped"),
        "failed": states.count("failed"),
        "objective": list(folder.settings.objectives),
        "scheduler": name,
        "scheduler_in_effect": "halving" if one_bracket(name, folder.ladder, len(states)) else name,
        "device_seconds": record.device_seconds,
        "events": sum(trial.resource for trial in record.trials),
        "best": None
        if best is None
        else {
            "trial": best.number,
            "value": best.value,
            "events": best.resource,
            "run": str(folder.run(best.number)),
            "settings": dict(best.point),
        },
    }
