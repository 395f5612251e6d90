"""Reading `space.toml`: every parameter is checked against the settings before anything is tried.

    ["optimizer.rate"]
    type = "float"
    low = 1e-4
    high = 1e-2
    log = true

    ["model.width"]
    type = "int"
    low = 64
    high = 256
    step = 16

    ["model.backbone"]
    type = "choice"
    values = ["attention", "graph"]

    ["model.graph.bin_size"]
    type = "int"
    low = 32
    high = 256
    log = true
    when = { "model.backbone" = "graph" }       # or a list of values; several names must all hold

Names may be written without quotes, too.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from ringflow.base.config import Settings
from ringflow.base.errors import SettingsError
from ringflow.tune.parameter import Choice, Condition, Parameter, Range, same
from ringflow.tune.space import Space, refusals

_SHIPPED = Path(__file__).parent / "spaces"
_KEYS = {
    "float": ("low", "high", "log", "step", "when"),
    "int": ("low", "high", "log", "step", "when"),
    "choice": ("values", "when"),
}


def space_path(space: str) -> Path:
    """Where a space is: a TOML file, or one that comes with the package, by its name."""
    path, shipped = Path(space), sorted(_SHIPPED.glob("*.toml"))
    if not path.exists():
        path = next((found for found in shipped if found.stem == space), path)
    if not path.is_file():
        known = ", ".join(found.stem for found in shipped)
        raise SettingsError(f"no space {space!r}; give a TOML file, or one of those that are shipped ({known})")
    return path


def read_space(path: Path, model: type[Settings] | None = None) -> Space:
    """The space that a file describes, checked against the settings of a training unless others are given."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: not a TOML file: it is no text") from None
    return parse_space(text, model, str(path))


def parse_space(text: str, model: type[Settings] | None = None, where: str = "space") -> Space:
    """The space that a text describes; `where` begins every error."""
    if model is None:
        from ringflow.train.settings import TrainSettings

        model = TrainSettings
    try:
        tables = list(_tables(tomllib.loads(text)))
        return Space([_parameter(model, name, table) for name, table in tables])
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{where}: not a TOML file: {' '.join(str(error).split())}") from None
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None


