"""Start a study, or go on with one: processes that are free get trials, reports get answers, until all is decided."""

from __future__ import annotations

import math
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ringflow.base.config import toml_value
from ringflow.base.errors import StoppedError
from ringflow.base.log import say
from ringflow.base.processes import usable_cores
from ringflow.base.rundir import write_errors
from ringflow.train.runs import claimed
from ringflow.train.settings import TrainSettings
from ringflow.tune.folder import StudyFolder, earlier_trials, settled
from ringflow.tune.objective import ALIASES, extras_of
from ringflow.tune.options import ExecutorOptions
from ringflow.tune.record import StudyRecord, TrialRecord
from ringflow.tune.schedulers import GROWING, one_bracket
from ringflow.tune.space import Choice, with_values
from ringflow.tune.study import Study
from ringflow.tune.table import LiveTable
from ringflow.tune.worker import Order, work_folder

if TYPE_CHECKING:
    from ringflow.tune.executors import Executor


#: Seconds without anything to hear after which the loop looks around.
_PATIENCE = 1.0


def run(
    folder: StudyFolder,
    place: ExecutorOptions,
    *,
    overrides: Sequence[str] = (),
    retry: bool = False,
    allow_changes: bool = False,
) -> dict[str, Any]:
    """Go on with a study to its end; the result, ready for JSON. `overrides` say where its data are if they have moved;
    `retry` has the trials that failed tried again."""
    with claimed(folder.path, "study"), _stoppable(folder.path):
        folder = settled(folder, overrides, allow_changes=allow_changes)
        earlier = earlier_trials([Path(path) for path in folder.origin.warm_start], folder.space, folder.settings)
        study = Study(folder, earlier)
        if retry:
            say(f"trials that failed and are tried again: {study.retry()}")
        # What an earlier start left; its trials will tell again what was not heard.
        shutil.rmtree(work_folder(folder.path), ignore_errors=True)
        if told := one_bracket(folder.settings.scheduler, folder.ladder, folder.settings.trials):
            say(told)
        if folder.settings.search == "forest":
            say("Optuna has no random forest: tpe stands in for --search forest")
        if not study.finished:
            with LiveTable(study.settings.trials, study.settings.objectives[0]) as table:
                executor = make_executor(folder, place)
                try:
                    drive(study, executor, lambda study: table.show(study.record))
                finally:
                    executor.close()
            write_hparams(folder.path)
        return summary(folder, study.record)


def make_executor(folder: StudyFolder, place: ExecutorOptions) -> Executor:
    """The executor of this name."""
    from ringflow.tune import executors

    device = folder.training.compute.device
    match place.executor:
        case "local":
            workers = place.workers or default_workers(device)
            return executors.LocalExecutor(folder.path, workers, accelerators(device))
        case "ray":
            return executors.RayExecutor(folder.path, place.address, place.workers, on_gpus=device != "cpu")
        case _:
            return executors.SlurmExecutor(folder.path, place.job(), place.max_jobs, place.idle)


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


def summary(folder: StudyFolder, record: StudyRecord) -> dict[str, Any]:
    """What came of a study."""
    states, name, best = [trial.state for trial in record.trials], folder.settings.scheduler, record.best
    return {
        "path": str(folder.path),
        "trials": len(states),
        **{state: states.count(state) for state in ("complete", "stopped", "failed")},
        "objective": list(folder.settings.objectives),
        "scheduler": name,
        "scheduler_in_effect": "halving" if one_bracket(name, folder.ladder, len(states)) else name,
        "device_seconds": record.device_seconds,
        "events": sum(trial.resource for trial in record.trials),
        "best": best
        and {
            "trial": best.number,
            "value": best.value,
            "events": best.resource,
            "run": str(folder.run(best.number)),
            "settings": dict(best.point),
        },
    }


