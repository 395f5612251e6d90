"""What is known of a study: its trials, what they reported, and what was decided. Made from the rows of its log, see `log`.

    record = read_record(Path("studies/clic_small"))
    record.best.point, record.best.value

Rows are facts in the order in which they happened, so the record of an interrupted study is that of the study until then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ringflow.tune.schedulers import Point, Verdict

#: `waiting` for processes, `running`, put aside, given up at a rung, lived to the end, could not be trained.
State = Literal["waiting", "running", "paused", "stopped", "complete", "failed"]
OVER = ("stopped", "complete", "failed")


class Row(NamedTuple):
    """A line of the log."""

    number: int
    #: Seconds since 1970.
    time: float
    kind: str
    trial: int
    data: Mapping[str, Any]


class Reported(NamedTuple):
    """What a trial said when it came to a rung, and what it was told."""

    resource: int
    #: What is made small; NaN if the training diverged.
    value: float
    figures: Mapping[str, float]
    workers: int
    time: float
    verdict: Verdict


@dataclass
class Segment:
    """A trial on its processes, from a start to its end; None: it has not ended."""

    workers: int
    start: float
    end: float | None = None


@dataclass
class TrialRecord:
    """A trial of a study."""

    number: int
    point: Point
    created: float
    state: State = "waiting"
    #: Resource it is on its way to, and processes it is to have.
    until: int = 0
    workers: int = 1
    reports: list[Reported] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    #: Failures so far, and the reason of the last one.
    failures: int = 0
    reason: str = ""
    ended: float | None = None

    @property
    def value(self) -> float | None:
        """The last one; None before the first report."""
        return self.reports[-1].value if self.reports else None

    @property
    def resource(self) -> int:
        """Events shown at the last report."""
        return self.reports[-1].resource if self.reports else 0

    @property
    def earlier_values(self) -> tuple[tuple[int, float], ...]:
        """Resource and value of the reports before the last one."""
        return tuple((said.resource, said.value) for said in self.reports[:-1])

    @property
    def figures(self) -> Mapping[str, float]:
        """Of the last report."""
        return self.reports[-1].figures if self.reports else {}

    @property
    def over(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.state in OVER

    def device_seconds(self, now: float) -> float:
        """Processes times seconds that it had them."""
        return sum(part.workers * ((now if part.end is None else part.end) - part.start) for part in self.segments)


class StudyRecord:
    """All trials by number, kept up to date row by row."""

    def __init__(self, most: int, rows: Iterable[Row] = ()) -> None:
        self.most = most
        self.trials: list[TrialRecord] = []
        self.closed = False
        self.last_time = math.nan
        for row in rows:
            self.apply(row)

    def apply(self, row: Row) -> None:
        """Take in what happened."""
        self.last_time = row.time
        data = row.data
        if row.kind == "closed":
            self.closed = True
            return
        if row.kind == "added":
            self.trials.append(TrialRecord(row.trial, data["point"], row.time))
            self._decided(self.trials[-1], data, row.time)
            return
        trial = self.trials[row.trial]
        match row.kind:
            case "begun":
                self._leave(trial, trial.reports[-1].time if trial.reports else row.time)
                trial.segments.append(Segment(data["workers"], row.time))
                trial.state = "running"
            case "reported":
                value = math.nan if data["value"] is None else data["value"]
                said = Reported(data["resource"], value, data["figures"], trial.workers, row.time, data["verdict"])
                trial.reports.append(said)
                trial.reason = data.get("reason", trial.reason)
                self._decided(trial, data, row.time)
            case "decided":
                self._decided(trial, data, row.time)
            case "failed" | "gone":
                trial.failures += 1
                trial.reason = data["reason"]
                self._leave(trial, row.time)
                trial.state = "waiting"
                if row.kind == "gone":
                    trial.state, trial.ended = "failed", row.time
            case "ended":  # it gave its processes back, through no fault of its own
                self._leave(trial, row.time)
                if trial.state == "running":
                    trial.state = "waiting"

    def _decided(self, trial: TrialRecord, told: Mapping[str, Any], time: float) -> None:
        match told["verdict"]:
            case "stop":
                trial.state = "complete" if trial.resource >= self.most else "stopped"
                trial.ended = time
            case "pause":
                trial.state = "paused"
            case verdict:
                goes_on = verdict == "continue" and trial.state == "running"
                trial.state = "running" if goes_on else "waiting"
                trial.until, trial.workers = told["until"], told["workers"]
        if trial.state != "running":
            self._leave(trial, time)

    def _leave(self, trial: TrialRecord, time: float) -> None:
        if trial.segments and trial.segments[-1].end is None:
            trial.segments[-1].end = time

    @property
    def best(self) -> TrialRecord | None:
        """The trial with the lowest last value; of those that lived to the end if there are any."""
        return best_of(self.trials)

    def in_state(self, *states: State) -> list[TrialRecord]:
        """Trials in one of these states."""
        return [trial for trial in self.trials if trial.state in states]

    @property
    def device_seconds(self) -> float:
        """Of all trials together; for those that have not ended, until the last thing that happened."""
        return sum(trial.device_seconds(self.last_time) for trial in self.trials)


def best_of(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """The trial with the lowest last value, of those that lived to the end if there are any."""
    told = [trial for trial in trials if trial.value is not None and math.isfinite(trial.value)]
    chosen = [trial for trial in told if trial.state == "complete"] or told
    return min(chosen, key=lambda trial: trial.value or 0.0) if chosen else None
