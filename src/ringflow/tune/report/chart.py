"""Small drawings as SVG text: axes, dots, lines and bars, in the colours that the page has for light and dark.

    chart = Chart(Axis("trial", 0, 24), Axis("loss", 2.0, 4.0))
    chart.dots([(3, 2.5), (4, 2.9)], "complete")
    chart.svg("Loss of every trial")

Thousands of dots of one kind are one path, which a browser draws at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from ringflow.tune.space import Choice, Parameter

#: Marks that can be told apart without colours; a path from the middle of the mark.
MARKS = {
    "dot": "h0",
    "cross": "m-3-3l6 6m0-6l-6 6",
    "plus": "m-4 0h8m-4-4v8",
    "diamond": "m-4 0l4-4l4 4l-4 4z",
    "above": "m-4 3l4-6l4 6",
}
#: Beyond, marks are small dots on a grid.
MANY = 2000
_ROOM = 0.04


@dataclass(frozen=True)
class Axis:
    """From values to places between 0 and 1."""

    label: str
    low: float
    high: float
    log: bool = False
    #: Words instead of numbers: values are 0, 1, 2 ...
    options: tuple[str, ...] = ()

    def place(self, value: float) -> float:
        """Where a value is."""
        low, length = self._ends
        return (self._straight(value) - low) / length

    @cached_property
    def _ends(self) -> tuple[float, float]:
        low, high = self._straight(self.low), self._straight(self.high)
        return low, (high - low) or 1.0

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Values worth a mark, and how to write them."""
        if self.options:
            return [(float(index), name) for index, name in enumerate(self.options)]
        if not self.log:
            low, high = sorted((self.low, self.high))
            step = _nice((high - low) / most)
            first = math.ceil(low / step - 1e-9)
            return [(index * step, number(index * step)) for index in range(first, math.floor(high / step + 1e-9) + 1)]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        digits = (1,) if last - first > 2 else (1, 2, 5)
        marks = [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in digits]
        return [(mark, number(mark)) for mark in marks if self.low <= mark <= self.high]

    def _straight(self, value: float) -> float:
        return math.log10(value) if self.log else value


def parameter_axis(parameter: Parameter) -> Axis:
    """The axis of a setting, with a little room at its ends."""
    if isinstance(parameter, Choice):
        names = tuple(map(words, parameter.options))
        return Axis(parameter.name, -0.5, len(names) - 0.5, options=names)
    if parameter.log:
        factor = (parameter.high / parameter.low) ** _ROOM
        return Axis(parameter.name, parameter.low / factor, parameter.high * factor, True)
    room = _ROOM * (parameter.high - parameter.low)
    return Axis(parameter.name, parameter.low - room, parameter.high + room)


