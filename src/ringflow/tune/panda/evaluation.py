"""The evaluating end of a search that PanDA and iDDS run: one point in, its loss out, a training in the working folder between.

    input.json      {"optimizer.rate": 0.002, ...}
    input_ds.json   ["ttbar.tar", ...], if PanDA brought training data
    output.json     {"status": 0, "loss": 2.31, "message": "..."}

There is always an `output.json`, also when nothing came of the training. A retry finds the checkpoints of the try before it.
"""

from __future__ import annotations

import json
import math
import os
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringflow.base.config import override
from ringflow.base.errors import FailureError, InputFileError, RingflowError, UsageError
from ringflow.base.log import speaks
from ringflow.base.rundir import SETTINGS_FILE, write_atomic, write_errors
from ringflow.tune.panda.steering import read_json, short
from ringflow.tune.schedulers import Point

#: What stands for the loss of a point that could not be trained.
NO_LOSS = 1e30
MANIFEST_FILE = "manifest.json"
DATASETS_FOLDER, HOME_FOLDER = "datasets", ".home"
#: Where libraries put what they compiled, unless told otherwise below HOME, which may not be writable.
_CACHES = ("MPLCONFIGDIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_METRICS = (SETTINGS_FILE, "run.json", "history.jsonl")


@dataclass(frozen=True)
class Evaluation:
    """A training that PanDA asks for."""

    preset: str | None
    overrides: Sequence[str]
    in_file: Path
    datasets_file: Path
    #: What is made small, see `objective`.
    objective: str
    #: Folder of the run.
    run: Path
    #: Archive for the history of the training, if wanted.
    metrics: Path | None = None

    def loss(self) -> float:
        """Train with the point of the input file; the objective of the network that the run keeps, its best one."""
        from ringflow.train.run import train
        from ringflow.train.settings import TrainSettings
        from ringflow.tune.objective import extras_of, measure_extras, values_of

        point = read_settings(self.in_file)
        words = [*self.overrides, *self._data(), *words_of(point)]
        settings = TrainSettings.resolve(self.preset, words)
        look = _Look(self.objective) if settings.sync == "allreduce" else None
        result = train(settings, self.run, overwrite=is_of_another(self.run, point), pace=look)
        if self.metrics is not None and speaks():
            _pack(self.run, self.metrics)
        figures = {**result["best"], **measure_extras(extras_of([self.objective]), self.run)}
        return values_of(figures, [self.objective])[0]

    def _data(self) -> list[str]:
        """The training data that PanDA brought, unless others were asked for."""
        if any(word.partition("=")[0].strip() == "data" for word in self.overrides):
            return []
        data = read_datasets(self.datasets_file, Path())
        return [] if data is None else [override("data", data)]


class _Look:
    """Looks at the first validation whether it measures the objective, so that this is not found out at the end."""

    def __init__(self, objective: str) -> None:
        self._objective = objective

    def ask(self, events: int, figures: Mapping[str, float | None]) -> int:
        """All events of the training."""
        from ringflow.tune.objective import EXTRAS, values_of

        if figures and self._objective not in EXTRAS:
            values_of(figures, [self._objective])
        return 2**62


def evaluated(out_file: Path, loss_of: Callable[[], float]) -> float:
    """Write what a training came to, whatever it is.

    First the worst is written: who is killed, for example for want of memory, has no last word.
    """
    _tell(out_file, 1, NO_LOSS, "it ended without a word: killed, perhaps for want of memory")
    try:
        loss = loss_of()
        if not math.isfinite(loss):
            raise FailureError(f"the training ended with an objective of {loss}; try other settings")
    except RingflowError as error:
        _tell(out_file, error.exit_code, NO_LOSS, str(error))
        raise
    except BaseException as error:
        _tell(out_file, 1, NO_LOSS, f"{type(error).__name__}: {error}")
        raise
    _tell(out_file, 0, loss, "trained to the end")
    return loss


def _tell(path: Path, status: int, loss: float, message: str) -> None:
    if speaks():
        words = {"status": status, "loss": loss, "message": " ".join(message.split())}
        write_atomic(path, json.dumps(words, allow_nan=False) + "\n")


def read_settings(path: Path) -> Point:
    """The point that is to be evaluated."""
    words = read_json(path)
    if not isinstance(words, dict):
        raise UsageError(f"{path} must hold one table of settings and values, not {short(words)}")
    return words


def words_of(point: Point) -> list[str]:
    """A point as words of a command line."""
    for name, value in point.items():
        parts = value if isinstance(value, list) else [value]
        if strange := [part for part in parts if not isinstance(part, bool | int | float | str)]:
            raise UsageError(
                f"{name}: {short(strange[0])} is no value of a setting; give a number, a text, true or false"
            )
    return [override(name, value) for name, value in point.items()]


def is_of_another(run: Path, point: Point) -> bool:
    """Whether a folder holds the training of another point: PanDA evaluates several in one working folder."""
    from ringflow.train.runs import settings_of
    from ringflow.train.settings import TrainSettings

    path = settings_of(run)
    if path is None:
        return False
    before = TrainSettings.resolve(path, complete=False).model_dump(mode="json")
    return any(_value(before, name) != value for name, value in point.items())


def _value(settings: Any, name: str) -> object:
    for part in name.split("."):
        settings = settings.get(part) if isinstance(settings, Mapping) else None
    return settings


def read_datasets(path: Path, folder: Path) -> str | None:
    """What `data=` is to be, by the list of files that PanDA brought; None if there is no list.

    A dataset comes as its files or as a tar archive, which is unpacked below the folder, once.
    """
    names = read_json(path, missing=None)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path} must hold a list of file names, not {short(names)}")
    found: dict[str, None] = {}
    for name in names:
        file = path.parent / name
        if file.name == MANIFEST_FILE:
            found[str(file.parent)] = None
        elif ".tar" in file.suffixes or file.suffix == ".tgz":
            place = _unpacked(file, folder / DATASETS_FOLDER)
            found.update({str(manifest.parent): None for manifest in sorted(place.rglob(MANIFEST_FILE))})
    if not found:
        raise UsageError(f"{path} names no dataset: neither a {MANIFEST_FILE} nor a tar archive with one in it")
    return ",".join(found)


def _unpacked(archive: Path, folder: Path) -> Path:
    place = folder / archive.name.split(".tar")[0].removesuffix(".tgz")
    if place.is_dir():  # an earlier try did it
        return place
    if not archive.is_file():
        raise InputFileError(f"{archive} is not there, although PanDA was to bring it")
    half = place.with_name(f".{place.name}.part")
    try:
        with write_errors(place), tarfile.open(archive) as packed:
            half.mkdir(parents=True, exist_ok=True)
            packed.extractall(half, filter="data")
            half.replace(place)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise InputFileError(f"{archive} cannot be unpacked: {error}; it did not arrive whole") from None
    return place


def _pack(run: Path, archive: Path) -> None:
    """What tells how a training went, for PanDA to keep."""
    with write_errors(archive), tarfile.open(archive, "w:gz") as packed:
        for name in _METRICS:
            if (run / name).is_file():
                packed.add(run / name, f"{run.name}/{name}")


def stay_in(folder: Path) -> None:
    """Let libraries write below a folder if HOME is not writable, as in a read-only image; before they are imported."""
    if os.access(os.environ.get("HOME", ""), os.W_OK | os.X_OK):
        return
    place = folder.absolute() / HOME_FOLDER
    with write_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    os.environ["HOME"] = str(place)
    for name in _CACHES:
        os.environ.setdefault(name, str(place / name.lower()))
