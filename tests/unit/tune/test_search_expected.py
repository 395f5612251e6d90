"""Trials that were stopped are compared with those that went on by what they would have come to."""

from __future__ import annotations

import math

import pytest

from ringflow.tune.schedulers import Finished
from ringflow.tune.search.expected import expected_ends


def trial(*path: tuple[int, float], complete: bool = False) -> Finished:
    (resource, value), earlier = path[-1], path[:-1]
    return Finished(0, {}, value, resource, complete, earlier)


def test_one_that_was_let_through_early_is_not_better_than_a_good_one_that_was_stopped() -> None:
    lucky = trial((100, 6.0), (400, 4.0), (1600, 2.0), complete=True)
    good = trial((101, 3.0), (404, 1.8), (1600, 1.2), complete=True)
    stopped, stopped_early = trial((100, 3.0), (400, 2.0)), trial((100, 3.2))
    ends = expected_ends([lucky, good, stopped, stopped_early])
    assert ends[:2] == [2.0, 1.2]
    assert ends[2] == pytest.approx(2.0 * 0.633, rel=0.01)  # between 2 / 4 and 1.2 / 1.8, nearer to the worse
    assert 1.2 < ends[2] < ends[3] < 2.0


def test_where_it_was_stopped_between_two_reports_of_another() -> None:
    other = trial((100, 4.0), (1600, 1.0), complete=True)
    assert expected_ends([other, trial((400, 2.0))])[1] == pytest.approx(2.0 * 1.0 / 2.5)


def test_nobody_went_further() -> None:
    paths = [trial((100, 3.0)), trial((103, 2.0)), trial((100, 4.0), (400, 2.0), complete=True)]
    assert expected_ends(paths[:2]) == [3.0, 2.0]
    assert expected_ends([paths[2]]) == [2.0]


def test_a_diverged_trial_has_no_end_and_teaches_nothing() -> None:
    ends = expected_ends([trial((100, 3.0), (400, math.nan)), trial((100, 5.0), (400, 2.5)), trial((100, 4.0))])
    assert math.isnan(ends[0])
    assert ends[1:] == [2.5, 2.0]


def test_values_below_zero_are_taken_as_they_are() -> None:
    assert expected_ends([trial((100, 1.0), (400, -1.0)), trial((100, 2.0))]) == [-1.0, 2.0]
