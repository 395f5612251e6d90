"""Two trainings side by side: what their histories say of the same steps, and their weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ringflow.provenance.headers import weights

#: Not the same in two equal trainings.
_CLOCK = ("events_per_second",)
_NAMES = ("kind", "step", "events")

Line = dict[str, Any]


class Departure(NamedTuple):
    """Where two histories part."""

    kind: str
    step: int
    figure: str
    was: float | None
    now: float | None

    @property
    def size(self) -> float:
        """Relative to the value before; infinite if one of them is not a number."""
        if self.was is None or self.now is None:
            return float("inf")
        return abs(self.now - self.was) / max(abs(self.was), 1e-12)


@dataclass(frozen=True)
class Comparison:
    """What came of comparing two histories."""

    lines: int
    values: int
    #: In the order of steps.
    departures: list[Departure]

    @property
    def same(self) -> bool:
        """Whether all values are equal to the last bit."""
        return not self.departures

    def largest(self, figure: str | None = None) -> float:
        """The largest relative difference, of one figure or of all."""
        return max((part.size for part in self.departures if figure in (None, part.figure)), default=0.0)


def compare_histories(before: Sequence[Line], now: Sequence[Line]) -> Comparison:
    """Compare the lines that are about the same steps."""
    departures, values, lines = [], 0, 0
    for one, other in _pairs(before, now):
        lines += 1
        for name in dict.fromkeys([*one, *other]):
            if name not in (*_NAMES, *_CLOCK):
                values += 1
                if one.get(name) != other.get(name):
                    departures.append(Departure(one["kind"], one["step"], name, one.get(name), other.get(name)))
    return Comparison(lines, values, sorted(departures, key=lambda part: part.step))


def _pairs(before: Sequence[Line], now: Sequence[Line]) -> Iterator[tuple[Line, Line]]:
    """Lines of the same step; those of steps are means since the line before, which has to be the same too."""
    later = {_place(line, previous): line for line, previous in _with_previous(now)}
    for line, previous in _with_previous(before):
        if (other := later.get(_place(line, previous))) is not None:
            yield line, other


def _with_previous(lines: Sequence[Line]) -> Iterator[tuple[Line, int]]:
    previous = 0
    for line in lines:
        yield line, previous
        if line["kind"] == "train":
            previous = line["step"]


def _place(line: Line, previous: int) -> tuple[Any, ...]:
    return line["kind"], line["step"], line.get("events"), previous if line["kind"] == "train" else None


class Weights(NamedTuple):
    """Two model files compared."""

    tensors: int
    #: Those that are not equal to the last bit, and the largest difference of a value.
    different: list[str]
    largest: float


def compare_weights(before: Path, now: Path) -> Weights:
    """Compare the tensors of two model files, bit by bit."""
    one, other = weights(before), weights(now)
    names = sorted(one.keys() | other.keys())
    different, largest = [], 0.0
    for name in names:
        if name not in one or name not in other or one[name].shape != other[name].shape:
            different.append(name)
            largest = float("inf")
        elif one[name].tobytes() != other[name].tobytes():
            different.append(name)
            apart = np.abs(one[name].astype(np.float64) - other[name].astype(np.float64))
            largest = max(largest, float(apart.max()))
    return Weights(len(names), different, largest)
