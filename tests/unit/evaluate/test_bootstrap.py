"""Intervals: the right weights, the right quantiles, and the right coverage."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringflow.evaluate.bootstrap import REPLICATES, Tally, estimate, event_weights, ratio, response_edges

EVENTS = np.arange(20_000)


def test_weights_are_poisson_of_mean_one() -> None:
    drawn = event_weights(EVENTS)[1:]
    assert drawn.shape == (REPLICATES, len(EVENTS))
    assert abs(drawn.mean() - 1.0) < 0.003
    assert abs(drawn.var() - 1.0) < 0.006
    shares = [(drawn == n).mean() for n in range(4)]
    assert np.allclose(shares, np.exp(-1) / np.array([1, 1, 2, 6]), atol=0.002)


def test_weights_of_events_and_replicates_are_independent() -> None:
    drawn = event_weights(EVENTS)[1:]
    assert abs(np.corrcoef(drawn[0], drawn[1])[0, 1]) < 0.03
    assert abs(np.corrcoef(drawn[5, :-1], drawn[5, 1:])[0, 1]) < 0.03
    assert len({row.tobytes() for row in drawn}) == REPLICATES


def test_weights_belong_to_the_event_number() -> None:
    assert np.array_equal(event_weights(EVENTS[100:120]), event_weights(EVENTS)[:, 100:120])
    assert (event_weights(EVENTS)[0] == 1).all()


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.integers(1, 59))
def test_a_tally_does_not_depend_on_how_events_are_cut(values: list[float], cut: int) -> None:
    events, entries = np.arange(len(values)), np.array(values)
    edges = np.linspace(0, 10, 21)
    whole, first, second = (Tally.empty(edges) for _ in range(3))
    whole.fill(event_weights(events), events, entries)
    first.fill(event_weights(events[:cut]), np.arange(len(events[:cut])), entries[:cut])
    second.fill(event_weights(events[cut:]), np.arange(len(events[cut:])), entries[cut:])
    first.add(second)
    assert np.array_equal(whole.counts, first.counts)
    assert whole.total()[0] == len(values)


def test_quantiles_are_those_of_the_entries() -> None:
    values = np.random.default_rng(1).normal(1.0, 0.1, 5000)
    tally = Tally.empty(response_edges(0.0, 3.0), rows=2)
    tally.fill(event_weights(EVENTS[:5000]), EVENTS[:5000], values, np.ones(5000, np.int64))
    fractions = (0.1, 0.25, 0.5, 0.9)
    assert np.allclose(tally.quantiles(fractions, 1)[:, 0], np.quantile(values, fractions), atol=0.001)
    assert np.isnan(tally.quantiles(fractions, 0)).all()


def test_what_is_exactly_one_stays_exactly_one() -> None:
    tally = Tally.empty(response_edges(0.0, 3.0))
    tally.fill(event_weights(EVENTS[:50]), EVENTS[:50], np.ones(50))
    low, middle, high = tally.quantiles((0.25, 0.5, 0.75))[:, 0]
    assert abs(middle - 1.0) < 1e-9
    assert high - low < 2e-5


def test_entries_outside_lie_on_the_edges() -> None:
    tally = Tally.empty(np.array([0.0, 1.0]))
    tally.fill(event_weights(EVENTS[:4]), EVENTS[:4], np.array([-5.0, -5.0, 7.0, 7.0]))
    assert tally.quantiles((0.1, 0.9))[:, 0].tolist() == [0.0, 1.0]


def test_edges_rise() -> None:
    for edges in (response_edges(0.0, 3.0), response_edges(0.5, 1.5), response_edges(0.0, 10.0)):
        assert (np.diff(edges) > 0).all()


def test_the_interval_covers_the_truth_two_times_in_three() -> None:
    """300 experiments of 200 events with four correlated entries each: the median is inside as often as it should be."""
    rng = np.random.default_rng(7)
    covered = 0
    for experiment in range(300):
        numbers = np.arange(200) + 200 * experiment
        values = rng.normal(1.0, 0.1, (200, 1)) + rng.normal(0.0, 0.05, (200, 4))
        tally = Tally.empty(response_edges(0.0, 3.0))
        tally.fill(event_weights(numbers), np.repeat(np.arange(200), 4), values.ravel())
        found = estimate(tally.quantiles((0.5,))[0])
        covered += found["lo"] < 1.0 < found["hi"]
    assert 0.60 < covered / 300 < 0.76


def test_what_has_no_figure_has_none() -> None:
    nothing = ratio(np.zeros(REPLICATES + 1), np.zeros(REPLICATES + 1))
    assert estimate(nothing) == {"value": None, "lo": None, "hi": None}
