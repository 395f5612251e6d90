"""The folder of a study: what lies in it, how it is made, and what a new one learns from it. Known without torch.

study.toml       how many trials, who searches, who decides
settings.toml    settings of a training that the space varies
space.toml       what is varied
origin.json      code, versions and data that it belongs to, earlier studies that it learned from, and where all that lies, seen
                 from here
journal.log      everything that happened, as Optuna keeps it, see `record`
trials/0007/     the run of a trial, complete, as `ringflow train` leaves it; what its processes said is in trials/0007.log
work/            orders and reports under way, see `worker`
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from ringflow import __version__
from ringflow.base.config import Settings, write
from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.log import say
from ringflow.base.provenance import code_version
from ringflow.base.rundir import (
    ORIGIN_FILE,
    SETTINGS_FILE,
    STUDY_FILE,
    TRIALS_FOLDER,
    prepared,
    refuse_ways_out,
    write_atomic,
)
from ringflow.train.runs import NAMED, KnownPlace, claimed, find, is_same, located, places_of
from ringflow.train.settings import TrainSettings
from ringflow.tune import SchedulerName, SearchName
from ringflow.tune.record import ALIASES, JOURNAL_FILE, Reported, State, StudyRecord, TrialRecord, read_rows
from ringflow.tune.schedulers import ETA, Ladder
from ringflow.tune.search import aligned, is_finite
from ringflow.tune.space import Space, read_space

SPACE_FILE = "space.toml"
#: Settings that a space may not vary: they are the same for all trials of a study.
_FIXED = ("data", "seed", "start", "profile", "detector", "sync", "length", "source.lanes", "compute.device")


class StudySettings(Settings):
    """Everything a study needs beside the settings of its trainings and its space."""

    trials: int = Field(default=24, ge=1)
    search: SearchName = "tpe"
    scheduler: SchedulerName = "asha"
    #: What is made small, by name; the first one decides how long a trial lives.
    objectives: tuple[str, ...] = Field(default=("loss",), min_length=1)
    #: Events after which trials are compared for the first time; one in `eta` goes on to `eta` times as many, and the last
    #: ones to `length.events` of the training.
    least: int = Field(ge=1)
    eta: int = Field(default=ETA, ge=2)
    #: Processes of a trial at first, and at most (a trial grows with `rasda`).
    workers_per_trial: int = Field(default=1, ge=1)
    most_workers: int = Field(default=1, ge=1)
    #: Processes of all trials together, for `rasda-idle`, which lets trials grow onto those that nobody uses.
    processes: int | None = Field(default=None, ge=1)
    #: How often a trial may fail before it is given up.
    retries: int = Field(default=2, ge=0)
    seed: int = Field(default=1, ge=0)
    #: Whether the first trial has the settings that the space varies as they are, if they are a point of it.
    default_first: bool = True
    #: Values of every range in a grid.
    grid_steps: int = Field(default=3, ge=1)


class Code(BaseModel, frozen=True):
    """The checkout that a study was made with."""

    commit: str
    dirty: bool = False


class Origin(BaseModel, frozen=True):
    """Where a study comes from."""

    ringflow: str
    code: Code | None = None
    #: Fingerprints of the data.
    data: tuple[str, ...]
    warm_start: tuple[str, ...] = ()
    places: dict[str, KnownPlace] = {}

    @property
    def version(self) -> str:
        """Of the code, in words."""
        return f"{self.ringflow} ({self.code.commit[:12] if self.code else 'installed'})"


@dataclass(frozen=True)
class StudyFolder:
    """What lies in a study's folder; an error if it is none."""

    path: Path

    def __post_init__(self) -> None:
        if not (self.path / STUDY_FILE).is_file():
            raise InputFileError(f"{self.path} holds no study; give a folder made by `ringflow tune`")
        refuse_ways_out(self.path)  # whose ever it is, it is read, gone on with, and gets a page

    @cached_property
    def settings(self) -> StudySettings:
        """How the study goes."""
        return StudySettings.resolve(self.path / STUDY_FILE)

    @cached_property
    def training(self) -> TrainSettings:
        """What trials train, before the space changes it."""
        return TrainSettings.resolve(self.path / SETTINGS_FILE, complete=False)

    @cached_property
    def space(self) -> Space:
        """What trials differ in."""
        return read_space(self.path / SPACE_FILE)

    @cached_property
    def origin(self) -> Origin:
        """Code, versions and data."""
        try:
            return Origin.model_validate_json((self.path / ORIGIN_FILE).read_bytes())
        except (OSError, ValidationError):
            raise InputFileError(f"{self.path / ORIGIN_FILE} is missing or damaged; put a copy of it back") from None

    @property
    def ladder(self) -> Ladder:
        """The resources at which trials are compared."""
        return Ladder(self.settings.least, self.training.length.events, self.settings.eta)

    @property
    def journal(self) -> Path:
        """File of all that happened."""
        return self.path / JOURNAL_FILE

    def run(self, trial: int) -> Path:
        """Folder of a trial's run."""
        return self.path / TRIALS_FOLDER / f"{trial:04d}"

    def record(self) -> StudyRecord:
        """All that happened until now; others may be writing."""
        record = StudyRecord(self.training.length.events, read_rows(self.journal))
        if wrong := next((trial for trial in record.trials if not self.space.holds(trial.point)), None):
            raise InputFileError(
                f"trial {wrong.number} in {self.journal} is not of {self.path / SPACE_FILE}; put copies of both back"
            )
        return record


