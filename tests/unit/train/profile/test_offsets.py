"""Clocks are compared by meetings that nobody leaves before everybody has come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringflow.train.profile.offsets import meet, offsets
from ringflow.train.profile.records import Meetings
from ringflow.train.team import ALONE

ROUND = st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 50), st.integers(1, 50))


def meetings(rounds: list[tuple[int, int, int, int]], skew: int, machines: tuple[str, str]) -> list[Meetings]:
    """Two processes that came so late to every round, and left so long after the last one had come."""
    came: tuple[list[int], list[int]] = ([], [])
    left: tuple[list[int], list[int]] = ([], [])
    for number, (first, second, slow, slower) in enumerate(rounds):
        start = 10_000 * number
        last = start + max(first, second)
        for rank, (here, out) in enumerate(((first, slow), (second, slower))):
            came[rank].append(start + here + skew * rank)
            left[rank].append(last + out + skew * rank)
    return [Meetings(machines[rank], tuple(came[rank]), tuple(left[rank])) for rank in range(2)]


@given(st.lists(ROUND, min_size=1, max_size=8), st.integers(-(10**9), 10**9))
def test_the_offset_is_within_its_error(rounds: list[tuple[int, int, int, int]], skew: int):
    first, second = offsets(meetings(rounds, skew, ("a", "b")))
    assert first.value == 0
    assert abs(second.value - skew) <= second.error + 1
    assert second.error <= 1050


def test_rounds_in_which_each_is_last_tell_it_well():
    _, second = offsets(meetings([(0, 900, 5, 5), (900, 0, 5, 5)], 123_456, ("a", "b")))
    assert abs(second.value - 123_456) <= second.error <= 5


def test_one_machine_has_one_clock_unless_it_cannot_be():
    _, same = offsets(meetings([(0, 7, 5, 9)], 0, ("a", "a")))
    assert same == (0, 0)
    _, unlike = offsets(meetings([(0, 7, 5, 9)], 10**6, ("a", "a")))
    assert abs(unlike.value - 10**6) <= unlike.error


def test_a_process_alone_need_not_meet():
    alone = meet(ALONE)
    assert alone.came == alone.left == ()
    assert offsets([alone])[0] == (0, 0)
