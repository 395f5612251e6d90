"""The settings that a study varies: names, ranges, choices, and which of them have a meaning together.

    space = read_space(Path("space.toml"))
    point = next(space.grid(3))                                # {"optimizer.rate": 0.0001, "model.backbone": "graph", ...}
    with_values(TrainSettings.resolve("clic_small"), point)

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

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
from pydantic.dataclasses import dataclass

from ringflow.base.config import S, Settings, explained, toml_value
from ringflow.base.errors import SettingsError
from ringflow.base.words import flat
from ringflow.tune.schedulers import Point

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_SHIPPED = Path(__file__).parent / "spaces"
#: Whole numbers up to here are floats, too; and a range holds at most so many steps.
LARGEST = 1e15
_STRICT = pydantic.ConfigDict(extra="forbid", strict=True)


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf:
        raise ValueError(f"{value!r} must be a finite number")
    if abs(value) > LARGEST:
        raise ValueError(f"a number of {len(str(abs(int(value))))} digits is too large; give one up to {LARGEST:g}")
    return value


def _plain(value: Any) -> Any:
    """TOML has dates, settings have none."""
    for part in value if isinstance(value, list) else [value]:
        if not isinstance(part, bool | int | float | str):
            raise ValueError(f"{part} is no value of a setting; give a number, a text, true or false")
    return value


_Number = Annotated[int | float, pydantic.BeforeValidator(_number)]
_Plain = Annotated[Any, pydantic.BeforeValidator(_plain)]


def same(first: object, second: object) -> bool:
    """Whether two values are written alike: true is not 1, and a list is a tuple."""
    return toml_value(first) == toml_value(second)


def _condition(when: Any) -> Any:
    """By full names, each with all values that will do."""
    if not isinstance(when, Mapping):
        raise ValueError('it must be a table, as in when = { "model.backbone" = "graph" }')
    return {name: tuple(values) if isinstance(values, list | tuple) else (values,) for name, values in flat(when)}


#: For every parameter named, the values of it with which another one has a meaning; all must hold.
Condition = Annotated[Mapping[str, tuple[_Plain, ...]], pydantic.BeforeValidator(_condition)]


@dataclass(frozen=True, config=_STRICT)
class Range:
    """Numbers from low to high, both included; with a step only low, low + step, low + 2 * step ..."""

    name: str
    low: _Number
    high: _Number
    whole: bool = False
    log: bool = False
    step: _Number | None = None
    when: Condition = field(default_factory=dict)

    def __post_init__(self) -> None:
        low, high, step = self.low, self.high, self.step
        wrong = {
            f"low {low} is above high {high}; swap them": low > high,
            f"low and high are both {low}, which leaves nothing to search; set {self.name}={low} instead": low == high,
            f"low {low} has no logarithm; give a low above 0, or log = false": self.log and low <= 0,
            "log and step exclude each other; remove one": self.log and step is not None,
            f"step {step} must be above 0 and at most high - low = {high - low}": step is not None
            and not max((high - low) / LARGEST, 0) < step <= high - low,
            "low, high and step must be whole numbers, as its type is 'int'": self.whole
            and not all(isinstance(number, int) for number in (low, high, step or 1)),
        }
        if problem := next((words for words, holds in wrong.items() if holds), None):
            raise ValueError(problem)

    @property
    def _step(self) -> _Number | None:
        return 1 if self.whole and self.step is None else self.step

    @property
    def count(self) -> int | None:
        """How many values there are; None: as many as there are numbers."""
        return None if self._step is None else math.floor((self.high - self.low) / self._step + 1e-9) + 1

    def _at_step(self, number: int) -> _Number:
        """The value so many steps above the lowest, in decimals, as people write it."""
        value = Decimal(str(self.low)) + number * Decimal(str(self._step))
        return int(value) if self.whole else min(float(value), self.high)

    @property
    def _last(self) -> _Number:
        """The highest value."""
        return self.high if self.count is None else self._at_step(self.count - 1)

    @property
    def distribution(self) -> BaseDistribution:
        """As Optuna has it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self._last), log=self.log, step=int(self._step or 1))
        return FloatDistribution(self.low, self._last, log=self.log, step=self.step)

    def value_of(self, plain: Any) -> _Number:
        """What Optuna keeps as a value."""
        return self.nearest(plain)

    def plain(self, value: object) -> object:
        """A value as Optuna keeps it."""
        return value

    def nearest(self, number: float) -> _Number:
        """The value next to a number. What has no step is rounded to what matters of it, so that people can read it."""
        if self._step is None or self.count is None:
            size = min(number, self.high - self.low) if self.log else self.high - self.low
            inside = self.low < number < self.high
            short = round(number, 3 - math.floor(math.log10(size))) if inside else number
            return float(min(max(short, self.low), self.high))
        steps = min(max(math.floor((number - self.low) / self._step + 0.5), 0), self.count - 1)
        return self._at_step(steps)

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
        low, high, last = self.low, self._last, max(steps - 1, 1)
        inside = (index / last for index in range(min(steps, last)))
        spread = (low * (high / low) ** place if self.log else low + place * (high - low) for place in inside)
        return list(dict.fromkeys([*map(self.nearest, spread), *([self.nearest(high)] if steps > 1 else [])]))


