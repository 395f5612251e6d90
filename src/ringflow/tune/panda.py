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
import math
import os
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ringflow.base.config import Settings, dump_toml, override
from ringflow.base.errors import FailureError, InputFileError, RingflowError, SettingsError, UsageError
from ringflow.base.log import speaks
from ringflow.base.rundir import SETTINGS_FILE, write_atomic, write_errors
from ringflow.tune.schedulers import Point
from ringflow.tune.search import Finished, Search
from ringflow.tune.space import Choice, Parameter, Space, parse_space, same

#: Methods of a space, and what their dimension must hold; then what others also write, and what changes nothing for us.
METHODS = {
    "categorical": ("categories",),
    "uniform": ("low", "high"),
    "uniformint": ("low", "high"),
    "loguniform": ("low", "high"),
    "quniform": ("low", "high", "q"),
    "qloguniform": ("low", "high", "q"),
}
_PASSED_OVER = {"grid_search", "base"}
#: Unless told otherwise, losses from here on stand for points that were given up after three tries.
GIVEN_UP = 1e5
#: What stands for the loss of a point that could not be trained.
NO_LOSS = 1e30
_MANIFEST_FILE = "manifest.json"
_DATASETS_FOLDER, _HOME_FOLDER = "datasets", ".home"
#: Where libraries put what they compiled, unless told otherwise below HOME, which may not be writable.
_CACHES = ("MPLCONFIGDIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_METRICS = (SETTINGS_FILE, "run.json", "history.jsonl")


def from_panda(words: object, where: str = "opt_space") -> Space:
    """The space that such a table describes, checked as `space.toml` is; `where` begins every error."""
    if not isinstance(words, Mapping) or not words:
        raise SettingsError(
            f'{where} names no settings; write {{"optimizer.rate": {{"method": ..., "dimension": ...}}}}'
        )
    try:
        text = dump_toml({name: _table(name, entry) for name, entry in words.items()})
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None
    return parse_space(text, where=where)


def _table(name: str, entry: object) -> dict[str, Any]:
    """One parameter as `space.toml` has it."""
    if not isinstance(entry, Mapping):
        raise SettingsError(f'{name} = {entry!r} is no parameter; write {{"method": ..., "dimension": ...}}')
    method, dimension, when = entry.get("method"), entry.get("dimension"), entry.get("when")
    if not isinstance(method, str) or method not in METHODS:
        raise SettingsError(f"{name} has the unknown method {method!r}; choose from {', '.join(METHODS)}")
    holds = ", ".join(METHODS[method])
    if strange := entry.keys() - {"method", "dimension", "when"}:
        raise SettingsError(f"{name}: {min(strange)!r} means nothing; there are method, dimension and when")
    if not isinstance(dimension, Mapping):
        raise SettingsError(f"{name}: dimension = {dimension!r} must hold {holds}")
    if missing := [key for key in METHODS[method] if key not in dimension]:
        raise SettingsError(f"{name}: the dimension of {method!r} needs {missing[0]!r}")
    if strange := dimension.keys() - {*METHODS[method], *_PASSED_OVER}:
        raise SettingsError(f"{name}: {min(strange)!r} means nothing for {method!r}, which has {holds}")
    table = _choice(name, dimension["categories"]) if method == "categorical" else _range(name, method, dimension)
    if when is not None:
        if not isinstance(when, Mapping):
            raise SettingsError(f'{name}: when = {when!r} must be a table, as in {{"model.backbone": ["graph"]}}')
        for value in when.values():
            _require_plain(name, value)
        table["when"] = dict(when)
    return table


def _choice(name: str, categories: object) -> dict[str, Any]:
    if not isinstance(categories, list):
        raise SettingsError(f"{name}: categories = {categories!r} must be a list of values")
    values: list[Any] = []
    for value in categories:
        _require_plain(name, value)
        if not any(same(value, other) for other in values):  # twice the same: others mean by it that it is likelier
            values.append(value)
    return {"type": "choice", "values": values}


def _range(name: str, method: str, dimension: Mapping[str, Any]) -> dict[str, Any]:
    low, high, q = (dimension.get(key, 1) for key in ("low", "high", "q"))
    for key, number in (("low", low), ("high", high), ("q", q)):
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise SettingsError(f"{name}: {key} = {number!r} is not a number")
    table: dict[str, Any] = {"type": "int" if method == "uniformint" else "float", "low": low, "high": high}
    if "q" in METHODS[method]:
        if q <= 0:
            raise SettingsError(f"{name}: q = {q!r} must be more than 0")
        first, last = math.ceil(low / q - 1e-9), math.floor(high / q + 1e-9)
        if first > last:
            raise SettingsError(f"{name}: no multiple of q = {q!r} is between {low!r} and {high!r}")
        ends = {"low": first * q, "high": last * q, "step": q}
        whole = all(float(number).is_integer() for number in ends.values())
        table |= {key: round(number) if whole else float(f"{number:.12g}") for key, number in ends.items()}
        if "log" in method and not (whole and q == 1):
            raise SettingsError(f"{name}: a logarithmic range takes q = 1 only, not {q!r}; write 'loguniform'")
        if whole:
            table["type"] = "int"
            if table["step"] == 1:
                del table["step"]
    return table | ({"log": True} if "log" in method else {})


def _require_plain(name: str, value: object) -> None:
    if isinstance(value, list):
        for part in value:
            _require_plain(name, part)
    elif not isinstance(value, bool | int | float | str):
        raise SettingsError(f"{name}: {value!r} is no value of a setting; give a number, a text, true or false")


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


class Asked(NamedTuple):
    """What steering is given: points with their losses, None while there is none, and the space if iDDS was told one."""

    points: Sequence[tuple[Point, float | None]]
    opt_space: object = None


def read_asked(path: Path) -> Asked:
    """The points so far; none if the file is missing or empty, as before the first question."""
    words = _read_json(path, optional=True)
    if words is None:
        return Asked([])
    if not isinstance(words, Mapping) or not isinstance(words.get("points", []), list):
        raise UsageError(
            f'{path} is not what iDDS writes; give {{"points": [[{{...}}, loss], ...], "opt_space": {{...}}}}'
        )
    points = []
    for number, entry in enumerate(words.get("points", [])):
        if not isinstance(entry, list) or len(entry) != 2:
            raise UsageError(f"{path}: point {number} must be [settings, loss], not {_short(entry)}")
        point, loss = entry
        if isinstance(point, list):
            raise UsageError(
                f"{path}: point {number} belongs to a segmented task; submit a task for every segment instead"
            )
        if not isinstance(point, dict):
            raise UsageError(
                f"{path}: the settings of point {number} must be a table of names and values, not {_short(point)}"
            )
        if loss is not None and (isinstance(loss, bool) or not isinstance(loss, int | float)):
            raise UsageError(f"{path}: the loss of point {number} must be a number or null, not {_short(loss)}")
        points.append((point, loss))
    return Asked(points, words.get("opt_space"))


def space_of(asked: Asked, space: Space | None, where: Path) -> Space:
    """The space that was given, or else the one that iDDS was told."""
    if space is not None:
        return space
    if asked.opt_space is None:
        raise UsageError(f"{where} holds no opt_space; give --space, or phpo --searchSpaceFile")
    return from_panda(asked.opt_space, f"opt_space of {where}")


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
    known = []
    for number, (point, loss) in enumerate(asked.points):
        if not space.holds(point):
            raise UsageError(f"point {number} is not of the space: {_why_not(point, space)}")
        value = math.nan if loss is not None and not loss < given_up else loss
        known.append(Finished(number, point, value, complete=loss is not None))
    chooser = Search(search, space, settings, seed=seed)
    new: list[Point] = []
    while len(new) < num_points and len(known) < max_points:
        chosen = chooser.ask(len(known), known)
        if chosen is None:
            break
        new.append(chosen)
        known.append(Finished(len(known), chosen, None))  # nobody is sent where somebody is
    return new


def _why_not(point: Point, space: Space) -> str:
    """The first thing that is wrong with a point."""
    named = {parameter.name: parameter for parameter in space.parameters}
    for name, value in point.items():
        if name not in named:
            return f"there is no {name} in it; there are {', '.join(named)}"
        if not named[name].holds(value):
            return f"{name} = {_short(value)} is none of its values"
    wanted = space.build(lambda parameter: point.get(parameter.name))
    if missing := sorted(wanted.keys() - point.keys()):
        return f"it has no {missing[0]}"
    return f"{min(point.keys() - wanted.keys())} has no meaning with the others"


def write_points(path: Path, points: Sequence[Point]) -> None:
    """Write points so that a reader finds all of them or none."""
    write_atomic(path, json.dumps([dict(point) for point in points], allow_nan=False) + "\n")


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
    from ringflow.tune.objective import extras_of, measure_extras, values_of

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
    look = _Look(objective).ask if settings.sync == "allreduce" else None
    result = train(settings, run, overwrite=is_of_another(run, point), pace=look)
    if metrics is not None and speaks():
        with write_errors(metrics), tarfile.open(metrics, "w:gz") as packed:
            for file in (run / name for name in _METRICS):
                if file.is_file():
                    packed.add(file, f"{run.name}/{file.name}")
    figures = {**result["best"], **measure_extras(extras_of([objective]), run)}
    return values_of(figures, [objective])[0]


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
    names = _read_json(path, optional=True)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path} must hold a list of file names, not {_short(names)}")
    found: dict[str, None] = {}
    for name in names:
        file = path.parent / name
        if file.name == _MANIFEST_FILE:
            found[str(file.parent)] = None
        elif ".tar" in file.suffixes or file.suffix == ".tgz":
            place = _unpacked(file, folder / _DATASETS_FOLDER)
            found.update({str(manifest.parent): None for manifest in sorted(place.rglob(_MANIFEST_FILE))})
    if not found:
        raise UsageError(f"{path} names no dataset: neither a {_MANIFEST_FILE} nor a tar archive with one in it")
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
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {' '.join(str(error).split())}") from None


def _short(value: object) -> str:
    """What somebody gave, in a few words."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
