"""Learning curves: the value of a trial by the events it was shown. Recorded from run folders, or drawn from a model of those.

    curves = read_curves(folders)                          # validation loss of trainings that were done
    many = model_of(curves).draw(10_000, seed=1)           # like them, as many as one wants
    many = [curve.stretched(12_000_000) for curve in many]

The model is a power law per training, `floor + amplitude * share**-slope` with `share` the part of the whole training, and a
scatter of every validation around it. A drawn curve has the power law of one of the recorded ones, moved in its value at the
end, in how far it falls and in its slope by about as much as recorded curves differ. Stretching keeps the value by share: it
assumes that a longer training of another network falls in the same way, which is all that short recordings tell.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ringflow.base.errors import InputFileError

Array = NDArray[np.float64]

_HISTORY_FILE = "history.jsonl"
#: Shares of the whole training at which modelled curves are drawn: a validation every factor of 1.25 or so.
_SHARES = np.geomspace(1e-3, 1.0, 32)
#: Where a curve has its fall before it.
_EARLY = 1.0 / 16.0
_SLOPES = np.linspace(0.05, 2.0, 40)


@dataclass(frozen=True)
class Curve:
    """Values after so many events, in rising order of events; straight between them, level before and after."""

    events: Sequence[float]
    values: Sequence[float]

    def value(self, events: float) -> float:
        """After so many events."""
        after = bisect_left(self.events, events)
        if after == 0 or after == len(self.events):
            return self.values[min(after, len(self.values) - 1)]
        before, share = after - 1, (events - self.events[after - 1]) / (self.events[after] - self.events[after - 1])
        return (1.0 - share) * self.values[before] + share * self.values[after]

    def stretched(self, events: float) -> Curve:
        """The same values over so many events in all."""
        return self.scaled(events / self.events[-1])

    def scaled(self, factor: float) -> Curve:
        """The same values after so many times the events."""
        return Curve([factor * place for place in self.events], self.values)


def read_curves(folders: Iterable[Path], figure: str = "loss") -> list[Curve]:
    """Curves of a figure of the validations of runs."""
    return [_read(folder / _HISTORY_FILE, figure) for folder in folders]


def _read(path: Path, figure: str) -> Curve:
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        found = [(line["events"], line.get(figure)) for line in lines if line["kind"] == "validation"]
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror}; give the folder of a run") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputFileError(f"{path} is not the history of a training; give the folder of a run") from error
    points = sorted({events: value for events, value in found if value is not None and events > 0}.items())
    if not points:
        raise InputFileError(f"{path} has no validation with the figure {figure!r}; choose another figure or run")
    return Curve([float(events) for events, _ in points], [float(value) for _, value in points])


@dataclass(frozen=True)
class PowerLaw:
    """`end + fall * (share**-slope - 1) / (EARLY**-slope - 1)`: where it ends, how far it falls, how soon."""

    end: float
    fall: float
    slope: float
    #: Standard deviation of single validations around it.
    scatter: float


def fit(curve: Curve) -> PowerLaw:
    """The falling power law nearest to a curve: for each of many slopes the other two follow from a straight line."""
    shares, values = np.asarray(curve.events) / curve.events[-1], np.asarray(curve.values)
    best, least = PowerLaw(float(values.mean()), 0.0, 1.0, float(values.std())), math.inf
    for slope in _SLOPES:
        columns = np.stack([np.ones_like(shares), _shape(shares, slope)], axis=1)
        (end, fall), *_ = np.linalg.lstsq(columns, values, rcond=None)
        squares = float(((columns @ [end, fall] - values) ** 2).sum())
        if fall >= 0.0 and squares < least:
            least = squares
            scatter = _scatter(columns @ [end, fall] - values)
            best = PowerLaw(float(end), float(fall), float(slope), scatter)
    return best


def _scatter(rest: Array) -> float:
    """Of what a law leaves over, by how much neighbours differ: a law that does not fit is no noise."""
    return float(np.sqrt(np.mean(np.diff(rest[len(rest) // 2 :]) ** 2) / 2.0))


def _shape(shares: Array, slope: float | Array) -> Array:
    """1 at the early share, 0 at the end."""
    shape: Array = (shares**-slope - 1.0) / (_EARLY**-slope - 1.0)
    return shape


@dataclass(frozen=True)
class CurveModel:
    """Trainings like those that were recorded."""

    laws: Sequence[PowerLaw]

    def draw(self, count: int, *, seed: int, scatter: float = 1.0) -> list[Curve]:
        """So many curves over one event in all; stretch them. The scatter of validations is that of the recorded ones times
        `scatter`: with n times the events in a validation, about n**-0.5."""
        random = np.random.default_rng(seed)
        table = np.array([[math.log(law.end), law.fall, law.slope, law.scatter] for law in self.laws])
        chosen = table[random.integers(len(table), size=count)]
        width = (
            table[:, :3].std(axis=0) * len(table) ** -0.2
        )  # as wide as a kernel estimate of the density has it (Scott)
        moved = chosen[:, :3] + random.normal(size=(count, 3)) * width
        end = np.exp(np.maximum(moved[:, 0], math.log(0.9) + table[:, 0].min()))  # none far below what was ever seen
        fall, slope = np.maximum(moved[:, 1], 0.0), np.clip(moved[:, 2], _SLOPES[0], _SLOPES[-1])
        values = end[:, None] + fall[:, None] * _shape(_SHARES, slope[:, None])
        values += random.normal(size=values.shape) * chosen[:, 3:] * scatter
        shares = _SHARES.tolist()
        return [Curve(shares, row) for row in values.tolist()]


def model_of(curves: Sequence[Curve]) -> CurveModel:
    """A model of recorded trainings. One needs more than three validations, with finite values above 0, or it is left out."""
    usable = [
        curve for curve in curves if len(curve.values) > 3 and all(0 < value < math.inf for value in curve.values)
    ]
    if len(usable) < 2:
        raise InputFileError(f"{len(usable)} curves with more than three validations are no model; give at least two")
    return CurveModel([fit(curve) for curve in usable])
