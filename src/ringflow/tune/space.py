"""The settings that a study varies: names, ranges, choices, and which of them have a meaning together.

    space = read_space(Path("space.toml"))                     # see `space_file` for what is in it
    point = space.sample(np.random.default_rng(1))             # {"optimizer.rate": 0.001234, "model.backbone": "graph", ...}
    TrainSettings.resolve("clic_small", space.settings_words(point))

A point holds the parameters that are active: one with a condition is left out where the condition does not hold. For a search a
point is a vector of positions from 0 to 1 in the order of `parameters`, with NaN for what is not active.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from ringflow.base.config import Settings, override
from ringflow.base.errors import SettingsError
from ringflow.tune.parameter import Parameter, same
from ringflow.tune.schedulers import Point

Vector = NDArray[np.float64]


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
        return self.decode(rng.random(len(self)))

    def grid(self, steps: int | None) -> Iterator[dict[str, object]]:
        """Every combination of all choices and of so many values of every range, the last parameter first to change.

        With None every value there is; only a space of finite size has such a grid.
        """
        return self._grid({}, 0, steps)

    def _grid(self, point: dict[str, object], depth: int, steps: int | None) -> Iterator[dict[str, object]]:
        if depth == len(self):
            yield point
            return
        parameter = self.parameters[depth]
        if not _active(parameter, point):
            yield from self._grid(point, depth + 1, steps)
            return
        for value in parameter.values(steps):
            yield from self._grid({**point, parameter.name: value}, depth + 1, steps)

    def encode(self, point: Point) -> Vector:
        """Positions of a point's values; NaN for parameters that are not active."""
        positions = (p.position(point[p.name]) if p.name in point else math.nan for p in self.parameters)
        return np.fromiter(positions, dtype=np.float64, count=len(self))

    def decode(self, vector: Vector) -> dict[str, object]:
        """The point at these positions; those of parameters that are not active are not looked at."""
        positions = dict(zip((parameter.name for parameter in self.parameters), vector.tolist(), strict=True))
        return self.build(lambda parameter: parameter.value(positions[parameter.name]))

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
        problems = refusals(type(settings), settings.model_dump(mode="json", exclude_none=True), point)
        if not problems:
            return None
        name = ".".join(map(str, problems[0]["loc"]))
        return f"{name}={problems[0]['input']}: {problems[0]['msg'].removeprefix('Value error, ')}"


def refusals(model: type[Settings], data: dict[str, Any], point: Point) -> list[Mapping[str, Any]]:
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
