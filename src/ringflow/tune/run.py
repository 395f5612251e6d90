"""Start a study, or go on with one: processes that are free get trials, reports get answers, until all is decided."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ringflow.base.errors import StoppedError
from ringflow.base.log import say
from ringflow.base.processes import usable_cores
from ringflow.train.runs import claimed
from ringflow.train.settings import TrainSettings
from ringflow.tune.folder import StudyFolder, earlier_trials, require_same_origin
from ringflow.tune.hparams import write_hparams
from ringflow.tune.objective import extras_of
from ringflow.tune.options import Place
from ringflow.tune.record import TrialRecord
from ringflow.tune.schedulers import GROWING, one_bracket
from ringflow.tune.study import Study
from ringflow.tune.table import LiveTable
from ringflow.tune.worker import Begun, Ended, Message, Order, Said, work_folder

if TYPE_CHECKING:
    from ringflow.tune.executors import Executor

#: Seconds without anything to hear after which the loop looks around.
_PATIENCE = 1.0


def run(folder: StudyFolder, place: Place, *, allow_changes: bool = False) -> dict[str, Any]:
    """Go on with a study to its end; the result, ready for JSON."""
    if not allow_changes:
        require_same_origin(folder)
    with claimed(folder.path, "study"), _stoppable(folder.path):
        earlier = earlier_trials([Path(path) for path in folder.origin["warm_start"]], folder.space, folder.settings)
        study = Study(folder, earlier)
        # Orders of an earlier start; their trials will tell again what was not heard.
        shutil.rmtree(work_folder(folder.path), ignore_errors=True)
        if told := one_bracket(folder.settings.scheduler, folder.ladder, folder.settings.trials):
            say(told)
        if folder.settings.search == "forest":
            say("Optuna has no random forest: tpe stands in for --search forest")
        if not study.finished:
            _run(study, place)
            write_hparams(folder.path)
        return summary(folder, study)


def _run(study: Study, place: Place) -> None:
    with LiveTable(study.settings.trials, study.settings.objectives[0]) as table:
        executor = make_executor(study.folder, place)
        try:
            drive(study, executor, lambda study: table.show(study.record))
        finally:
            executor.close()


def make_executor(folder: StudyFolder, place: Place) -> Executor:
    """The executor of this name."""
    device = folder.training.compute.device
    from ringflow.tune import executors

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


def drive(study: Study, executor: Executor, look: Callable[[Study], None] = lambda study: None) -> None:
    """Go on with a study to its end. `look` is called whenever something happened, and about once a second."""
    busy: dict[int, Path] = {}  # folders of the orders of trials that have processes
    look(study)
    while True:
        _fill(study, executor, busy)
        if study.finished and not busy:
            return
        for message in executor.poll(_PATIENCE):
            _hear(study, executor, busy, message)
        look(study)


def _fill(study: Study, executor: Executor, busy: dict[int, Path]) -> None:
    """Start what fits: first trials that go on, then new ones. Nobody overtakes one that waits for more processes."""
    while True:
        waiting = [trial for trial in study.waiting if trial.number not in busy]
        if not waiting:
            if not executor.room(study.settings.workers_per_trial):
                return
            new = study.add()
            if new is None:
                return
            waiting = [new]
        trial = waiting[0]
        if not executor.room(trial.workers):
            return
        order = _order(study.folder, trial)
        order.write()
        busy[trial.number] = order.folder
        executor.start(order)


def _hear(study: Study, executor: Executor, busy: dict[int, Path], message: Message) -> None:
    trial = message.trial
    match message:
        case Begun():
            study.begin(trial, study.record.trials[trial].workers)
        case Said(resource=resource, figures=figures):
            decision = study.report(trial, resource, figures)
            executor.answer(trial, decision.until if decision.verdict == "continue" else 0)
        case Ended(trouble=trouble, reason=reason):
            shutil.rmtree(busy.pop(trial), ignore_errors=True)
            study.end(trial, trouble, reason)


def _order(folder: StudyFolder, trial: TrialRecord) -> Order:
    settings = trial_settings(folder, trial)
    return Order(
        trial=trial.number,
        folder=_new_folder(work_folder(folder.path) / "orders", trial.number),
        run=folder.run(trial.number),
        settings=settings.model_dump(mode="json"),
        until=trial.until,
        workers=trial.workers,
        extras=extras_of(folder.settings.objectives),
    )


def _new_folder(orders: Path, trial: int) -> Path:
    """A folder that no order had: what comes late for an earlier one must not be taken for this one's."""
    taken = [int(path.name.split("-")[1]) for path in orders.glob(f"{trial:06d}-*")]
    return orders.absolute() / f"{trial:06d}-{max(taken, default=0) + 1}"


def trial_settings(folder: StudyFolder, trial: TrialRecord) -> TrainSettings:
    """What a trial trains with, on the number of processes that it has now.

    Each process keeps the size of its batches, so that the step grows with their number; a scheduler that lets trials grow has
    the rate follow by the square root, as it suits AdamW and LAMB, unless the settings name a rule.
    """
    base, study = folder.training, folder.settings
    words = [*folder.space.settings_words(trial.point), f"source.lanes={trial.workers}", "length.patience=0"]
    if study.scheduler in GROWING and base.optimizer.rule == "none":
        point = TrainSettings.resolve(folder.settings_file, words)
        first = study.workers_per_trial * point.compute.batch_elements
        words += ["optimizer.rule=sqrt", f"optimizer.rule_elements={first}"]
    return TrainSettings.resolve(folder.settings_file, words)
