"""What is known of a study: its trials, what they reported, and what was decided, kept in a journal of Optuna.

    record = StudyFolder(Path("studies/first")).record()
    record.best.point, record.best.value

Whatever happens is a row: a number, a time, a kind and what belongs to it. Rows are system attributes of Optuna's trials, each
on disk before anything follows from it, and nothing is ever changed: a study that was killed is what its rows say. Beside them
a trial has what Optuna itself wants, so that its dashboard, `optuna.load_study` and its plots work on the same file:

    params, state, values         of the settings; what became of it; last values of the objectives
    intermediate values           of the first objective, by events shown; not with several objectives, of which Optuna has none
    user attributes               run: its folder, seen from the study; outcome: state, events, processes, device-seconds, ...

What is made small are figures of a validation by name, and the cost of the network:

    loss         of the validation
    jets         resolution of jets: interquartile range over median of their response
    cpu_ms       milliseconds of one core per event of 128 elements
    parameters   numbers in the network

Any other figure of a validation can be named as `history.jsonl` writes it, if less of it is better.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from ringflow.base.errors import FailureError, InputFileError, UsageError
from ringflow.base.output import finite_or_null
from ringflow.base.rundir import TRIALS_FOLDER, write_errors
from ringflow.launch.frameworks import framework
from ringflow.tune.schedulers import Point, Verdict

if TYPE_CHECKING:
    from optuna.storages import JournalStorage

    from ringflow.models.model import Model
    from ringflow.tune.space import Space

ALIASES = {"jets": "jet_iqr_over_median"}
EXTRAS = ("cpu_ms", "parameters")
_ELEMENTS, _REPEATS = 128, 20


def values_of(figures: Mapping[str, float | None], objectives: Sequence[str]) -> list[float]:
    """The values of several objectives; NaN for one that is not finite. An error if a validation has no such figure."""
    values = []
    for name in objectives:
        key = ALIASES.get(name, name)
        if key not in figures:
            known = ", ".join(sorted({*figures, *ALIASES, *EXTRAS} - set(ALIASES.values())))
            raise UsageError(f"a validation has no figure {name!r} to make small; choose from {known}")
        value = figures[key]
        values.append(math.nan if value is None else float(value))
    return values


def extras_of(objectives: Sequence[str]) -> tuple[str, ...]:
    """Those of the objectives that a validation does not measure."""
    return tuple(name for name in objectives if name in EXTRAS)


def measure_extras(extras: Sequence[str], run: Path) -> dict[str, float]:
    """What the newest network of a run costs."""
    if not extras:
        return {}
    from ringflow.models.file import load_model
    from ringflow.train.runs import LAST_MODEL_FILE

    model = load_model(run / LAST_MODEL_FILE).model
    measured = {"parameters": float(model.num_parameters)}
    if "cpu_ms" in extras:
        measured["cpu_ms"] = cpu_milliseconds(model)
    return {name: measured[name] for name in extras}


def cpu_milliseconds(model: Model) -> float:
    """Processor time of one event; the fastest of several, because other trials may use the same cores and caches."""
    import torch

    from ringflow.elements.batch import random_elements

    event = random_elements([_ELEMENTS], model.settings.calorimeter)
    threads, times = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            for _ in range(_REPEATS):
                start = time.process_time()
                model.predict(event)
                times.append(time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    return 1000.0 * min(times)


JOURNAL_FILE = "journal.log"
#: Begins the names of the system attributes that are rows.
_ROW = "ringflow:"
#: `waiting` for processes, `running`, put aside, given up at a rung, lived to the end, could not be trained.
State = Literal["waiting", "running", "paused", "stopped", "complete", "failed"]


RowKind = Literal["added", "begun", "reported", "decided", "ended", "failed", "gone", "closed"]


class RowData(TypedDict, total=False):
    """What belongs to rows of one kind or another."""

    point: dict[str, Any]
    notes: dict[str, Any]
    retry_of: int
    resource: int
    value: float | None
    figures: dict[str, float | None]
    restart: float | None
    reason: str
    verdict: Verdict
    until: int
    workers: int
    at: float | None


class JournalRow(NamedTuple):
    """Something that happened; trial -1 is the study."""

    number: int
    #: Seconds since 1970.
    time: float
    kind: RowKind
    trial: int
    data: RowData


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
    created: float = 0.0
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
    #: What a sampler noted when it chose the point, and wants to find again.
    notes: Mapping[str, Any] = field(default_factory=dict)
    #: The trial that failed with these settings, and which this one tries again.
    retry_of: int | None = None

    @property
    def value(self) -> float | None:
        """The last one; None before the first report."""
        return self.reports[-1].value if self.reports else None

    @property
    def resource(self) -> int:
        """Events shown at the last report."""
        return self.reports[-1].resource if self.reports else 0

    @property
    def figures(self) -> Mapping[str, float]:
        """Of the last report."""
        return self.reports[-1].figures if self.reports else {}

    @property
    def over(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.state in ("stopped", "complete", "failed")

    def values(self, objectives: Sequence[str]) -> list[float]:
        """Last values of objectives, of which the first decides how long it lives; NaN for what it did not tell."""
        value = math.nan if self.value is None else self.value
        return [value, *(float(self.figures.get(ALIASES.get(name, name), math.nan)) for name in objectives[1:])]

    def device_seconds(self, now: float) -> float:
        """Processes times seconds that it had them."""
        return sum(part.workers * ((now if part.end is None else part.end) - part.start) for part in self.segments)

    def decided(self, told: Mapping[str, Any], now: float, most: int) -> None:
        """What becomes of it."""
        match told["verdict"]:
            case "stop":
                self.state, self.ended = "complete" if self.resource >= most else "stopped", now
            case "pause":
                self.state = "paused"
            case verdict:
                self.state = "running" if verdict == "continue" and self.state == "running" else "waiting"
                self.until, self.workers = told["until"], told["workers"]
        if self.state != "running":
            self.leave(now)

    def leave(self, now: float) -> None:
        """It has no processes any more."""
        if self.segments and self.segments[-1].end is None:
            self.segments[-1].end = now


class StudyRecord:
    """All trials by number, kept up to date row by row."""

    def __init__(self, most: int, rows: Iterable[JournalRow] = ()) -> None:
        self.most = most
        self.trials: list[TrialRecord] = []
        self.closed = False
        self.last_time = math.nan
        for row in rows:
            self.apply(row)

    def apply(self, row: JournalRow) -> None:
        """Take in what happened."""
        self.last_time, data = row.time, row.data
        if row.kind == "closed":
            self.closed = True
            return
        if row.kind == "added":
            notes, retry_of = data.get("notes", {}), data.get("retry_of")
            if row.trial != len(self.trials) or not 0 <= (retry_of or 0) <= row.trial:
                raise LookupError(f"trial {row.trial} is out of order")
            self.trials.append(TrialRecord(row.trial, data["point"], row.time, notes=notes, retry_of=retry_of))
        trial = self.trials[row.trial]
        match row.kind:
            case "begun":
                trial.segments.append(Segment(data["workers"], row.time))
                trial.state = "running"
            case "reported":
                value = math.nan if data["value"] is None else data["value"]
                figures = {name: figure for name, figure in data["figures"].items() if figure is not None}
                said = Reported(data["resource"], value, figures, trial.workers, row.time, data["verdict"])
                trial.reports.append(said)
                trial.reason = data.get("reason", trial.reason)
            case "failed" | "gone":
                trial.failures += 1
                trial.reason = data["reason"]
                trial.leave(row.time)
                trial.state = "waiting"
                if row.kind == "gone":
                    trial.state, trial.ended = "failed", row.time
            case "ended":  # it gave its processes back, through no fault of its own
                trial.leave(data.get("at") or row.time)
                if trial.state == "running":
                    trial.state = "waiting"
        if "verdict" in data:
            trial.decided(data, row.time, self.most)

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


def best_of(trials: Sequence[TrialRecord], objectives: Sequence[str] = ("",), index: int = 0) -> TrialRecord | None:
    """The trial with the lowest last value of an objective, of those that lived to the end if there are any."""
    told = [(value, trial) for trial in trials if math.isfinite(value := trial.values(objectives)[index])]
    chosen = [pair for pair in told if pair[1].state == "complete"] or told
    return min(chosen, key=lambda pair: pair[0])[1] if chosen else None


class Journal:
    """The file of a study, to be written by its driver alone; others may read it meanwhile."""

    def __init__(self, path: Path, space: Space, objectives: Sequence[str]) -> None:
        self._path, self._space, self._objectives = path, space, tuple(objectives)
        self._optuna = load_optuna()
        with write_errors(path):
            if path.exists():  # a driver that was killed left half a line, over which Optuna would stumble for ever
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            self._storage = _open(path)
            if not self._storage.get_all_studies():
                self._create(path.absolute().parent.name)
        self.rows = _rows(self._storage, path)

    def _create(self, name: str) -> None:
        minimize = self._optuna.study.StudyDirection.MINIMIZE
        self._storage.create_new_study([minimize] * len(self._objectives), name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            self._optuna.load_study(study_name=name, storage=self._storage).set_metric_names(list(self._objectives))

    def append(self, kind: RowKind, trial: int = -1, **data: Any) -> JournalRow:
        """Add a row; it is on disk when this returns."""
        row = JournalRow(len(self.rows), time.time(), kind, trial, finite_or_null(data))
        key = f"{_ROW}{row.number:07d}"
        value: Any = [row.time, kind, row.data]
        with write_errors(self._path):
            if kind == "added":
                template = self._optuna.trial.create_trial(
                    state=self._optuna.trial.TrialState.RUNNING,
                    user_attrs={"run": f"{TRIALS_FOLDER}/{trial:04d}"},
                    system_attrs={key: value},
                    **self._space.as_optuna(row.data["point"]),
                )
                if self._storage.create_new_trial(0, template) != trial:
                    raise FailureError(
                        f"somebody else added trials to {self._path}; put a copy of it back without them"
                    )
            elif trial < 0:
                self._storage.set_study_system_attr(0, key, value)
            else:
                self._storage.set_trial_system_attr(trial, key, value)
        self.rows.append(row)
        return row

    def publish(self, trial: TrialRecord) -> None:
        """Tell Optuna what is new about a trial."""
        shown = self._storage.get_trial(trial.number)
        if shown.state.is_finished():
            return
        with write_errors(self._path):
            if len(self._objectives) == 1:
                for said in trial.reports[len(shown.intermediate_values) :]:
                    self._storage.set_trial_intermediate_value(trial.number, said.resource, said.value)
            if trial.over:
                state, values = outcome(trial, self._objectives)
                self._storage.set_trial_user_attr(trial.number, "outcome", finite_or_null(_words(trial)))
                self._storage.set_trial_state_values(trial.number, self._optuna.trial.TrialState[state], values)


def load_optuna() -> Any:
    """The module, which from then on keeps to itself what it would tell at every step."""
    optuna = framework("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def read_rows(path: Path) -> list[JournalRow]:
    """The rows of a journal that others may be writing; nothing is changed."""
    if not path.is_file():
        if path.with_name("study.db").is_file():
            raise InputFileError(
                f"{path.parent} is a study of an earlier version of ringflow, which this one does not read; "
                "its trials are whole in trials/, a new study needs another --out"
            )
        raise InputFileError(f"{path} does not exist; give the folder of a study, as made by `ringflow tune`")
    return _rows(_open(path), path)


def _rows(storage: JournalStorage, path: Path) -> list[JournalRow]:
    """The rows in their order; an error if one is missing or is none."""
    if not storage.get_all_studies():
        return []
    attributes = [(-1, storage.get_study_system_attrs(0))]
    attributes += [(trial.number, trial.system_attrs) for trial in storage.get_all_trials(0, deepcopy=False)]
    found = [
        (key.removeprefix(_ROW), trial, value)
        for trial, told in attributes
        for key, value in told.items()
        if key.startswith(_ROW)
    ]
    try:
        said = [(int(number), moment, kind, trial, data) for number, trial, (moment, kind, data) in found]
        rows = TypeAdapter(list[JournalRow]).validate_python(sorted(said))
        if [row.number for row in rows] != list(range(len(rows))):
            raise ValueError("rows are missing")
        if any((row.trial < 0) != (row.kind == "closed") for row in rows):
            raise ValueError("rows are of the wrong trial")
        StudyRecord(0, rows)
    except (ValueError, TypeError, LookupError) as error:
        raise _damaged(path, error) from None
    return rows


def _open(path: Path) -> JournalStorage:
    optuna = load_optuna()
    try:
        storage: JournalStorage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    except OSError as error:
        raise InputFileError(f"{path} cannot be read: {error.strerror}") from None
    except Exception as error:  # whatever it is that Optuna stumbles over in a file that it did not write
        raise _damaged(path, error) from None
    return storage


def _damaged(path: Path, error: Exception) -> InputFileError:
    told = "".join(letter if letter.isprintable() else "?" for letter in " ".join(str(error).split()))
    return InputFileError(
        f"{path} is damaged ({told[:120]}); put a copy of it back, or move it away and start the study again with "
        "--warm-start: the folders of its trials are untouched"
    )


def outcome(trial: TrialRecord, objectives: Sequence[str]) -> tuple[str, list[float] | None]:
    """The state that Optuna has for a trial that is over, and the values that it wants with it."""
    values = trial.values(objectives)
    told = values if all(map(math.isfinite, values)) else None
    match trial.state:
        case "complete":
            return ("COMPLETE", told) if told else ("FAIL", None)  # it diverged in its last part; Optuna wants a number
        case "stopped":
            return "PRUNED", told if len(objectives) == 1 else None
    return "FAIL", None


def _words(trial: TrialRecord) -> dict[str, Any]:
    return {
        "state": trial.state,
        "events": trial.resource,
        "processes": [part.workers for part in trial.segments],
        "device_seconds": trial.device_seconds(time.time()),
        "failures": trial.failures,
        "reason": trial.reason,
        "figures": dict(trial.figures),
        "reports": [{"events": said.resource, **said.figures} for said in trial.reports],
    }