def _tables(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Parameters by their full name, whether they were written as one quoted name or as a table in a table."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if not isinstance(value, Mapping):
            raise SettingsError(
                f'{name} = {value!r} is no parameter; write ["{name}"] and its type on lines of their own'
            )
        if value and all(isinstance(inner, Mapping) for inner in value.values()):
            yield from _tables(value, f"{name}.")
        else:
            yield name, value


def _parameter(model: type[Settings], name: str, table: Mapping[str, Any]) -> Parameter:
    fields = dict(_fields(model))
    if name not in fields:
        raise SettingsError(_unknown(name, fields))
    kind = table.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        said = "has no type" if kind is None else f"has the unknown type {kind!r}"
        raise SettingsError(f"{name} {said}; write type = {_one_of(_KEYS)}")
    for key in table.keys() - {"type", *_KEYS[kind]}:
        raise SettingsError(f"{name}: {key!r} means nothing for type {kind!r}; there are {', '.join(_KEYS[kind])}")
    when = _condition(name, table.get("when", {}))
    if kind == "choice":
        parameter: Parameter = Choice(name, _options(name, table), when)
        extremes: Sequence[object] = parameter.values(None)
    else:
        _check_kind(name, kind, fields[name])
        parameter = _range(name, kind, table, when)
        extremes = parameter.values(2)
    for value in extremes:
        _check_value(model, name, value)
    return parameter


def _range(name: str, kind: str, table: Mapping[str, Any], when: Condition) -> Range:
    low, high = (_number(name, key, kind, table) for key in ("low", "high"))
    step = _number(name, "step", kind, table) if "step" in table else None
    log = table.get("log", False)
    if not isinstance(log, bool):
        raise SettingsError(f"{name}: log = {log!r} must be true or false")
    if low == high:
        raise SettingsError(
            f"{name}: low and high are both {low}, which leaves nothing to search; set {name}={low} instead"
        )
    if low > high:
        raise SettingsError(f"{name}: low {low} is above high {high}; swap them")
    if log and low <= 0:
        raise SettingsError(f"{name}: low {low} has no logarithm; give a low above 0, or log = false")
    if step is not None and log:
        raise SettingsError(f"{name}: log and step exclude each other; remove one")
    if step is not None and not 0 < step <= high - low:
        raise SettingsError(f"{name}: step {step} must be above 0 and at most high - low = {high - low}")
    return Range(name, low, high, kind == "int", log, step, when)


def _number(name: str, key: str, kind: str, table: Mapping[str, Any]) -> float | int:
    value = table.get(key)
    if value is None:
        raise SettingsError(f"{name} has no {key}; a parameter of type {kind!r} needs low and high")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingsError(f"{name}: {key} = {value!r} must be a finite number")
    if kind == "int" and not isinstance(value, int):
        raise SettingsError(f"{name}: {key} = {value!r} must be a whole number, as its type is 'int'")
    return value


def _options(name: str, table: Mapping[str, Any]) -> tuple[object, ...]:
    values = table.get("values")
    if not isinstance(values, list) or not values:
        raise SettingsError(f"{name}: a choice needs values = [...] with at least one value")
    for index, value in enumerate(values):
        _check_plain(name, value)
        if any(same(value, earlier) for earlier in values[:index]):
            raise SettingsError(f"{name}: {value!r} is among the values twice; remove one")
    return tuple(values)


def _condition(name: str, when: Any) -> Condition:
    if not isinstance(when, Mapping):
        raise SettingsError(f'{name}: when = {when!r} must be a table, as in when = {{ "model.backbone" = "graph" }}')
    flat = {key: tuple(value) if isinstance(value, list) else (value,) for key, value in _leaves(when)}
    for values in flat.values():
        _check_plain(name, values)
    return flat


def _check_plain(name: str, value: object) -> None:
    """TOML has dates, settings have none."""
    parts = value if isinstance(value, list | tuple) else (value,)
    if strange := [part for part in parts if not isinstance(part, bool | int | float | str)]:
        raise SettingsError(f"{name}: {strange[0]!s} is no value of a setting; give a number, a text, true or false")


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _fields(model: type[Settings], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Full names and annotations of all settings that hold a value."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield from _fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.annotation


def _unknown(name: str, fields: Mapping[str, Any]) -> str:
    if inside := [field for field in fields if field.startswith(f"{name}.")]:
        return f"{name!r} is a section of the settings; name one of its fields, as in {', '.join(inside[:3])}"
    ending = [field for field in fields if field.rpartition(".")[2] == name.rpartition(".")[2]]
    near = list(dict.fromkeys([*difflib.get_close_matches(name, fields, n=3), *ending]))[:3]
    advice = f"did you mean {_one_of(near)}?" if near else "`ringflow config --train` shows all settings"
    return f"unknown setting {name!r}; {advice}"


def _check_kind(name: str, kind: str, annotation: Any) -> None:
    """A range must be of numbers that the setting can hold."""
    kinds = set(get_args(annotation)) or {annotation}
    if get_origin(annotation) is Literal:
        values = ", ".join(f'"{value}"' for value in get_args(annotation))
        raise SettingsError(f'{name} is one of {values}, not a number; write type = "choice"')
    if float in kinds and get_origin(annotation) is not tuple:
        return
    if int not in kinds:
        raise SettingsError(f'{name} is not a number; write type = "choice" and values = [...]')
    if kind == "float":
        raise SettingsError(f'{name} is a whole number; write type = "int"')


def _check_value(model: type[Settings], name: str, value: object) -> None:
    """A value that the setting never takes. What depends on other settings is told of every point, see `Space.feasible`."""
    keys = tuple(name.split("."))
    for problem in refusals(model, {}, {name: value}):
        location: Any = problem["loc"]
        if location[: len(keys)] == keys and problem["type"] != "value_error":
            message = str(problem["msg"])
            raise SettingsError(f"{name}={value}: {message[:1].lower() + message[1:]}")


def _one_of(words: Sequence[str] | Mapping[str, Any]) -> str:
    return " or ".join(f'"{word}"' for word in words)
