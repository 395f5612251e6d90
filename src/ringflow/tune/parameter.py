"""What one setting may be: a number in a range, or one of several values.

Searches see a parameter as a position from 0 to 1: equal parts of it are equally likely, a logarithmic range is straight, and
every whole number or value of a choice has a part of its own, with the position of the value in its middle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringflow.base.toml import toml_value

#: For every parameter named, the values of it with which another one has a meaning; all must hold.
Condition = Mapping[str, Sequence[object]]


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
        if self._step is None:
            return None
        return math.floor((self.high - self.low) / self._step + 1e-9) + 1

    @property
    def even(self) -> bool:
        """Whether there is a number of values with equal parts."""
        return self.count is not None and not self.log

    def value(self, position: float) -> float | int:
        """What is at a position. Numbers are rounded to what matters of them, so that people can read them."""
        first, last = self._edges
        place = self._straight(first) + position * (self._straight(last) - self._straight(first))
        number = math.exp(place) if self.log else place
        if self._step is None or self.count is None:
            size = min(number, self.high - self.low) if self.log else self.high - self.low
            short = round(number, 3 - math.floor(math.log10(size))) if 0 < position < 1 else number
            return self._clipped(short)
        steps = min(max(math.floor((number - self.low) / self._step + 0.5), 0), self.count - 1)
        number = self.low + steps * self._step
        return round(number) if self.whole else self._clipped(float(f"{number:.12g}"))

    def position(self, value: object) -> float:
        """Where a value is."""
        assert isinstance(value, int | float)
        first, last = map(self._straight, self._edges)
        return min(max((self._straight(value) - first) / (last - first), 0.0), 1.0)

    def holds(self, value: object) -> bool:
        """Whether a value is one of the range."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        return self.count is None or math.isclose(self.value(self.position(value)), value, rel_tol=1e-9)

    def values(self, steps: int | None) -> list[object]:
        """So many values at most, the ends among them, evenly; all with None, which needs a step."""
        if self.count is not None and (steps is None or self.count <= steps):
            positions = [self.position(self.low + index * (self._step or 0)) for index in range(self.count)]
        else:
            assert steps is not None
            first, last = self.position(self.low), self.position(self.high)
            positions = [first + (last - first) * index / max(steps - 1, 1) for index in range(steps)]
        return list(dict.fromkeys(map(self.value, positions)))

    @property
    def _step(self) -> float | None:
        return 1 if self.whole and self.step is None else self.step

    @property
    def _edges(self) -> tuple[float, float]:
        """Where the part of the first value begins, and that of the last one ends."""
        if self._step is None or self.count is None:
            return self.low, self.high
        return self.low - self._step / 2, self.low + (self.count - 0.5) * self._step

    def _clipped(self, number: float) -> float:
        return float(min(max(number, self.low), self.high))

    def _straight(self, number: float) -> float:
        return math.log(number) if self.log else number


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    name: str
    options: Sequence[object]
    when: Condition = field(default_factory=dict)

    #: Equal parts, as a range of whole numbers has.
    even = True

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.options)

    @property
    def ordered(self) -> bool:
        """Whether the values are numbers that grow, so that neighbours are alike."""
        numbers = [value for value in self.options if isinstance(value, int | float) and not isinstance(value, bool)]
        return len(numbers) == self.count and numbers == sorted(numbers)

    def value(self, position: float) -> object:
        """What is at a position."""
        return self.options[min(int(position * self.count), self.count - 1)]

    def position(self, value: object) -> float:
        """Where a value is."""
        index = next(index for index, option in enumerate(self.options) if same(option, value))
        return (index + 0.5) / self.count

    def holds(self, value: object) -> bool:
        """Whether a value is one of the options."""
        return any(same(option, value) for option in self.options)

    def values(self, steps: int | None) -> list[object]:
        """All of them, however many steps a range is given."""
        return list(self.options)


Parameter = Range | Choice
