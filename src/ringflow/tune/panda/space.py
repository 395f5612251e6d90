"""A space as PanDA's `phpo` and iDDS write it, in both directions.

    {"optimizer.rate": {"method": "loguniform", "dimension": {"low": 1e-4, "high": 1e-2}},
     "model.width": {"method": "quniform", "dimension": {"low": 64, "high": 256, "q": 16}},
     "model.backbone": {"method": "categorical", "dimension": {"categories": ["attention", "graph"]}},
     "model.graph.bin_size": {"method": "uniformint", "dimension": {"low": 32, "high": 256},
                              "when": {"model.backbone": ["graph"]}}}

Names are those of `ringflow train NAME=VALUE`. `when` is ours: others who read such a file pass over it. Both ends of a range
are included. Rounded methods (`quniform`, `qloguniform`) have the multiples of `q` within their range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ringflow.base.errors import SettingsError
from ringflow.base.toml import dump_toml
from ringflow.tune.parameter import Choice, Parameter, Range, same
from ringflow.tune.space import Space
from ringflow.tune.space_file import parse_space

#: Methods, and what their dimension must hold.
METHODS = {
    "categorical": ("categories",),
    "uniform": ("low", "high"),
    "uniformint": ("low", "high"),
    "loguniform": ("low", "high"),
    "quniform": ("low", "high", "q"),
    "qloguniform": ("low", "high", "q"),
}
#: What others also write, and what changes nothing for us.
_PASSED_OVER = {"grid_search", "base"}


def from_panda(words: object, where: str = "opt_space") -> Space:
    """The space that such a table describes, checked as `space.toml` is; `where` begins every error."""
    if not isinstance(words, Mapping) or not words:
        raise SettingsError(
            f'{where} names no settings; write {{"optimizer.rate": {{"method": ..., "dimension": ...}}}}'
        )
    try:
        tables = {name: _table(name, entry) for name, entry in words.items()}
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None
    return parse_space(dump_toml(tables), where=where)


def to_panda(space: Space) -> dict[str, dict[str, Any]]:
    """A space as a table that is ready for JSON."""
    return {parameter.name: _entry(parameter) for parameter in space.parameters}


def _table(name: str, entry: object) -> dict[str, Any]:
    """One parameter as `space.toml` has it."""
    if not isinstance(entry, Mapping):
        raise SettingsError(f'{name} = {entry!r} is no parameter; write {{"method": ..., "dimension": ...}}')
    method, dimension = entry.get("method"), entry.get("dimension")
    if not isinstance(method, str) or method not in METHODS:
        raise SettingsError(f"{name} has the unknown method {method!r}; choose from {', '.join(METHODS)}")
    if strange := entry.keys() - {"method", "dimension", "when"}:
        raise SettingsError(f"{name}: {min(strange)!r} means nothing; there are method, dimension and when")
    if not isinstance(dimension, Mapping):
        raise SettingsError(f"{name}: dimension = {dimension!r} must hold {', '.join(METHODS[method])}")
    if missing := [key for key in METHODS[method] if key not in dimension]:
        raise SettingsError(f"{name}: the dimension of {method!r} needs {missing[0]!r}")
    if strange := dimension.keys() - {*METHODS[method], *_PASSED_OVER}:
        raise SettingsError(
            f"{name}: {min(strange)!r} means nothing for {method!r}, which has {', '.join(METHODS[method])}"
        )
    table = _choice(name, dimension) if method == "categorical" else _range(name, method, dimension)
    when = entry.get("when")
    if when is not None:
        table["when"] = _condition(name, when)
    return table


def _choice(name: str, dimension: Mapping[str, Any]) -> dict[str, Any]:
    categories = dimension["categories"]
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
    table: dict[str, Any] = {"type": "float", "low": low, "high": high}
    if method == "uniformint":
        table["type"] = "int"
    elif "q" in METHODS[method]:
        if q <= 0:
            raise SettingsError(f"{name}: q = {q!r} must be more than 0")
        first, last = math.ceil(low / q - 1e-9), math.floor(high / q + 1e-9)
        if first > last:
            raise SettingsError(f"{name}: no multiple of q = {q!r} is between {low!r} and {high!r}")
        whole = all(float(number).is_integer() for number in (first * q, last * q, q))
        table.update(low=_rounded(first * q, whole), high=_rounded(last * q, whole), step=_rounded(q, whole))
        if "log" in method and not (whole and q == 1):
            raise SettingsError(f"{name}: a logarithmic range takes q = 1 only, not {q!r}; write 'loguniform'")
        if whole:
            table["type"] = "int"
            if table["step"] == 1:
                del table["step"]
    if "log" in method:
        table["log"] = True
    return table


def _condition(name: str, when: object) -> dict[str, Any]:
    if not isinstance(when, Mapping):
        raise SettingsError(f'{name}: when = {when!r} must be a table, as in {{"model.backbone": ["graph"]}}')
    for value in when.values():
        for part in value if isinstance(value, list) else [value]:
            _require_plain(name, part)
    return dict(when)


def _require_plain(name: str, value: object) -> None:
    parts = value if isinstance(value, list) else [value]
    if strange := [part for part in parts if not isinstance(part, bool | int | float | str)]:
        raise SettingsError(f"{name}: {strange[0]!r} is no value of a setting; give a number, a text, true or false")


def _rounded(number: float, whole: bool) -> float | int:
    return round(number) if whole else float(f"{number:.12g}")


def _entry(parameter: Parameter) -> dict[str, Any]:
    words: dict[str, Any] = _method(parameter)
    if parameter.when:
        words["when"] = {name: list(values) for name, values in parameter.when.items()}
    return words


def _method(parameter: Parameter) -> dict[str, Any]:
    if isinstance(parameter, Choice):
        return _categorical(parameter)
    low, high, q = parameter.low, parameter.high, parameter.step or 1
    if parameter.step is None and not parameter.whole:
        return {"method": "loguniform" if parameter.log else "uniform", "dimension": {"low": low, "high": high}}
    if q == 1 and parameter.whole and not parameter.log:
        return {"method": "uniformint", "dimension": {"low": low, "high": high}}
    if not math.isclose(low / q, round(low / q), abs_tol=1e-9):
        return _categorical(parameter)  # its values are no multiples of the step, and there is no word for that
    return {"method": "qloguniform" if parameter.log else "quniform", "dimension": {"low": low, "high": high, "q": q}}


def _categorical(parameter: Range | Choice) -> dict[str, Any]:
    categories = [list(value) if isinstance(value, tuple) else value for value in parameter.values(None)]
    return {"method": "categorical", "dimension": {"categories": categories, "grid_search": 0}}