def value_axis(label: str, values: Iterable[float]) -> Axis:
    """An axis for values of which a few may be far too large: they are not to press all others together."""
    told = sorted(value for value in values if math.isfinite(value))
    if not told:
        return Axis(label, 0.0, 1.0)
    low, middle, upper = told[0], told[len(told) // 2], told[(3 * len(told)) // 4]
    high = min(told[-1], upper + 3 * max(upper - told[len(told) // 4], middle - low))
    if low > 0 and high / low > 30:
        return Axis(label, low / 1.1, high * 1.1, True)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(label, low - room, high + room)


class Chart:
    """A frame with two axes, and what is drawn in it, in the order in which it is drawn."""

    def __init__(self, x: Axis, y: Axis, *, size: tuple[int, int] = (560, 330), left: int = 62) -> None:
        self.x, self.y = x, y
        self.width, self.height = size
        self.left, self.right, self.top, self.bottom = left, size[0] - 14, 10, size[1] - 44
        self._parts: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a pair of values is, in units of the drawing."""
        across, up = self.x.place(x), self.y.place(y)
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)

    def dots(self, points: Sequence[tuple[float, float]], look: str, mark: str = "dot") -> None:
        """A mark at every point. Of points at the same place one is drawn; those above the frame are told at its edge."""
        inside = [self.at(x, y) for x, y in points if y <= self.y.high]
        above = [(self.at(x, self.y.high)[0], self.top + 4.0) for x, y in points if y > self.y.high]
        for places, shape in ((inside, mark), (above, "above")):
            if places:
                self._parts.append(marks(places, f"{shape} {look}", shape))

    def line(self, points: Sequence[tuple[float, float]], look: str, *, steps: bool = False) -> None:
        """A line through points; with steps it keeps its height up to the next one."""
        self.lines([points], look, steps=steps)

    def lines(self, several: Iterable[Sequence[tuple[float, float]]], look: str, *, steps: bool = False) -> None:
        """Many lines of one look."""
        words = []
        for points in several:
            places = [self.at(x, min(y, self.y.high)) for x, y in points]
            for index, (x, y) in enumerate(places):
                words.append(
                    f"M{x:.1f} {y:.1f}" if index == 0 else f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}"
                )
        if words:
            self._parts.append(f'<path class="{look}" d="{"".join(words)}"/>')

    def add(self, part: str) -> None:
        """Anything else."""
        self._parts.append(part)

    def svg(self, alt: str, link: Any = None) -> str:
        """The drawing. `link` says which columns of the page's data the axes show, so that trials can be pointed at."""
        data = f" data-link='{escape(json.dumps(link), quote=True)}'" if link else ""
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(alt, quote=True)}"{data}>'
            f'{self._frame()}<g class="ink">{"".join(self._parts)}</g></svg>'
        )

    def place_of(self, axis: Axis, *, across: bool) -> dict[str, object]:
        """What the page must know to find points on an axis."""
        ends = (self.left, self.right) if across else (self.bottom, self.top)
        return {
            "low": axis.low,
            "high": axis.high,
            "log": axis.log,
            "from": ends[0],
            "to": ends[1],
            "words": bool(axis.options),
        }

    def _frame(self) -> str:
        parts = []
        for value, name in self.x.ticks(8):
            x = self.at(value, self.y.low)[0]
            if self.left - 1 <= x <= self.right + 1:
                parts.append(f'<path class="grid" d="M{x:.1f} {self.top}V{self.bottom}"/>')
                parts.append(text(x, self.bottom + 16, name, "tick middle"))
        for value, name in self.y.ticks():
            y = self.at(self.x.low, value)[1]
            if self.top - 1 <= y <= self.bottom + 1:
                parts.append(f'<path class="grid" d="M{self.left} {y:.1f}H{self.right}"/>')
                parts.append(text(self.left - 6, y + 4, name, "tick end"))
        parts.append(f'<path class="frame" d="M{self.left} {self.top}V{self.bottom}H{self.right}"/>')
        parts.append(text((self.left + self.right) / 2, self.height - 8, self.x.label, "label middle"))
        middle = (self.top + self.bottom) / 2
        turned = f'transform="rotate(-90 14 {middle:.0f})"'
        parts.append(text(14, middle, self.y.label, "label middle", turned))
        return "".join(parts)


def marks(places: Sequence[tuple[float, float]], look: str, shape: str) -> str:
    """The same mark at many places; of very many, one where several would cover each other."""
    if len(places) > MANY:
        starts = [f"M{x} {y}" for x, y in {(2 * round(x / 2), 2 * round(y / 2)) for x, y in places}]
    else:
        starts = [f"M{x:.1f} {y:.1f}" for x, y in places]
    return f'<path class="{look}" d="{"".join(start + MARKS[shape] for start in starts)}"/>'


def text(x: float, y: float, content: str, look: str, extra: str = "") -> str:
    """Words in a drawing."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{look}" {extra}>{escape(content)}</text>'


def number(value: float) -> str:
    """As people write it: 1e-4, 0.05, 128, 1.5M."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.4g}M"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    if 0 < size < 1e-3:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{value:.4g}"


def words(value: object) -> str:
    """A value of a setting as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return ", ".join(map(words, value)) if isinstance(value, list | tuple) else str(value)


def _nice(step: float) -> float:
    """The next number of the form 1, 2, 2.5 or 5 times a power of ten."""
    if not step > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))
