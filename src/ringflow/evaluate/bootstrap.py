"""Every figure with its interval: counts in fine bins, repeated for a hundred resampled sets of events.

In a Poisson bootstrap every event enters a replicate a Poisson(1) number of times. The numbers are a function of the event
number alone, so they do not depend on blocks, workers or the reconstruction: figures of two reconstructions fluctuate
together, and their ratio has an honest interval too. What is kept are weighted counts, so memory is flat in the number of
events. All weights are whole numbers: sums are exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from ringflow.evaluate.candidates import Floats, Integers

REPLICATES = 100
#: The central 68 % of the replicates.
INTERVAL = (0.15865, 0.84135)
_SEED = np.uint64(0x52494E47464C4F57)
_GOLDEN, _MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
#: Cumulative probabilities of 0, 1, 2, ... for a Poisson distribution of mean 1.
_POISSON_STEPS = np.cumsum(np.exp(-1.0) / np.cumprod([1.0, *np.arange(1.0, 18.0)]))


def event_weights(event_number: Integers) -> Floats:
    """Weight of every event: row 0 all ones (the data), then one row per replicate."""
    replicate = np.arange(REPLICATES, dtype=np.uint64)[:, np.newaxis]
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
class Tally:
    """Entries counted in `rows` x bins between `edges`, for the data and for every replicate.

    `counts` has the axes (row, bin, 1 + replicates); the first and the last bin hold what is below and above the edges.
    """

    edges: Floats
    counts: Floats

    @classmethod
    def empty(cls, edges: Floats, rows: int = 1) -> Tally:
        """Nothing counted yet."""
        return cls(edges, np.zeros((rows, len(edges) + 1, 1 + REPLICATES)))

    def fill(self, weights: Floats, event: Integers, values: Floats, row: Integers | None = None) -> None:
        """Count values that belong to events of a block, whose weights are the columns of `weights`."""
        rows, bins, _ = self.counts.shape
        place = np.searchsorted(self.edges, values, side="right")
        if row is not None:
            place = row * bins + place
        entries = csr_array((np.ones(len(place)), (place, event)), shape=(rows * bins, weights.shape[1]))
        filled = np.unique(place)
        self.counts.reshape(rows * bins, -1)[filled] += entries[filled] @ weights.T

    def add(self, other: Tally) -> None:
        """Add what was counted elsewhere."""
        self.counts += other.counts

    def total(self, row: int | None = None) -> Floats:
        """Entries in one row or in all, per replicate."""
        summed: Floats = self._of(row).sum(axis=0)
        return summed

    def quantiles(self, fractions: tuple[float, ...], row: int | None = None) -> Floats:
        """Quantiles (fraction, replicate) of one row or of all, linear within a bin; NaN where nothing was counted.

        What lies outside the edges counts as lying on them.
        """
        counts = self._of(row).T
        edges = np.concatenate([self.edges[:1], self.edges, self.edges[-1:]])
        cumulated = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1)], axis=1)
        result = np.full((len(fractions), len(counts)), np.nan)
        for replicate, steps in enumerate(cumulated):
            if steps[-1] > 0:
                result[:, replicate] = [_invert(steps, edges, fraction * steps[-1]) for fraction in fractions]
        return result

    def _of(self, row: int | None) -> Floats:
        summed: Floats = self.counts.sum(axis=0) if row is None else self.counts[row]
        return summed


def _invert(cumulated: Floats, edges: Floats, wanted: float) -> float:
    """Where a cumulated histogram reaches a value."""
    bin_ = int(np.searchsorted(cumulated, wanted, side="left")) - 1
    bin_ = min(max(bin_, 0), len(edges) - 2)
    inside = (wanted - cumulated[bin_]) / (cumulated[bin_ + 1] - cumulated[bin_])
    return float(edges[bin_] + inside * (edges[bin_ + 1] - edges[bin_]))


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


def response_edges(low: float, high: float) -> Floats:
    """Bins for a ratio that peaks at 1: 0.001 wide around it, wider far away, and a narrow one for what is exactly 1."""
    edges = np.concatenate(
        [
            np.arange(0.0, 0.8, 0.005),
            np.arange(0.8, 0.9995, 0.001),
            (1.0 - 1e-5, 1.0 + 1e-5),
            np.arange(1.001, 1.2, 0.001),
            np.arange(1.2, 2.0, 0.005),
            np.linspace(2.0, 10.0, 161),
        ]
    )
    return edges[(edges >= low - 1e-9) & (edges <= high + 1e-9)]
