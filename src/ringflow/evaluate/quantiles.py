"""Quantiles of histograms, and the median and relative width made from them, with their statistical uncertainty."""

from __future__ import annotations

from typing import Any, NamedTuple

import hist
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Correlation of the sample quartiles and the median: sqrt(p (1 - q) / (q (1 - p))) for p < q.
_CORRELATION = np.array([[1.0, 3**-0.5, 1 / 3], [3**-0.5, 1.0, 3**-0.5], [1 / 3, 3**-0.5, 1.0]])
_QUARTILES = np.array([0.25, 0.5, 0.75])


class Spread(NamedTuple):
    """Median and width of a distribution in every bin of another axis; nan where a bin has too few entries."""

    median: Floats
    median_error: Floats
    width: Floats  # (75 % - 25 % quantile) / median
    width_error: Floats
    entries: Floats


def quantiles(counts: npt.ArrayLike, edges: npt.ArrayLike, probabilities: npt.ArrayLike) -> Floats:
    """Quantiles of one binned distribution, entries spread evenly inside their bin.

    `counts` begins with the underflow and ends with the overflow, so it has one entry more than `edges`. A quantile that
    falls into them is the edge of the axis; without entries all are nan.
    """
    counts, edges = np.asarray(counts, dtype=np.float64), np.asarray(edges, dtype=np.float64)
    wanted = np.asarray(probabilities, dtype=np.float64)
    total = counts.sum()
    if total <= 0:
        return np.full(wanted.shape, np.nan)
    upto = np.cumsum(counts)
    rank = np.clip(wanted, 0.0, 1.0) * total
    # The first bin whose cumulative count reaches the rank; never an empty one, except for rank 0.
    place = np.minimum(np.searchsorted(upto, rank, side="left"), len(counts) - 1)
    inside = counts[place]
    fraction = np.divide(rank - (upto[place] - inside), inside, out=np.ones_like(rank), where=inside > 0)
    low = edges[np.maximum(place - 1, 0)]
    high = edges[np.minimum(place, len(edges) - 1)]
    result: Floats = low + np.clip(fraction, 0.0, 1.0) * (high - low)
    return result


def spread(histogram: hist.Hist[Any], axis: str, *, min_entries: int = 10) -> Spread:
    """Median and IQR/median along `axis`, in every bin of the one other axis (or once, if there is none).

    The uncertainty of a quantile is the distance to the quantiles one binomial standard deviation of its rank away, and that of
    the width follows with the correlation of order statistics. Entries count as independent.
    """
    names = [other.name for other in histogram.axes]
    along = names.index(axis)
    counts = np.moveaxis(histogram.values(flow=True), along, -1)
    if counts.ndim == 2:
        other = histogram.axes[1 - along]
        first = int(other.traits.underflow)
        counts = counts[first : first + other.size]
    elif counts.ndim != 1:
        raise ValueError(f"a spread needs one or two axes, not {names}")
    edges = histogram.axes[along].edges
    rows = [_spread_of(row, edges, min_entries) for row in np.atleast_2d(counts)]
    return Spread(*np.array(rows).reshape(-1, len(Spread._fields)).T)


def _spread_of(counts: Floats, edges: Floats, min_entries: int) -> Spread:
    entries = counts.sum()
    low, middle, high = quantiles(counts, edges, _QUARTILES)
    if entries < min_entries or not middle > 0:
        return Spread(*(np.array(np.nan),) * 4, np.array(entries))
    shift = np.sqrt(_QUARTILES * (1 - _QUARTILES) / entries)
    above, below = quantiles(counts, edges, _QUARTILES + shift), quantiles(counts, edges, _QUARTILES - shift)
    errors = (above - below) / 2
    covariance = _CORRELATION * np.outer(errors, errors)
    width = (high - low) / middle
    slope = np.array([-1.0, -width, 1.0]) / middle
    return Spread(middle, errors[1], width, np.sqrt(slope @ covariance @ slope), entries)
