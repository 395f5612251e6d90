"""A study as it goes: what is told to it is written down first, then search and scheduler learn of it.

    study = Study(folder)
    trial = study.add()                               # the search chooses
    decision = study.report(trial.number, 12_000, figures)
    run(folder, ExecutorOptions())                    # all of it: whoever is free gets a trial, until all is decided

Search and scheduler keep nothing on disk. When a study is opened again the scheduler is told the rows of its journal, in their
order, and is as it was.
"""

from __future__ import annotations

import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ringflow.base.config import toml_value
from ringflow.base.errors import FailureError, StoppedError
from ringflow.base.log import say
from ringflow.base.processes import usable_cores
from ringflow.base.rundir import write_errors
from ringflow.base.words import flat
from ringflow.train.runs import claimed
from ringflow.train.settings import TrainSettings
from ringflow.tune.folder import StudyFolder, earlier_trials, settled
from ringflow.tune.options import ExecutorOptions
from ringflow.tune.record import ALIASES, Journal, JournalRow, RowKind, StudyRecord, TrialRecord, extras_of, values_of
from ringflow.tune.schedulers import GROWING, Decision, Point, Report, make_scheduler, one_bracket
from ringflow.tune.search import Search
from ringflow.tune.space import Choice, with_values
from ringflow.tune.table import LiveTable
from ringflow.tune.worker import Order, Trouble, work_folder

if TYPE_CHECKING:
    from ringflow.tune.executors import Executor

#: So many trials fail, and none reports anything, until the study is given up.
_HOPELESS = 3