@dataclass(frozen=True, config=_STRICT)
class Choice:
    """One of several values."""

    name: str
    options: Annotated[tuple[_Plain, ...], pydantic.Field(strict=False, min_length=1)]
    when: Condition = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, option in enumerate(self.options):
            if any(same(option, earlier) for earlier in self.options[:index]):
                raise ValueError(f"{option!r} is among the values twice; remove one")

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.options)

    @property
    def distribution(self) -> BaseDistribution:
        """As Optuna has it, which knows no lists."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([self.plain(option) for option in self.options])

    def value_of(self, plain: object) -> object:
        """What Optuna keeps as a value."""
        return next(option for option in self.options if same(self.plain(option), plain))

    def plain(self, value: object) -> Any:
        """A value as Optuna keeps it."""
        found = next(option for option in self.options if same(option, value))
        return toml_value(found) if isinstance(found, list) else found

    def holds(self, value: object) -> bool:
        """Whether a value is one of the options."""
        return any(same(option, value) for option in self.options)

    def values(self, steps: int | None) -> list[object]:
        """All of them, however many steps a range is given."""
        return list(self.options)


Parameter = Range | Choice


@dataclasses.dataclass(frozen=True)
class Space:
    """Parameters, those that others depend on first."""

    parameters: Sequence[Parameter]

    def __post_init__(self) -> None:
        if not self.parameters:
            raise SettingsError('the space is empty; name at least one setting, as in ["optimizer.rate"]')
        object.__setattr__(self, "parameters", _parents_first(self.parameters))

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """As Optuna has them."""
        return {parameter.name: parameter.distribution for parameter in self.parameters}

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

    def as_optuna(self, point: Point) -> dict[str, dict[str, Any]]:
        """Parameters and distributions of a trial of Optuna."""
        return {
            "params": {each.name: each.plain(point[each.name]) for each in self.parameters if each.name in point},
            "distributions": {name: self.distributions[name] for name in point},
        }

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


def with_values(settings: S, point: Point) -> S:
    """Settings in which some have other values."""
    return _validated(type(settings), settings.model_dump(mode="json", exclude_none=True), point)


def _validated(model: type[S], data: dict[str, Any], point: Point) -> S:
    """As `Settings.resolve` does, but without writing TOML and reading it: a search asks this for many points."""
    for name, value in point.items():
        *sections, last = name.split(".")
        inner = data
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return model.model_validate_json(json.dumps(data), strict=True)


def _refusals(model: type[Settings], data: dict[str, Any], point: Point) -> list[Mapping[str, Any]]:
    """What the settings have against a point put into the data, as pydantic tells it."""
    try:
        _validated(model, data, point)
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
    named = {parameter.name: parameter for parameter in parameters}
    if twice := next((name for name in named if sum(each.name == name for each in parameters) > 1), None):
        raise SettingsError(f"{twice} is in the space twice; remove one of them")
    for parameter in parameters:
        for name, values in parameter.when.items():
            who = f"{parameter.name}: when"
            if name not in named:
                raise SettingsError(f"{who} names {name!r}, which is not in the space; there are {', '.join(named)}")
            if named[name].count is None:
                raise SettingsError(f"{who} cannot name {name!r}, which is any number of a range")
            if never := [value for value in values if not named[name].holds(value)]:
                raise SettingsError(f"{who} wants {name} = {never[0]!r}, a value that it never has")
    ordered: dict[str, Parameter] = {}
    while len(ordered) < len(named):
        ready = [each for each in parameters if each.name not in ordered and each.when.keys() <= ordered.keys()]
        if not ready:
            circle = ", ".join(name for name in named if name not in ordered)
            raise SettingsError(f"when: these parameters wait for each other: {circle}; remove one of the conditions")
        ordered[ready[0].name] = ready[0]
    return tuple(ordered.values())


def space_path(space: str) -> Path:
    """Where a space is: a TOML file, or one that comes with the package, by its name."""
    path, shipped = Path(space), sorted(_SHIPPED.glob("*.toml"))
    if not path.exists():
        path = next((found for found in shipped if found.stem == space), path)
    if not path.is_file():
        known = ", ".join(found.stem for found in shipped)
        raise SettingsError(f"no space {space!r}; give a TOML file, or one of those that are shipped ({known})")
    return path


def read_space(path: Path) -> Space:
    """The space that a file describes, checked against the settings of a training."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: not a TOML file: it is no text") from None
    return parse_space(text, str(path))


