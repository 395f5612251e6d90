"""The two ends of a search that PanDA and iDDS run (`phpo`), and its spaces.

Steering: all points so far and their losses in, new points out; an empty list ends the search. Nothing is remembered between
two calls but what iDDS writes, and nobody is asked over a network.

    in.json         {"points": [[{"optimizer.rate": 0.002}, 2.31], [{"optimizer.rate": 0.004}, null]], "opt_space": {...}}
    out.json        [{"optimizer.rate": 0.003}, ...]

Evaluation: one point in, its loss out, a training in the working folder between. There is always an `output.json`, also when
nothing came of the training. A retry finds the checkpoints of the try before it.

    input.json      {"optimizer.rate": 0.002, ...}
    input_ds.json   ["ttbar.tar", ...], if PanDA brought training data
    output.json     {"status": 0, "loss": 2.31, "message": "..."}

Spaces, in both directions. Names are those of `ringflow train NAME=VALUE`. `when` is ours: others who read such a file pass
over it. Both ends of a range are included. Rounded methods (`quniform`, `qloguniform`) have the multiples of `q` in it.

    {"optimizer.rate": {"method": "loguniform", "dimension": {"low": 1e-4, "high": 1e-2}},
     "model.width": {"method": "quniform", "dimension": {"low": 64, "high": 256, "q": 16}},
     "model.backbone": {"method": "categorical", "dimension": {"categories": ["attention", "graph"]}},
     "model.graph.bin_size": {"method": "uniformint", "dimension": {"low": 32, "high": 256},
                              "when": {"model.backbone": ["graph"]}}}
"""

from __future__ import annotations

import json
import lzma
import math
import os
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import BaseModel, Field, StrictInt

from ringflow.base.config import Settings, override
from ringflow.base.errors import FailureError, InputFileError, RingflowError, SettingsError, UsageError
from ringflow.base.log import speaks
from ringflow.base.rundir import SETTINGS_FILE, write_atomic, write_errors
from ringflow.base.words import flat
from ringflow.data.manifest import MANIFEST_FILE
from ringflow.train.runs import HISTORY_FILE, RUN_FILE, settings_of
from ringflow.tune.record import Reported, TrialRecord
from ringflow.tune.schedulers import Point
from ringflow.tune.search import Search
from ringflow.tune.space import LARGEST, Choice, Parameter, Space, parse_space, same, shortened

M = TypeVar("M", bound=BaseModel)
Number = Annotated[StrictInt | Annotated[float, Field(strict=True)], Field(ge=-LARGEST, le=LARGEST)]

