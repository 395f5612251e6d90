"""The settings that a study varies: names, ranges, choices, and which of them have a meaning together.

    space = read_space(Path("space.toml"))
    point = space.sample(np.random.default_rng(1))             # {"optimizer.rate": 0.001234, "model.backbone": "graph", ...}
    TrainSettings.resolve("clic_small", space.settings_words(point))

A point holds the parameters that are active: one with a condition is left out where the condition does not hold. Every
parameter of a `space.toml` is checked against the settings before anything is tried; then it is a distribution of Optuna:

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
import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import numpy as np
import pydantic

from ringflow.base.config import Settings, override, toml_value
from ringflow.base.errors import SettingsError
from ringflow.tune.schedulers import Point

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution

#: For every parameter named, the values of it with which another one has a meaning; all must hold.
Condition = Mapping[str, Sequence[object]]
_SHIPPED = Path(__file__).parent / "spaces"
_KEYS = {
    "float": ("low", "high", "log", "step", "when"),
    "int": ("low", "high", "log", "step", "when"),
    "choice": ("values", "when"),
}


def same(first: object, second: object) -> bool:
    """Whether two values are written alike: true is not 1, and a list is a tuple."""
    return toml_value(first) == toml_value(second)


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; with a step only low, low + step, low + 2 * step ..."""

    name: str
    low: float
    high: float
    whole: bool = False
    log: bool = False
    step: float | None = None
    when: Condition = field(default_factory=dict)

    @property
    def count(self) -> int | None:
        """How many values there are; None: as many as there are numbers."""
        step = self._step
        return None if step is None else math.floor((self.high - self.low) / step + 1e-9) + 1

    @property
    def _step(self) -> float | None:
        return 1 if self.whole and self.step is None else self.step

    @property
    def _last(self) -> float:
        """The highest value."""
        return self.high if self.count is None else self._at_step(self.count - 1)

    def _at_step(self, number: int) -> float | int:
        """The value so many steps above the lowest, in decimals, as people write it."""
        value = Decimal(str(self.low)) + number * Decimal(str(self._step))
        return int(value) if self.whole else min(float(value), self.high)

    @property
    def distribution(self) -> BaseDistribution:
        """As Optuna has it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self._last), log=self.log, step=int(self._step or 1))
        return FloatDistribution(self.low, self._last, log=self.log, step=self.step)

    def suggest(self, trial: Trial) -> float | int:
        """What Optuna suggests for a trial."""
        if self.whole:
            step = int(self._step or 1)
            return trial.suggest_int(self.name, int(self.low), int(self._last), log=self.log, step=step)
        return self.nearest(trial.suggest_float(self.name, self.low, self._last, log=self.log, step=self.step))

    def plain(self, value: object) -> object:
        """A value as Optuna keeps it."""
        return value

    def nearest(self, number: float) -> float | int:
        """The value next to a number. What has no step is rounded to what matters of it, so that people can read it."""
        if self._step is None or self.count is None:
            size = min(number, self.high - self.low) if self.log else self.high - self.low
            inside = self.low < number < self.high
            short = round(number, 3 - math.floor(math.log10(size))) if inside else number
            return float(min(max(short, self.low), self.high))
        steps = min(max(math.floor((number - self.low) / self._step + 0.5), 0), self.count - 1)
        return self._at_step(steps)

    def at(self, position: float) -> float | int:
        """What is at a position from 0 to 1: equal parts of it are equally likely."""
        if self.count is not None and not self.log:
            return self._at_step(min(int(position * self.count), self.count - 1))
        return self.nearest(self._between(position, 0.5 if self.whole else 0.0))

    def _between(self, position: float, margin: float = 0.0) -> float:
        low, high = self.low - margin, self._last + margin
        return low * (high / low) ** position if self.log else low + position * (high - low)

    def holds(self, value: object) -> bool:
        """Whether a value is one of the range."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        return self.count is None or math.isclose(self.nearest(value), value, rel_tol=1e-9)

    def values(self, steps: int | None) -> list[object]:
        """So many values at most, the ends among them, evenly; all with None, which needs a step."""
        if self.count is not None and (steps is None or self.count <= steps):
            return [self._at_step(index) for index in range(self.count)]
        assert steps is not None
        places = (self._between(index / max(steps - 1, 1)) for index in range(steps))
        return list(dict.fromkeys(map(self.nearest, places)))


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    name: str
    options: Sequence[object]
    when: Condition = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.options)

    @property
    def distribution(self) -> BaseDistribution:
        """As Optuna has it, which knows no lists."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([self.plain(option) for option in self.options])

    def suggest(self, trial: Trial) -> object:
        """What Optuna suggests for a trial."""
        options = [self.plain(option) for option in self.options]
        return self.options[options.index(trial.suggest_categorical(self.name, options))]

    def plain(self, value: object) -> Any:
        """A value as Optuna keeps it."""
        found = next(option for option in self.options if same(option, value))
        return found if isinstance(found, bool | int | float | str) else toml_value(found)

    def at(self, position: float) -> object:
        """What is at a position from 0 to 1."""
        return self.options[min(int(position * self.count), self.count - 1)]

    def holds(self, value: object) -> bool:
        """Whether a value is one of the options."""
        return any(same(option, value) for option in self.options)

    def values(self, steps: int | None) -> list[object]:
        """All of them, however many steps a range is given."""
        return list(self.options)


Parameter = Range | Choice


class Space:
    """Parameters, those that others depend on first."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        if not parameters:
            raise SettingsError('the space is empty; name at least one setting, as in ["optimizer.rate"]')
        self.parameters = _parents_first(parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def size(self) -> float:
        """At most so many points; infinite if a parameter is any number."""
        return math.prod(math.inf if parameter.count is None else parameter.count for parameter in self.parameters)

    def build(self, choose: Callable[[Parameter], object]) -> dict[str, object]:
        """The point that comes of choosing a value for one active parameter after the other."""
        point: dict[str, object] = {}
        for parameter in self.parameters:
            if _active(parameter, point):
                point[parameter.name] = choose(parameter)
        return point

    def sample(self, rng: np.random.Generator) -> dict[str, object]:
        """A point drawn at random; every part of a range, and every choice, is equally likely."""
        positions = dict(zip((parameter.name for parameter in self.parameters), rng.random(len(self)), strict=True))
        return self.build(lambda parameter: parameter.at(float(positions[parameter.name])))

    def grid(self, steps: int | None) -> Iterator[dict[str, object]]:
        """Every combination of all choices and of so many values of every range, the last parameter first to change.

        With None every value there is; only a space of finite size has such a grid.
        """
        points: Iterator[dict[str, object]] = iter([{}])
        for parameter in self.parameters:
            points = _spread(points, parameter, steps)
        return points

    def holds(self, point: Point) -> bool:
        """Whether a point is one of this space: all active parameters, no others, each with a value it can have."""
        active = [parameter for parameter in self.parameters if _active(parameter, point)]
        return point.keys() == {parameter.name for parameter in active} and all(
            parameter.holds(point[parameter.name]) for parameter in active
        )

    def settings_words(self, point: Point) -> list[str]:
        """A point as words of a command line: `optimizer.rate=0.0012`."""
        return [override(name, value) for name, value in point.items()]

    def feasible(self, point: Point, settings: Settings) -> str | None:
        """Why these settings refuse a point, for example a width that the heads do not divide; None if they take it."""
        problems = _refusals(type(settings), settings.model_dump(mode="json", exclude_none=True), point)
        if not problems:
            return None
        name = ".".join(map(str, problems[0]["loc"]))
        return f"{name}={problems[0]['input']}: {problems[0]['msg'].removeprefix('Value error, ')}"


def _spread(
    points: Iterator[dict[str, object]], parameter: Parameter, steps: int | None
) -> Iterator[dict[str, object]]:
    """Every point with every value of one more parameter, where that is active."""
    for point in points:
        if _active(parameter, point):
            yield from ({**point, parameter.name: value} for value in parameter.values(steps))
        else:
            yield point


def _refusals(model: type[Settings], data: dict[str, Any], point: Point) -> list[Mapping[str, Any]]:
    """What the settings have against a point put into the data, as pydantic tells it. The data changes."""
    for name, value in point.items():
        *sections, last = name.split(".")
        inner = data
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    try:
        # As `Settings.resolve` does, but without writing TOML and reading it: a search asks this for many points.
        model.model_validate_json(json.dumps(data), strict=True)
    except pydantic.ValidationError as error:
        return [dict(problem) for problem in error.errors(include_url=False, include_context=False)]
    return []


def _active(parameter: Parameter, point: Point) -> bool:
    """Whether a point holds what a parameter depends on."""
    return all(
        name in point and any(same(point[name], value) for value in values) for name, values in parameter.when.items()
    )


def _parents_first(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """The parameters in their order, but those that others depend on before them."""
    named: dict[str, Parameter] = {}
    for parameter in parameters:
        if parameter.name in named:
            raise SettingsError(f"{parameter.name} is in the space twice; remove one of them")
        named[parameter.name] = parameter
    for parameter in parameters:
        _check_condition(parameter, named)
    ordered: dict[str, Parameter] = {}
    while len(ordered) < len(named):
        ready = [p for p in parameters if p.name not in ordered and p.when.keys() <= ordered.keys()]
        if not ready:
            circle = ", ".join(name for name in named if name not in ordered)
            raise SettingsError(f"when: these parameters wait for each other: {circle}; remove one of the conditions")
        ordered[ready[0].name] = ready[0]
    return tuple(ordered.values())


def _check_condition(parameter: Parameter, named: Mapping[str, Parameter]) -> None:
    for name, values in parameter.when.items():
        if name not in named:
            raise SettingsError(
                f"{parameter.name}: when names {name!r}, which is not in the space; there are {', '.join(named)}"
            )
        if named[name].count is None:
            raise SettingsError(f"{parameter.name}: when cannot name {name!r}, which is any number of a range")
        for value in values:
            if not named[name].holds(value):
                raise SettingsError(f"{parameter.name}: when wants {name} = {value!r}, a value that it never has")


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


def parse_space(text: str | Mapping[str, Any], model: type[Settings] | None = None, where: str = "space") -> Space:
    """The space that a text describes, or what was read from one; `where` begins every error."""
    if model is None:
        from ringflow.train.settings import TrainSettings

        model = TrainSettings
    try:
        tables = list(_tables(tomllib.loads(text) if isinstance(text, str) else text))
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
    for name, found in model.model_fields.items():
        if isinstance(found.annotation, type) and issubclass(found.annotation, Settings):
            yield from _fields(found.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", found.annotation


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
    for problem in _refusals(model, {}, {name: value}):
        location: Any = problem["loc"]
        if location[: len(keys)] == keys and problem["type"] != "value_error":
            message = str(problem["msg"])
            raise SettingsError(f"{name}={value}: {message[:1].lower() + message[1:]}")


def _one_of(words: Sequence[str] | Mapping[str, Any]) -> str:
    return " or ".join(f'"{word}"' for word in words)
