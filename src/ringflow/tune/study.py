"""A study as it goes: what is told to it is written down first, then search and scheduler learn of it.

    study = Study(folder)
    trial = study.add()                               # the search chooses
    decision = study.report(trial.number, 12_000, figures)

Search and scheduler keep nothing on disk. When a study is opened again the scheduler is told the rows of its journal, in their
order, and is as it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ringflow.base.errors import FailureError
from ringflow.base.words import flat
from ringflow.tune.folder import StudyFolder
from ringflow.tune.objective import values_of
from ringflow.tune.record import Journal, JournalRow, RowKind, StudyRecord, TrialRecord
from ringflow.tune.schedulers import Decision, Point, Report, make_scheduler
from ringflow.tune.search import Search
from ringflow.tune.worker import Trouble

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