class Study:
    """Trials, and who decides about them; `earlier` are trials of other studies to learn from."""

    def __init__(self, folder: StudyFolder, earlier: Sequence[TrialRecord] = ()) -> None:
        settings = folder.settings
        self.folder, self.settings, self._earlier = folder, settings, tuple(earlier)
        self.record = StudyRecord(folder.training.length.events)
        self._scheduler = make_scheduler(
            settings.scheduler,
            folder.ladder,
            trials=settings.trials,
            initial_workers=settings.workers_per_trial,
            most_workers=settings.most_workers,
            processes=settings.processes,
        )
        self._search = Search(
            settings.search,
            folder.space,
            folder.training,
            seed=settings.seed,
            objectives=settings.objectives,
            grid_steps=settings.grid_steps,
        )
        self._waiting: dict[int, None] = {}  # trials to go on without processes, in the order in which they came
        self._journal = Journal(folder.journal, folder.space, settings.objectives)
        self._open([*self._journal.rows])

    def _open(self, rows: Sequence[JournalRow]) -> None:
        """Tell the scheduler again what it was told. What it said of others may not have been written down at the end."""
        promised: dict[int, Decision] = {}
        for row in rows:
            self._remember(row)
            if row.kind == "decided":
                promised.pop(row.trial, None)
            else:
                self._tell_again(row)
                promised.update(self._scheduler.promoted())
        for trial in self.record.trials:
            self._journal.publish(trial)
        for number, decision in promised.items():
            self._append("decided", number, **decision._asdict())
        interrupted = self.record.in_state("running")
        last = self.record.last_time
        for trial in interrupted:  # nobody runs it any more
            self._append("ended", trial.number, at=last)
        self._waiting = {**dict.fromkeys(trial.number for trial in interrupted), **self._waiting}  # they had their turn

    def _tell_again(self, row: JournalRow) -> None:
        decision: Decision | None = None
        match row.kind:
            case "added":
                failed = row.data.get("retry_of")
                decision = (
                    self._scheduler.add(row.trial) if failed is None else self._scheduler.again(row.trial, failed)
                )
            case "reported":
                value = math.nan if row.data["value"] is None else row.data["value"]
                restart = row.data.get("restart")
                decision = self._scheduler.report(Report(row.trial, row.data["resource"], value, restart))
            case "gone":
                self._scheduler.gone(row.trial)
            case "closed":
                self._scheduler.close()
        if decision is not None and decision.verdict != row.data["verdict"]:
            raise FailureError(
                f"the journal of {self.folder.path} says {row.data['verdict']} for trial {row.trial} where this version of "
                f"ringflow decides {decision.verdict}; go on with the version that the study was made with"
            )

    def _append(self, kind: RowKind, trial: int = -1, **data: Any) -> None:
        self._remember(self._journal.append(kind, trial, **data))
        if trial >= 0:
            self._journal.publish(self.record.trials[trial])

    def _remember(self, row: JournalRow) -> None:
        self.record.apply(row)
        if row.trial >= 0 and self.record.trials[row.trial].state == "waiting":
            self._waiting[row.trial] = None
        else:
            self._waiting.pop(row.trial, None)

    def _settle(self) -> None:
        """Write down what the scheduler decides about trials that were put aside."""
        for trial, decision in self._scheduler.promoted():
            self._append("decided", trial, **decision._asdict())

    @property
    def waiting(self) -> list[TrialRecord]:
        """Trials that are to go on and have no processes, those that wait longest first."""
        return [self.record.trials[number] for number in self._waiting]

    @property
    def finished(self) -> bool:
        """Whether nothing will happen any more."""
        return self.record.closed and all(trial.over for trial in self.record.trials)

    def add(self) -> TrialRecord | None:
        """A new trial, as the search chooses; None if there are enough, or nothing is left to try."""
        number = len(self.record.trials)
        if self.record.closed:
            return None
        chosen = sum(trial.retry_of is None for trial in self.record.trials)
        point = self._choose(number) if chosen < self.settings.trials else None
        if point is None:
            self._append("closed")
            self._scheduler.close()
            self._settle()
            return None
        decision = self._scheduler.add(number)
        self._append("added", number, point=dict(point), notes=self._search.notes, **decision._asdict())
        return self.record.trials[number]

    def _choose(self, number: int) -> Point | None:
        if number == 0 and self.settings.default_first and self.settings.search != "grid":
            point = _point_of(self.folder)
            if point is not None:
                return point
        return self._search.ask(number, [*self._earlier, *self.record.trials])

    def retry(self) -> int:
        """Try the settings of all trials that failed again, each in a new trial; how many."""
        again = {trial.retry_of for trial in self.record.trials}
        failed = [trial for trial in self.record.in_state("failed") if trial.number not in again]
        for number, trial in enumerate(failed, len(self.record.trials)):
            decision = self._scheduler.again(number, trial.number)
            self._append("added", number, point=dict(trial.point), retry_of=trial.number, **decision._asdict())
        return len(failed)

    def begin(self, number: int) -> None:
        """A trial has its processes."""
        self._append("begun", number, workers=self.record.trials[number].workers)

    def report(self, number: int, resource: int, figures: Mapping[str, float | None]) -> Decision:
        """A trial came to a rung; what becomes of it."""
        value = values_of(figures, self.settings.objectives)[0]
        told = {name: figure for name, figure in figures.items() if figure is not None}
        restart = start_cost(self.record.trials[number], resource, time.time())
        return self._report(Report(number, resource, value, restart), figures=told, restart=restart)

    def _report(self, report: Report, **more: Any) -> Decision:
        decision = self._scheduler.report(report)
        words = {"resource": report.resource, "value": report.value, **more, **decision._asdict()}
        self._append("reported", report.trial, **words)
        self._settle()
        return decision

    def end(self, number: int, trouble: Trouble | None, reason: str) -> None:
        """A trial gave its processes back, as it was told or because something went wrong."""
        trial = self.record.trials[number]
        if trial.state != "running":  # it was told to end
            return
        if trouble is None or trouble in ("interrupted", "full"):
            self._append("ended", number)
            if trouble == "full":
                raise FailureError(f"trial {number}: {reason}, then `ringflow tune resume {self.folder.path}`")
        elif trouble == "diverged":  # it counts at the rung that it was on its way to, as worse than all others
            self._report(Report(number, trial.until, math.nan), figures={}, reason=reason)
        elif trouble == "refused" or trial.failures >= self.settings.retries:
            self._append("gone", number, reason=reason)
            self._scheduler.gone(number)
            self._settle()
            failed = len(self.record.in_state("failed"))
            reported = any(trial.reports for trial in self.record.trials)
            if failed >= min(_HOPELESS, self.settings.trials) and not reported:
                raise FailureError(f"the first {failed} trials failed, the last with: {reason}")
        else:
            self._append("failed", number, reason=reason)


def start_cost(trial: TrialRecord, resource: int, now: float) -> float | None:
    """Events that one process of a trial could have been shown while it was last started: what its first report on these
    processes took longer than the events until then do. None before the second report on them, which tells the pace."""
    part = trial.segments[-1] if trial.segments else None
    told = [said for said in trial.reports if part and said.time > part.start]
    if part is None or not told or now <= told[-1].time or resource <= told[-1].resource:
        return None
    before = [said.resource for said in trial.reports if said.time <= part.start]
    pace = (resource - told[-1].resource) / (now - told[-1].time)
    missing = pace * (told[0].time - part.start) - (told[0].resource - max(before, default=0))
    return missing / part.workers if missing > 0.0 else None  # it went on from a checkpoint after its last report


def _point_of(folder: StudyFolder) -> Point | None:
    """The settings that the space varies, as they are; None if they are not a point of it."""
    values = dict(flat(folder.training.model_dump(mode="json")))
    point = folder.space.build(lambda parameter: values.get(parameter.name))
    allowed = folder.space.holds(point) and folder.space.feasible(point, folder.training) is None
    return point if allowed else None


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
