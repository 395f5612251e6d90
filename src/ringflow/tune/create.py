"""Make the folder of a study, and refuse to go on with one that is not what it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringflow import __version__
from ringflow.base.config import write
from ringflow.base.errors import UsageError
from ringflow.base.provenance import code_version
from ringflow.base.rundir import SETTINGS_FILE, prepare, write_atomic
from ringflow.train.data import fingerprint, require_data
from ringflow.train.settings import TrainSettings
from ringflow.tune.folder import ORIGIN_FILE, SPACE_FILE, STUDY_FILE, StudyFolder
from ringflow.tune.settings import StudySettings
from ringflow.tune.space_file import read_space
from ringflow.tune.warm_start import earlier_trials

#: Settings that a space may not vary: they are the same for all trials of a study.
_FIXED = ("data", "seed", "start", "profile", "detector", "sync", "length", "source.lanes", "compute.device")


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
    if (out / STUDY_FILE).is_file() and not overwrite:
        found = StudyFolder(out)
        _require_same(found, training, settings, space)
        return found
    prepare(out, marks=(STUDY_FILE,), overwrite=overwrite)
    shutil.copyfile(space, out / SPACE_FILE)
    write(training, out / SETTINGS_FILE)
    write_atomic(out / ORIGIN_FILE, json.dumps(_origin(training, warm_start), indent=1) + "\n")
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
    require_data(training)


def _require_same(found: StudyFolder, training: TrainSettings, settings: StudySettings, space: Path) -> None:
    pairs = [(found.settings, settings), (found.training, training)]
    for before, now in pairs:
        was, wanted = before.model_dump(mode="json"), now.model_dump(mode="json")
        for name in was:
            if was[name] != wanted[name]:
                raise UsageError(
                    f"the study in {found.path} has {name}={was[name]}, not {wanted[name]}; give another --out, or go on with "
                    f"`ringflow tune resume {found.path}`"
                )
    if (found.path / SPACE_FILE).read_bytes() != space.read_bytes():
        raise UsageError(f"the study in {found.path} has another space than {space}; give another --out")


def _origin(training: TrainSettings, warm_start: Sequence[Path]) -> dict[str, Any]:
    return {
        "ringflow": __version__,
        "code": code_version(),
        "data": fingerprint(training),
        "warm_start": [str(path.absolute()) for path in warm_start],
    }


def require_same_origin(folder: StudyFolder) -> None:
    """Trials of other data or by other code do not compare."""
    now, before = _origin(folder.training, ()), folder.origin
    advice = "its trials would not compare; make a new study, or allow it with --allow-changes"
    if before["data"] != now["data"]:
        raise UsageError(f"the data of the study in {folder.path} are not what they were; {advice}")
    was, here = _version(before), _version(now)
    if was != here:
        raise UsageError(f"the study in {folder.path} was made with ringflow {was}, this is {here}; {advice}")


def _version(origin: dict[str, Any]) -> str:
    code = origin["code"]
    return f"{origin['ringflow']} ({code['commit'][:12] if code else 'installed'})"