def drive(study: Study, executor: Executor, look: Callable[[Study], None] = lambda study: None) -> None:
    """Go on with a study to its end. `look` is called whenever something happened, and about once a second."""
    busy: set[int] = set()  # trials that have an order
    look(study)
    while True:
        _fill(study, executor, busy)
        if study.finished and not busy:
            return
        for message in executor.poll(_PATIENCE):
            match message.kind:
                case "begun":
                    study.begin(message.trial)
                case "report":
                    decision = study.report(message.trial, message.resource, message.figures or {})
                    executor.answer(message.trial, decision.until if decision.verdict == "continue" else 0)
                case "ended":
                    busy.remove(message.trial)
                    study.end(message.trial, message.trouble, message.reason)
        look(study)


def _fill(study: Study, executor: Executor, busy: set[int]) -> None:
    """Start what fits: first trials that go on, then new ones. Nobody overtakes one that waits for more processes."""
    while True:
        trial = next((trial for trial in study.waiting if trial.number not in busy), None)
        if not executor.room(study.settings.workers_per_trial if trial is None else trial.workers):
            return
        trial = trial or study.add()
        if trial is None:
            return
        busy.add(trial.number)
        executor.start(
            Order(
                trial=trial.number,
                run=study.folder.run(trial.number).absolute(),
                settings=trial_settings(study.folder, trial).model_dump(mode="json"),
                until=trial.until,
                workers=trial.workers,
                extras=extras_of(study.settings.objectives),
            )
        )


def trial_settings(folder: StudyFolder, trial: TrialRecord) -> TrainSettings:
    """What a trial trains with, on the number of processes that it has now.

    Each process keeps the size of its batches, so that the step grows with their number; a scheduler that lets trials grow has
    the rate follow by the square root, as it suits AdamW and LAMB, unless the settings name a rule.
    """
    study = folder.settings
    settings = with_values(folder.training, {**trial.point, "source.lanes": trial.workers, "length.patience": 0})
    if study.scheduler in GROWING and folder.training.optimizer.rule == "none":
        first = study.workers_per_trial * settings.compute.batch_elements
        settings = with_values(settings, {"optimizer.rule": "sqrt", "optimizer.rule_elements": first})
    return settings


# Settings and last values of all trials for the HPARAMS page of TensorBoard, beside the curves that trainings write.

BOARD_FOLDER = "tensorboard"
#: The best ones are written if there are more: TensorBoard takes minutes to read thousands.
MOST_TRIALS = 500


def write_hparams(study: Path) -> Path:
    """Write the files; the folder to give to TensorBoard, which is that of the study."""
    from tensorboardX import SummaryWriter
    from tensorboardX.summary import hparams

    folder, board = StudyFolder(study), study / BOARD_FOLDER
    objectives, finite = folder.settings.objectives, math.isfinite
    tags = {f"tune/{name}": 0.0 for name in (*objectives, "events")}
    trials = folder.record().trials
    best = sorted(trials, key=lambda t: t.value if t.value is not None and finite(t.value) else math.inf)[:MOST_TRIALS]
    with write_errors(board):
        shutil.rmtree(board, ignore_errors=True)
        for trial in best:
            _, start, end = hparams({name: _plain(value) for name, value in trial.point.items()}, tags)
            with SummaryWriter(str(board / f"{trial.number:04d}")) as writer:
                writer.file_writer.add_summary(start, walltime=trial.created)
                for report in trial.reports:
                    told = {name: report.figures.get(ALIASES.get(name, name), math.nan) for name in objectives}
                    for name, value in (told | {objectives[0]: report.value, "events": report.resource}).items():
                        writer.add_scalar(f"tune/{name}", value, report.resource, walltime=report.time)
                if trial.state in ("complete", "stopped"):
                    writer.file_writer.add_summary(end, walltime=trial.ended)
        # Which settings vary, and what is made small.
        varied = {p.name: _plain(p.options[0] if isinstance(p, Choice) else p.low) for p in folder.space.parameters}
        with SummaryWriter(str(board)) as writer:
            writer.file_writer.add_summary(hparams(varied, tags)[0])
    return study


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str) else toml_value(value)