def create(
    training: TrainSettings,
    settings: StudySettings,
    space: Path,
    out: Path,
    *,
    warm_start: Sequence[Path] = (),
    overwrite: bool = False,
) -> StudyFolder:
    """Make the folder of a study; one that is there is taken up if it is the same study."""
    _check(training, settings, space)
    earlier_trials(warm_start, read_space(space), settings)  # an error if there is nothing to learn from
    if out.is_dir():
        with claimed(out, "study"):  # before anything in it is touched
            pass
    with prepared(out, marks=(STUDY_FILE,), overwrite=overwrite):
        if (out / STUDY_FILE).is_file():
            found = StudyFolder(out)
            _require_same(found, training, settings, space)
            return found
        write_atomic(out / SPACE_FILE, space.read_bytes())
        write(training, out / SETTINGS_FILE)
        _write_origin(out, _origin(training, out, tuple(str(path.absolute()) for path in warm_start)))
        write(settings, out / STUDY_FILE)  # last: with it the folder is a study
    return StudyFolder(out)


def _check(training: TrainSettings, settings: StudySettings, space: Path) -> None:
    for parameter in read_space(space).parameters:
        for fixed in _FIXED:
            if parameter.name == fixed or parameter.name.startswith(f"{fixed}."):
                raise UsageError(
                    f"{parameter.name} cannot vary within a study; give it on the command line, for all trials"
                )
        if parameter.name.startswith("loss.") and any(name.startswith("loss") for name in settings.objectives):
            raise UsageError(
                f"{parameter.name} changes what the loss means, so it cannot be the objective; use --objective jets"
            )
    if settings.least > training.length.events:
        raise UsageError(
            f"trials of length.events={training.length.events} never come to --least {settings.least}; give less"
        )
    if training.sync != "allreduce":
        raise UsageError(f"a trial cannot be trained with sync={training.sync}; use sync=allreduce")
    from ringflow.train.data import require_data

    require_data(training)


def _require_same(found: StudyFolder, training: TrainSettings, settings: StudySettings, space: Path) -> None:
    places = found.origin.places
    for before, now in ((found.settings, settings), (found.training, training)):
        was, wanted = before.model_dump(mode="json"), now.model_dump(mode="json")
        for name in was:
            if was[name] != wanted[name] and not (name in NAMED and is_same(was[name], wanted[name], places)):
                raise UsageError(
                    f"the study in {found.path} has {name}={was[name]}, not {wanted[name]}; give another --out, or go on with "
                    f"`ringflow tune resume {found.path}`"
                )
    if (found.path / SPACE_FILE).read_bytes() != space.read_bytes():
        raise UsageError(f"the study in {found.path} has another space than {space}; give another --out")


