"""The folder of a run, known without torch.

settings.toml        the resolved settings
run.json             where it came from: code, versions, seeds; where its data lie as seen from here
model.safetensors    the best network so far, by its jets in the validation; last.safetensors the newest one
checkpoints/         what an interrupted training goes on from
history.jsonl        one line per report and validation; tensorboard/ the same to look at
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.rundir import SETTINGS_FILE, STUDY_FILE, refuse_ways_out, write_errors
from ringflow.data.manifest import manifest_hash
from ringflow.sim.geometry import split_variation
from ringflow.train.settings import TrainSettings

RUN_FILE, HISTORY_FILE, LAST_MODEL_FILE = "run.json", "history.jsonl", "last.safetensors"
PROFILE_FOLDER, PROFILE_PAGE = "profile", "report.html"
#: Settings that name files and folders: what they stand for counts, not where it lies.
NAMED = ("data", "start", "detector")


class KnownPlace(BaseModel, frozen=True):
    """Where something lies as seen from a run or study, and what is in it."""

    path: str
    sha256: str


Places = Mapping[str, KnownPlace]


def places_of(settings: TrainSettings, folder: Path, others: Iterable[str] = ()) -> dict[str, KnownPlace]:
    """All that settings name on disk, and others, by these names: to be found again when folders were moved."""
    found = {}
    named = (
        *settings.data.split(","),
        settings.start,
        *(split_variation(name)[0] for name in settings.detector.split(",")),
        settings.constants,
        *others,
    )
    for name in filter(None, named):
        if sha256 := _content(path := Path(name.strip())):
            found[name.strip()] = KnownPlace(path=os.path.relpath(path.resolve(), folder.resolve()), sha256=sha256)
    return found


def read_places(path: Path) -> Places:
    """The places in `run.json`, or `origin.json` of a study; none if an earlier version wrote it, or nobody yet."""
    try:
        record = json.loads(path.read_bytes())
        return TypeAdapter(dict[str, KnownPlace]).validate_python(record.get("places", {}))
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def located(settings: TrainSettings, folder: Path, places: Places) -> TrainSettings:
    """Settings whose names hold from here: what is not under its name any more is looked for where it lay as seen from the
    folder. An error if data are at neither place."""
    names = [find(name.strip(), folder, places) for name in settings.data.split(",")]
    for name in names:
        if name in places and not Path(name).exists():
            raise UsageError(
                f"the data of {folder} are neither at {name} nor at {folder / places[name].path}; say with data=FOLDER where "
                "they are now"
            )
    start = settings.start and find(settings.start, folder, places)
    detectors = []
    for name in settings.detector.split(","):
        base, _ = split_variation(name.strip())
        detectors.append(find(base, folder, places) + name.strip().removeprefix(base))
    constants = settings.constants and find(settings.constants, folder, places)
    update = {"data": ",".join(names), "start": start, "detector": ",".join(detectors), "constants": constants}
    return settings.model_copy(update=update)


def find(name: str, folder: Path, places: Places) -> str:
    """The name of something, or where it is now if it was moved together with a folder."""
    known = places.get(name)
    if known is None or _content(Path(name)) == known.sha256:
        return name
    beside = (folder / known.path).resolve()
    return str(beside) if _content(beside) == known.sha256 else name


def is_same(before: object, now: object, places: Places) -> bool:
    """Whether other names stand for what was there before."""
    was, here = ([name.strip() for name in str(names).split(",")] for names in (before, now))
    return len(was) == len(here) and all(
        name in places and _content(Path(other)) == places[name].sha256 for name, other in zip(was, here, strict=True)
    )


def _content(path: Path) -> str | None:
    """A fingerprint of a dataset, of the settings of a study or of a file; None if there is none."""
    try:
        if path.is_dir():
            study = path / STUDY_FILE
            return hashlib.sha256(study.read_bytes()).hexdigest() if study.is_file() else manifest_hash(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def settings_of(folder: Path) -> Path | None:
    """The settings of the run in a folder, if there is one."""
    path = folder / SETTINGS_FILE
    return path if path.is_file() and (folder / RUN_FILE).is_file() else None


def has_checkpoint(folder: Path) -> bool:
    """Whether there is something to go on from."""
    return any((folder / "checkpoints").glob("step-*"))


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's history; one that is being written, or was cut short, is left out."""
    try:
        lines = (folder / HISTORY_FILE).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            if isinstance(record := json.loads(line), dict) and "kind" in record and "step" in record:
                found.append(record)
    return found


@contextmanager
def claimed(folder: Path, what: str = "training") -> Iterator[None]:
    """Two trainings in one folder would spoil each other: an error if another process has it; ours until the end."""
    with write_errors(folder):
        refuse_ways_out(folder)
        lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise FailureError(f"another {what} is running in {folder}; wait for it or choose another folder") from None
    except OSError:
        pass  # a file system without locks: whoever uses it takes care
    try:
        yield
    finally:
        os.close(lock)  # which lets go of the lock, as the death of the process does