#: Unless told otherwise, losses from here on stand for points that were given up after three tries.
GIVEN_UP = 1e5
#: What stands for the loss of a point that could not be trained.
NO_LOSS = 1e30
_DATASETS_FOLDER, _HOME_FOLDER = "datasets", ".home"
#: Where libraries put what they compiled, unless told otherwise below HOME, which may not be writable.
_CACHES = ("MPLCONFIGDIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_METRICS = (SETTINGS_FILE, RUN_FILE, HISTORY_FILE)


#: Methods of a space, and what their dimension must hold; then what others also write, and what changes nothing for us.
METHODS = {
    "categorical": {"categories"},
    "uniform": {"low", "high"},
    "uniformint": {"low", "high"},
    "loguniform": {"low", "high"},
    "quniform": {"low", "high", "q"},
    "qloguniform": {"low", "high", "q"},
}
_PASSED_OVER = {"grid_search", "base"}


class _Dimension(BaseModel, extra="allow"):
    categories: list[Any] = []
    low: Number = 0
    high: Number = 0
    q: Annotated[Number, Field(gt=1.0 / LARGEST)] = 1


class _Entry(BaseModel, extra="forbid"):
    """A parameter of a space as PanDA has it."""

    method: Literal["categorical", "uniform", "uniformint", "loguniform", "quniform", "qloguniform"]
    dimension: _Dimension
    when: dict[str, Any] = {}


class Asked(BaseModel):
    """What steering is given: points with their losses, None while there is none, and the space if iDDS was told one."""

    points: list[tuple[dict[str, Any], StrictInt | Annotated[float, Field(strict=True)] | None]] = []
    opt_space: Any = None


def _checked(model: type[M], words: object, where: str) -> M:
    try:
        return model.model_validate(words)
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        at = ".".join(map(str, problem["loc"]))
        raise SettingsError(
            f"{where}: {shortened(at) + ': ' if at else ''}{problem['msg']}, not {_short(problem['input'])}"
        ) from None


def from_panda(words: object, where: str = "opt_space") -> Space:
    """The space that such a table describes, checked as `space.toml` is; `where` begins every error."""
    if not isinstance(words, Mapping) or not words:
        raise SettingsError(
            f'{where} names no settings; write {{"optimizer.rate": {{"method": ..., "dimension": ...}}}}'
        )
    return parse_space({name: _table(f"{where}: {name}", entry) for name, entry in words.items()}, where=where)


def _table(where: str, words: object) -> dict[str, Any]:
    """One parameter as `space.toml` has it."""
    entry = _checked(_Entry, words, where)
    method, dimension = entry.method, entry.dimension
    if dimension.model_fields_set - _PASSED_OVER != METHODS[method]:
        wanted, found = (", ".join(sorted(names)) for names in (METHODS[method], dimension.model_fields_set))
        raise SettingsError(f"{where}: the dimension of {method!r} holds {wanted}, not {found or 'nothing'}")
    table: dict[str, Any] = {"when": entry.when} if entry.when else {}
    _require_plain(where, [*entry.when.values(), *dimension.categories])
    if method == "categorical":
        values: list[Any] = []
        for value in dimension.categories:
            if not any(same(value, other) for other in values):  # twice the same: others mean by it that it is likelier
                values.append(value)
        return {"type": "choice", "values": values, **table}
    low, high, q, log = dimension.low, dimension.high, dimension.q, "log" in method
    table |= {"type": "int" if method == "uniformint" else "float", "low": low, "high": high, "log": log}
    if "q" in METHODS[method]:
        first, last = math.ceil(low / q - 1e-9), math.floor(high / q + 1e-9)
        if first > last:
            raise SettingsError(f"{where}: no multiple of q = {q!r} is between {low!r} and {high!r}")
        ends = {"low": first * q, "high": last * q, "step": q}
        whole = all(float(number).is_integer() for number in ends.values())
        if log and not (whole and q == 1):
            raise SettingsError(f"{where}: a logarithmic range takes q = 1 only, not {q!r}; write 'loguniform'")
        table |= {key: round(number) if whole else float(f"{number:.12g}") for key, number in ends.items()}
        if whole:
            table["type"] = "int"
            if q == 1:
                del table["step"]
    return table


def _require_plain(where: str, value: object) -> None:
    if isinstance(value, list):
        for part in value:
            _require_plain(where, part)
    elif not isinstance(value, bool | int | float | str):
        raise SettingsError(f"{where}: {value!r} is no value of a setting; give a number, a text, true or false")


def to_panda(space: Space) -> dict[str, dict[str, Any]]:
    """A space as a table that is ready for JSON."""
    found = {}
    for parameter in space.parameters:
        found[parameter.name] = _entry(parameter)
        if parameter.when:
            found[parameter.name]["when"] = {name: list(values) for name, values in parameter.when.items()}
    return found


def _entry(parameter: Parameter) -> dict[str, Any]:
    if not isinstance(parameter, Choice):
        ends, q = {"low": parameter.low, "high": parameter.high}, parameter.step or 1
        if parameter.step is None and not parameter.whole:
            return {"method": "loguniform" if parameter.log else "uniform", "dimension": ends}
        if q == 1 and parameter.whole and not parameter.log:
            return {"method": "uniformint", "dimension": ends}
        if math.isclose(parameter.low / q, round(parameter.low / q), abs_tol=1e-9):
            return {"method": "qloguniform" if parameter.log else "quniform", "dimension": {**ends, "q": q}}
        # Its values are no multiples of the step, and there is no word for that.
    categories = [list(value) if isinstance(value, tuple) else value for value in parameter.values(None)]
    return {"method": "categorical", "dimension": {"categories": categories, "grid_search": 0}}


def read_asked(path: Path) -> Asked:
    """The points so far; none if the file is missing or empty, as before the first question."""
    words = _read_json(path, optional=True)
    points = words.get("points") if isinstance(words, dict) else None
    for number, entry in enumerate(points if isinstance(points, list) else []):
        if isinstance(entry, list) and entry and isinstance(entry[0], list):
            raise UsageError(
                f"{path}: point {number} belongs to a segmented task; submit a task for every segment instead"
            )
    return _checked(Asked, {} if words is None else words, f"{path} is not what iDDS writes")


def space_of(asked: Asked, space: Space | None, where: Path) -> Space:
    """The space that was given, or else the one that iDDS was told."""
    if space is None and asked.opt_space is None:
        raise UsageError(f"{where} holds no opt_space; give --space, or phpo --searchSpaceFile")
    return space or from_panda(asked.opt_space, f"opt_space of {where}")


def steer(
    asked: Asked,
    space: Space,
    settings: Settings,
    *,
    max_points: int,
    num_points: int,
    search: str = "tpe",
    seed: int = 1,
    given_up: float = GIVEN_UP,
) -> list[Point]:
    """New points, at most so many, and in all not more than the most; none when there is nothing left to try."""
    known: list[TrialRecord] = []
    named = {parameter.name: parameter for parameter in space.parameters}
    for number, (point, loss) in enumerate(asked.points):
        if not space.holds(point):
            wrong = {n: v for n, v in point.items() if n not in named or not named[n].holds(v)} or point
            raise UsageError(f"point {number} is not of the space: {_short(wrong)}; there are {', '.join(named)}")
        known.append(TrialRecord(number, point, state="running"))
        if loss is not None:
            value = loss if loss < given_up else math.nan
            known[-1].state, known[-1].reports = "complete", [Reported(1, value, {}, 1, 0.0, "stop")]
    chooser = Search(search, space, settings, seed=seed)
    new: list[Point] = []
    while len(new) < num_points and len(known) < max_points:
        chosen = chooser.ask(len(known), known)
        if chosen is None:
            break
        new.append(chosen)
        known.append(TrialRecord(len(known), chosen, state="running"))  # nobody is sent where somebody is
    return new


def train_point(
    preset: str | None,
    overrides: Sequence[str],
    *,
    in_file: Path,
    datasets_file: Path,
    objective: str,
    run: Path,
    metrics: Path | None = None,
) -> float:
    """Train with the point of the input file; the objective of the network that the run keeps, its best one.

    `metrics` is an archive for the history of the training, if wanted.
    """
    from ringflow.train.run import train
    from ringflow.train.settings import TrainSettings
    from ringflow.tune.record import EXTRAS, extras_of, measure_extras, values_of

    point = _read_json(in_file)
    if not isinstance(point, dict):
        raise UsageError(f"{in_file} must hold one table of settings and values, not {_short(point)}")
    brought = None
    if not any(word.partition("=")[0].strip() == "data" for word in overrides):
        brought = read_datasets(datasets_file, Path())
    for name, value in point.items():
        _require_plain(name, value)
    words = [*overrides, *([] if brought is None else [override("data", brought)])]
    words += [override(name, value) for name, value in point.items()]
    settings = TrainSettings.resolve(preset, words)

    def look(events: int, figures: Mapping[str, float | None]) -> int:
        """Whether the first validation measures the objective, so that this is not found out at the end; all events."""
        if figures and objective not in EXTRAS:
            values_of(figures, [objective])
        return 2**62

    result = train(
        settings, run, overwrite=is_of_another(run, point), pace=look if settings.sync == "allreduce" else None
    )
    if metrics is not None and speaks():
        with write_errors(metrics), tarfile.open(metrics, "w:gz") as packed:
            for file in (run / name for name in _METRICS):
                if file.is_file():
                    packed.add(file, f"{run.name}/{file.name}")
    figures = {**result["best"], **measure_extras(extras_of([objective]), run)}
    return values_of(figures, [objective])[0]


def evaluated(out_file: Path, loss_of: Callable[[], float]) -> float:
    """Write what a training came to, whatever it is.

    First the worst is written: who is killed, for example for want of memory, has no last word.
    """

    def tell(status: int, loss: float, message: str) -> None:
        if speaks():
            words = {"status": status, "loss": loss, "message": " ".join(message.split())}
            write_atomic(out_file, json.dumps(words, allow_nan=False) + "\n")

    tell(1, NO_LOSS, "it ended without a word: killed, perhaps for want of memory")
    try:
        loss = loss_of()
        if not math.isfinite(loss):
            raise FailureError(f"the training ended with an objective of {loss}; try other settings")
    except RingflowError as error:
        tell(error.exit_code, NO_LOSS, str(error))
        raise
    except BaseException as error:
        tell(1, NO_LOSS, f"{type(error).__name__}: {error}")
        raise
    tell(0, loss, "trained to the end")
    return loss


def is_of_another(run: Path, point: Point) -> bool:
    """Whether a folder holds the training of another point: PanDA evaluates several in one working folder."""
    from ringflow.train.settings import TrainSettings

    path = settings_of(run)
    if path is None:
        return False
    before = dict(flat(TrainSettings.resolve(path, complete=False).model_dump(mode="json")))
    return any(before.get(name) != value for name, value in point.items())


def read_datasets(path: Path, folder: Path) -> str | None:
    """What `data=` is to be, by the list of files that PanDA brought; None if there is no list.

    A dataset comes as its files or as a tar archive, which is unpacked below the folder, once.
    """
    names = _read_json(path, optional=True)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path} must hold a list of file names, not {_short(names)}")
    found: dict[str, None] = {}
    for name in names:
        file = path.parent / name
        if file.name == MANIFEST_FILE:
            found[str(file.parent)] = None
        elif ".tar" in file.suffixes or file.suffix == ".tgz":
            place = _unpacked(file, folder / _DATASETS_FOLDER)
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
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError) as error:
        raise InputFileError(f"{archive} cannot be unpacked: {error}; it did not arrive whole") from None
    return place


def stay_in(folder: Path) -> None:
    """Let libraries write below a folder if HOME is not writable, as in a read-only image; before they are imported."""
    if os.access(os.environ.get("HOME", ""), os.W_OK | os.X_OK):
        return
    place = folder.absolute() / _HOME_FOLDER
    with write_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    os.environ["HOME"] = str(place)
    for name in _CACHES:
        os.environ.setdefault(name, str(place / name.lower()))


def _read_json(path: Path, *, optional: bool = False) -> Any:
    """What a file holds; None for one that may be missing or empty, and is."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() or not optional else ""
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; it holds the settings to try, as PanDA writes them") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if optional and not text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {' '.join(str(error).split())}") from None


def _short(value: object) -> str:
    """What somebody gave, in a few words."""
    return shortened(repr(value), 60)
