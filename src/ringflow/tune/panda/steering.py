"""The steering end of a search that PanDA and iDDS run (`phpo`): all points so far and their losses in, new points out.

    asked = read_asked(Path("in.json"))
    write_points(Path("out.json"), steer(asked, space, settings, max_points=100, num_points=10))

An empty list ends the search. Nothing is remembered between two calls but what iDDS writes, and nobody is asked over a network.
The other end, which trains with one point, is `panda_evaluation`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ringflow.base.config import Settings
from ringflow.base.errors import UsageError
from ringflow.base.rundir import write_atomic
from ringflow.tune.panda.space import from_panda
from ringflow.tune.schedulers import Finished, Point
from ringflow.tune.search import make_search
from ringflow.tune.space import Space

#: Unless told otherwise, losses from here on stand for points that were given up after three tries.
GIVEN_UP = 1e5


class Asked(NamedTuple):
    """What steering is given: points with their losses, None while there is none, and the space if iDDS was told one."""

    points: list[tuple[Point, float | None]]
    opt_space: object = None


def read_asked(path: Path) -> Asked:
    """The points so far; none if the file is missing or empty, as before the first question."""
    words = read_json(path, missing=None)
    if words is None:
        return Asked([])
    if not isinstance(words, Mapping) or not isinstance(words.get("points", []), list):
        raise UsageError(
            f'{path} is not what iDDS writes; give {{"points": [[{{...}}, loss], ...], "opt_space": {{...}}}}'
        )
    points = [_read_point(path, number, entry) for number, entry in enumerate(words.get("points", []))]
    return Asked(points, words.get("opt_space"))


def _read_point(path: Path, number: int, entry: object) -> tuple[Point, float | None]:
    if not isinstance(entry, list) or len(entry) != 2:
        raise UsageError(f"{path}: point {number} must be [settings, loss], not {short(entry)}")
    point, loss = entry
    if isinstance(point, list):
        raise UsageError(f"{path}: point {number} belongs to a segmented task; submit a task for every segment instead")
    if not isinstance(point, dict):
        raise UsageError(
            f"{path}: the settings of point {number} must be a table of names and values, not {short(point)}"
        )
    if loss is not None and (isinstance(loss, bool) or not isinstance(loss, int | float)):
        raise UsageError(f"{path}: the loss of point {number} must be a number or null, not {short(loss)}")
    return point, loss


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
    chooser = make_search(search, space, settings, seed=seed)
    new: list[Point] = []
    while len(new) < num_points and len(known) < max_points:
        chosen = chooser.ask(len(known), known)
        if chosen is None:
            break
        new.append(chosen)
        known.append(Finished(len(known), chosen, None))  # nobody is sent where somebody is
    return new


def space_of(asked: Asked, space: Space | None, where: Path) -> Space:
    """The space that was given, or else the one that iDDS was told."""
    if space is not None:
        return space
    if asked.opt_space is None:
        raise UsageError(f"{where} holds no opt_space; give --space, or phpo --searchSpaceFile")
    return from_panda(asked.opt_space, f"opt_space of {where}")


def _why_not(point: Point, space: Space) -> str:
    """The first thing that is wrong with a point."""
    named = {parameter.name: parameter for parameter in space.parameters}
    for name, value in point.items():
        if name not in named:
            return f"there is no {name} in it; there are {', '.join(named)}"
        if not named[name].holds(value):
            return f"{name} = {short(value)} is none of its values"
    wanted = space.build(lambda parameter: point.get(parameter.name))
    missing = sorted(wanted.keys() - point.keys())
    return (
        f"it has no {missing[0]}"
        if missing
        else f"{sorted(point.keys() - wanted.keys())[0]} has no meaning with the others"
    )


def write_points(path: Path, points: Sequence[Point]) -> None:
    """Write points so that a reader finds all of them or none."""
    write_atomic(path, json.dumps([dict(point) for point in points], allow_nan=False) + "\n")


def read_json(path: Path, *, missing: object = ...) -> Any:
    """What a file holds; with `missing` given, that is the answer for one that is missing or empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
        if missing is ...:
            raise UsageError(f"{path} does not exist; it holds the settings to try, as PanDA writes them") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if missing is not ... and not text.strip():
        return missing
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {' '.join(str(error).split())}") from None


def short(value: object) -> str:
    """What somebody gave, in a few words."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
