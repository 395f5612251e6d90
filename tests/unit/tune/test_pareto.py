"""The front of several objectives, and what it dominates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringflow.tune.best import front_of, hypervolume, non_dominated
from ringflow.tune.record import Reported, State, TrialRecord

Rows = st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=12)


def trial(number: int, loss: float, cost: float | None = None, state: State = "complete") -> TrialRecord:
    figures = {"loss": loss, "jet_iqr_over_median": loss / 10} | ({"cpu_ms": cost} if cost is not None else {})
    return TrialRecord(number, {}, 0.0, state, reports=[Reported(10, loss, figures, 1, 1.0, "stop")])


@given(Rows)
def test_no_other_row_beats_one_of_the_front(rows: list[tuple[int, int, int]]) -> None:
    front = non_dominated(rows)

    def beats(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return one != other and all(a <= b for a, b in zip(one, other, strict=True))

    for index, row in enumerate(rows):
        beaten = any(beats(other, row) for other in rows)
        first = rows.index(row) == index
        assert (index in front) == (not beaten and first)


@given(Rows)
def test_the_volume_is_that_of_all_cells_that_are_dominated(rows: list[tuple[int, int, int]]) -> None:
    cells = np.stack(np.meshgrid(*[np.arange(6)] * 3, indexing="ij"), -1).reshape(-1, 3)
    dominated = np.any([(cells >= row).all(axis=1) for row in rows], axis=0).sum()
    assert hypervolume(rows, (6, 6, 6)) == pytest.approx(dominated)


def test_rows_beyond_the_reference_dominate_nothing() -> None:
    assert hypervolume([(1, 5), (3, 3)], (4, 4)) == pytest.approx(1.0)
    assert hypervolume([(5, 5)], (4, 4)) == 0.0


def test_the_front_of_trials_goes_from_the_best_to_the_cheapest() -> None:
    trials = [trial(0, 3.0, 9.0), trial(1, 2.0, 10.0), trial(2, 4.0, 1.0, "stopped"), trial(3, 4.0, 9.5)]
    front = front_of(trials, ("loss", "cpu_ms"))
    assert [found.number for found in front.trials] == [1, 0, 2]
    assert front.values.tolist() == [[2.0, 10.0], [3.0, 9.0], [4.0, 1.0]]
    # Of a box of 2 by 9, scaled to 1 by 1: from loss 3 on all that costs more than 9.
    assert front.hypervolume == pytest.approx(0.5 * (1 / 9))
    assert front.compared == 4


def test_trials_without_all_values_are_not_compared() -> None:
    trials = [trial(0, math.nan, 1.0), trial(1, 1.0), trial(2, 2.0, 2.0)]
    assert [found.number for found in front_of(trials, ("loss", "cpu_ms")).trials] == [2]
    assert front_of(trials[:2], ("loss", "cpu_ms")).trials == []
    assert front_of([], ("loss", "cpu_ms")).hypervolume == 0.0


def test_objectives_are_found_by_their_short_names() -> None:
    assert trial(0, 2.0, 3.0).values(("loss", "jets", "cpu_ms")) == [2.0, 0.2, 3.0]
    assert math.isnan(TrialRecord(0, {}).values(("loss",))[0])