def _origin(training: TrainSettings, folder: Path, warm_start: tuple[str, ...]) -> Origin:
    from ringflow.train.data import fingerprint

    return Origin(
        ringflow=__version__,
        code=Code.model_validate(code) if (code := code_version()) else None,
        data=tuple(fingerprint(training)),
        warm_start=warm_start,
        places=places_of(training, folder, warm_start),
    )


def _write_origin(folder: Path, origin: Origin) -> None:
    write_atomic(folder / ORIGIN_FILE, origin.model_dump_json(indent=1) + "\n")


def settled(folder: StudyFolder, overrides: Sequence[str] = (), *, allow_changes: bool = False) -> StudyFolder:
    """A study whose settings name its data as they are found from here; `overrides` say where they are.

    Refused if they are other data or if this is other code, unless that is allowed: trials would not compare.
    """
    from ringflow.train.data import require_data

    before, training = folder.origin, folder.training
    for word in overrides:
        if (name := word.partition("=")[0].strip()) not in NAMED:
            raise UsageError(
                f"{name} of the study in {folder.path} stays as it is; only {', '.join(NAMED)} may have moved"
            )
    if overrides:
        training = TrainSettings.resolve(folder.path / SETTINGS_FILE, overrides, complete=False)
    training = located(training, folder.path, before.places)
    require_data(training)
    now = _origin(training, folder.path, tuple(find(name, folder.path, before.places) for name in before.warm_start))
    if not allow_changes:
        advice = "its trials would not compare; make a new study, or allow it with --allow-changes"
        if before.data != now.data:
            raise UsageError(f"{training.data} is not what the study in {folder.path} was made with; {advice}")
        if before.version != now.version:
            raise UsageError(
                f"the study in {folder.path} was made with ringflow {before.version}, this is {now.version}; {advice}"
            )
    if training == folder.training and before.warm_start == now.warm_start:
        return folder
    # Trials have the names of their time.
    places = {**before.places, **now.places}
    _write_origin(folder.path, before.model_copy(update={"places": places, "warm_start": now.warm_start}))
    write(training, folder.path / SETTINGS_FILE)
    return StudyFolder(folder.path)


def earlier_trials(studies: Sequence[Path], space: Space, settings: StudySettings) -> list[TrialRecord]:
    """The trials of earlier studies that say something about the objectives in a space, for a search that begins.

    Their numbers are negative, -1 the newest. Those that were stopped are among them, those that never reported are not. An
    error if there is no study, or none of its trials can be used.
    """
    found = [_earlier(path, space, settings.objectives) for path in studies]
    if len(found) > 1 and len(settings.objectives) == 1:
        found = [
            aligned(trials) for trials in found
        ]  # their values may mean different things, but the best is the best
    together = [trial for trials in found for trial in trials]
    return [replace(trial, number=number - len(together)) for number, trial in enumerate(together)]


def _earlier(path: Path, space: Space, objectives: Sequence[str]) -> list[TrialRecord]:
    study = StudyFolder(path)
    made_small = study.settings.objectives[0]

    def value_of(said: Reported, objective: str) -> float | None:
        """NaN if the training diverged; None if it was not measured."""
        measured = objective == made_small or math.isnan(said.value)
        return said.value if measured else said.figures.get(ALIASES.get(objective, objective))

    told = [trial for trial in study.record().trials if trial.reports]
    inside = [trial for trial in told if space.holds(trial.point)]
    found = []
    for trial in inside:
        if None not in (value_of(trial.reports[-1], name) for name in objectives):
            values = [(said, value_of(said, objectives[0])) for said in trial.reports]
            reports = [said._replace(value=value) for said, value in values if value is not None]
            state: State = "complete" if trial.state == "complete" else "stopped"
            found.append(replace(trial, reports=reports, state=state, notes={}))
    left_out = (
        f"{len(told) - len(inside)} of {len(told)} are not of this space, {len(inside) - len(found)} have no "
        f"{' or '.join(objectives)}"
    )
    if not any(is_finite(trial) for trial in found):
        why = left_out if told else "none of its trials reported anything"
        raise UsageError(f"nothing can be learned from {path}: {why}; give a study of the same settings, or none")
    if len(found) < len(told):
        say(f"{path}: {len(found)} trials to learn from; {left_out}")
    return found