def parse_space(text: str | Mapping[str, Any], where: str = "space") -> Space:
    """The space that a text describes, or what was read from one; `where` begins every error."""
    from ringflow.train.settings import TrainSettings

    fields = explained(TrainSettings)
    try:
        tables = _tables(tomllib.loads(text) if isinstance(text, str) else text)
        return Space([_parameter(name, table, fields) for name, table in tables])
    except ValueError as error:  # of TOML, or a number of 5,000 digits
        raise SettingsError(f"{where}: not a TOML file: {shortened(' '.join(str(error).split()))}") from None
    except (SettingsError, RecursionError) as error:
        raise SettingsError(f"{where}: {shortened(str(error))}") from None


def shortened(text: str, most: int = 600) -> str:
    """What an error tells of a file, in which a name may be as long as the file."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[3 - most // 2 :]}"


def _tables(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Parameters by their full name, whether they were written as one quoted name or as a table in a table."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if not isinstance(value, dict):
            raise SettingsError(
                f'{name} = {value!r} is no parameter; write ["{name}"] and its type on lines of their own'
            )
        if value and all(isinstance(inner, Mapping) for inner in value.values()):
            yield from _tables(value, f"{name}.")
        else:
            yield name, dict(value)


def _parameter(name: str, table: dict[str, Any], fields: Mapping[str, str]) -> Parameter:
    from ringflow.train.settings import TrainSettings

    if name not in fields:
        if inside := [field for field in fields if field.startswith(f"{name}.")]:
            raise SettingsError(f"{name!r} is a section of the settings; name a field of it, as in {inside[0]}")
        close = difflib.get_close_matches(name, fields, n=1)
        meant = close[0] if close else TrainSettings.meant_by(name.rpartition(".")[2])
        advice = f'did you mean "{meant}"?' if meant else "`ringflow config --train` shows all settings"
        raise SettingsError(f"unknown setting {name!r}; {advice}")
    kind = table.pop("type", None)
    try:
        if kind == "choice":
            parameter: Parameter = Choice(name, options=table.pop("values", ()), **table)
        elif kind in ("float", "int"):
            parameter = Range(name, whole=kind == "int", **table)
        else:
            raise SettingsError(f'{name} has the type {kind!r}; write type = "float" or "int" or "choice"')
    except pydantic.ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        key = "".join(f"{part}: " for part in wrong["loc"][:1]).replace("options", "values")
        raise SettingsError(f"{name}: {key}{_told(wrong)}") from None
    for value in parameter.values(2 if isinstance(parameter, Range) else None):
        # What depends on other settings is told of every point, see `Space.feasible`.
        for problem in _refusals(TrainSettings, {}, {name: value}):
            if ".".join(map(str, problem["loc"])).startswith(name) and problem["type"] != "value_error":
                raise SettingsError(f"{name}={value}: {_told(problem)}")
    return parameter


def _told(problem: Any) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
