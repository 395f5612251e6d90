"""Intervals: the right weights, the right quantiles, and the right coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringflow.evaluate import bootstrap
from ringflow.evaluate.bootstrap import REPLICATES, Entries, estimate, event_weights

EVENTS = np.arange(20_000)


def test_weights_are_poisson_of_mean_one_and_independent() -> None:
    drawn = event_weights(EVENTS)[1:]
    assert drawn.shape == (REPLICATES, len(EVENTS))
    assert (drawn.mean(), drawn.var()) == (pytest.approx(1.0, abs=0.003), pytest.approx(1.0, abs=0.006))
    shares = [(drawn == n).mean() for n in range(4)]
    assert np.allclose(shares, np.exp(-1) / np.array([1, 1, 2, 6]), atol=0.002)
    assert abs(np.corrcoef(drawn[0], drawn[1])[0, 1]) < 0.03
    assert abs(np.corrcoef(drawn[5, :-1], drawn[5, 1:])[0, 1]) < 0.03
    assert len({row.tobytes() for row in drawn}) == REPLICATES
    assert np.array_equal(event_weights(EVENTS[100:120])[1:], drawn[:, 100:120])  # they belong to the event number


def test_quantiles_are_those_of_the_entries() -> None:
    values = np.random.default_rng(1).normal(1.0, 0.1, 5000)
    entries = Entries()
    entries.fill(EVENTS[:5000], values, np.ones(5000, np.int64))
    fractions = (0.1, 0.25, 0.5, 0.9)
    assert np.allclose(entries.quantiles(fractions)[:, 0], np.quantile(values, fractions), atol=1e-6)
    drawn = np.repeat(values, event_weights(EVENTS[:5000])[7].astype(int))
    assert np.allclose(entries.quantiles(fractions, entries.row == 1)[:, 7], np.quantile(drawn, fractions), atol=1e-6)
    nothing = entries.quantiles(fractions, entries.row == 0)
    assert np.isnan(nothing).all()
    assert estimate(nothing[0]) == {"value": None, "lo": None, "hi": None}


@given(st.integers(1, 199), st.sampled_from([1, 7, 40]))
def test_entries_do_not_depend_on_how_events_are_cut(cut: int, most: int) -> None:
    """Not even where there are too many, and those of some events are left out."""
    numbers = np.repeat(np.arange(50), 4)
    values = np.random.default_rng(3).normal(1.0, 0.1, 200)
    whole, first, second = Entries(), Entries(), Entries()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bootstrap, "MOST_ENTRIES", most)
        whole.fill(numbers, values)
        first.fill(numbers[cut:], values[cut:])
        second.fill(numbers[:cut], values[:cut])
        first.add(second)
    assert len(whole) <= most
    assert np.array_equal(np.sort(whole.value), np.sort(first.value))
    assert all((whole.event == number).sum() == 4 for number in whole.event)  # an event stays whole


def test_the_interval_covers_the_truth_two_times_in_three() -> None:
    """300 experiments of 200 events with four correlated entries each: the median is inside as often as it should be."""
    rng = np.random.default_rng(7)
    covered = 0
    for experiment in range(300):
        numbers = np.arange(200) + 200 * experiment
        values = rng.normal(1.0, 0.1, (200, 1)) + rng.normal(0.0, 0.05, (200, 4))
        entries = Entries()
        entries.fill(np.repeat(numbers, 4), values.ravel())
        found = estimate(entries.quantiles((0.5,))[0])
        covered += found["lo"] < 1.0 < found["hi"]
    assert 0.60 < covered / 300 < 0.76
