"""Every figure with its interval: counts, and values one by one, repeated for a hundred resampled sets of events.

In a Poisson bootstrap every event enters a replicate a Poisson(1) number of times. The numbers are a function of the event
number alone, so they do not depend on blocks, workers or the reconstruction: figures of two reconstructions fluctuate
together, and their ratio has an honest interval too. All weights are whole numbers: sums are exact in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ringflow.evaluate.momenta import Floats, Integers, Mask

REPLICATES = 100
#: Values of one quantity that are kept, e.g. the responses of all particles of 50,000 ttbar events.
MOST_ENTRIES = 5_000_000
#: The central 68 % of the replicates.
INTERVAL = (0.15865, 0.84135)
_SEED = np.uint64(0x52494E47464C4F57)
_GOLDEN, _MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
#: Cumulative probabilities of 0, 1, 2, ... for a Poisson distribution of mean 1.
_POISSON_STEPS = np.cumsum(np.exp(-1.0) / np.cumprod([1.0, *np.arange(1.0, 18.0)]))


def event_weights(event_number: Integers, replicates: int = REPLICATES) -> Floats:
    """Weight of every event: row 0 all ones (the data), then one row per replicate."""
    replicate = np.arange(replicates, dtype=np.uint64)[:, np.newaxis]
    counter = event_number.astype(np.uint64) * np.uint64(REPLICATES) + replicate
    uniform = (_scramble(counter) >> np.uint64(11)) * 2.0**-53
    drawn = np.searchsorted(_POISSON_STEPS, uniform.ravel(), side="right").reshape(uniform.shape)
    return np.concatenate([np.ones((1, len(event_number))), drawn])


def _scramble(counter: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """64 random bits of a counter: splitmix64 [Steele, Lea, Flood 2014]."""
    state = _SEED + (counter + np.uint64(1)) * _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


@dataclass
class Entries:
    """Single values, which quantiles are taken of: bins would make narrow distributions wider.

    `event` is the number of the event, `row` the class, bin or name that a value belongs to. Of too many values those of half
    of the events are kept, then of a quarter, and so on: 14 bytes for each of at most `MOST_ENTRIES`. Which events these are is
    a matter of their numbers alone, so it depends on neither blocks nor workers.
    """

    replicates: int = REPLICATES
    event: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    value: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    row: npt.NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))
    halvings: int = 0

    def __len__(self) -> int:
        return len(self.value)

    def fill(self, event_number: Integers, values: Floats, row: Integers | None = None) -> None:
        """Take values that belong to the events of these numbers, one by one."""
        rows = np.zeros(len(values), np.int16) if row is None else row.astype(np.int16)
        self.add(Entries(self.replicates, event_number, values.astype(np.float32), rows))

    def add(self, other: Entries) -> None:
        """Add what was taken elsewhere."""
        self.event = np.concatenate([self.event, other.event])
        self.value = np.concatenate([self.value, other.value])
        self.row = np.concatenate([self.row, other.row])
        self._thin(max(self.halvings, other.halvings))
        while len(self) > MOST_ENTRIES:
            self._thin(self.halvings + 1)
        self.__dict__.pop("_drawn", None)

    def samples(self, chosen: Mask | None = None) -> tuple[Floats, Iterator[npt.NDArray[np.uint8]]]:
        """The values, or the chosen ones, in rising order; and how often the data and every replicate have each of them."""
        order, place, weights = self._drawn
        if chosen is not None:
            order, place = order[chosen[order]], place[chosen[order]]
        return self.value[order].astype(np.float64), (weight[place] for weight in weights)

    def quantiles(self, fractions: tuple[float, ...], chosen: Mask | None = None) -> Floats:
        """Quantiles (fraction, 1 + replicates) of all values or of the chosen ones; NaN where there are none."""
        value, often = self.samples(chosen)
        return np.array([_quantiles(value, np.cumsum(times, dtype=np.int64), fractions) for times in often]).T

    @cached_property
    def _drawn(self) -> tuple[Integers, Integers, npt.NDArray[np.uint8]]:
        """Places of the values in rising order, of their events among all events, and how often each event was drawn."""
        order = np.argsort(self.value)
        numbers, place = np.unique(self.event[order], return_inverse=True)
        return order, place, event_weights(numbers, self.replicates).astype(np.uint8)

    def _thin(self, halvings: int) -> None:
        if halvings:
            kept = _scramble(self.event.astype(np.uint64)) < np.uint64(2 ** (64 - halvings))
            self.event, self.value, self.row = self.event[kept], self.value[kept], self.row[kept]
            self.halvings = halvings


def _quantiles(ordered: Floats, upto: Integers, fractions: tuple[float, ...]) -> Floats:
    """Linear between neighbours, as numpy does it, of values of which each counts so often that these are its ranks."""
    if not len(upto) or not upto[-1]:
        return np.full(len(fractions), np.nan)
    rank = np.array(fractions) * (upto[-1] - 1)
    whole = rank.astype(np.int64)
    below, above = ordered[np.searchsorted(upto, [whole, np.minimum(whole + 1, upto[-1] - 1)], side="right")]
    found: Floats = below + (rank - whole) * (above - below)
    return found


def estimate(replicates: Floats) -> dict[str, float | None]:
    """The figure of the data (element 0) and the central 68 % of the replicates; None where there is no figure."""
    value = float(replicates[0])
    others = replicates[1:][np.isfinite(replicates[1:])]
    if not np.isfinite(value) or not len(others):
        return {"value": value if np.isfinite(value) else None, "lo": None, "hi": None}
    lo, hi = np.quantile(others, INTERVAL)
    return {"value": value, "lo": float(lo), "hi": float(hi)}


def ratio(above: Floats, below: Floats) -> Floats:
    """Element by element, NaN where the denominator is zero."""
    quotient: Floats = np.full(above.shape, np.nan)
    return np.divide(above, below, out=quotient, where=below != 0)
