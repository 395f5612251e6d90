"""The loop of a study: processes that are free get trials, reports get answers, until all is decided."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ringflow.train.settings import TrainSettings
from ringflow.tune.desk import DESK_FOLDER, lay
from ringflow.tune.executor import Begun, Ended, Executor, Message, Order, Said
from ringflow.tune.folder import StudyFolder
from ringflow.tune.objective import extras_of
from ringflow.tune.record import TrialRecord
from ringflow.tune.schedulers import GROWING
from ringflow.tune.study import Study

#: Seconds without anything to hear after which the loop looks around.
_PATIENCE = 1.0


def drive(study: Study, executor: Executor, look: Callable[[Study], None] = lambda study: None) -> None:
    """Go on with a study to its end. `look` is called whenever something happened, and about once a second."""
    busy: dict[int, Path] = {}  # tickets of trials that have processes
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
        lay(order)
        busy[trial.number] = order.ticket
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
        ticket=_new_ticket(folder.path / DESK_FOLDER, trial.number),
        run=folder.run(trial.number),
        settings=settings.model_dump(mode="json"),
        until=trial.until,
        workers=trial.workers,
        extras=extras_of(folder.settings.objectives),
    )


def _new_ticket(desk: Path, trial: int) -> Path:
    """A folder that no order had: what comes late for an earlier one must not be taken for this one's."""
    taken = [int(path.name.split("-")[1]) for path in desk.glob(f"{trial:06d}-*")]
    return desk / f"{trial:06d}-{max(taken, default=0) + 1}"


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
