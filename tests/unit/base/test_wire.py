"""What processes tell each other: every value comes back as it was, and what is something else is refused."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringflow.base.errors import FailureError, LostPeerError, StoppedError, UsageError
from ringflow.base.wire import MOST_BYTES, decode, encode


class Spot(NamedTuple):
    lane: int
    at: tuple[float, ...] = ()


@given(st.floats())
def test_numbers_come_back_bit_for_bit(number: float) -> None:
    made = decode(encode(number))
    assert math.isnan(made) if math.isnan(number) else struct.pack("d", made) == struct.pack("d", number)


@pytest.mark.parametrize(
    ("thing", "kind", "expected"),
    [
        (None, Any, None),
        (2**70, int, 2**70),
        ((1, "a", None), Any, [1, "a", None]),
        ({3: Spot(1, (0.1, math.inf))}, dict[int, Spot], {3: Spot(1, (0.1, math.inf))}),
        (Path("a") / "b", Path, Path("a/b")),
    ],
)
def test_what_was_asked_for_is_made(thing: object, kind: Any, expected: object) -> None:
    assert decode(encode(thing), kind) == expected


def test_an_error_comes_in_the_place_of_what_was_asked_for() -> None:
    class OfOneRoomError(UsageError):
        pass

    stopped, noted = StoppedError("told to"), LostPeerError("gone")
    stopped.exit_code = 130
    noted.add_note("more")
    one, two, three = (decode(encode(error), int) for error in (stopped, noted, OfOneRoomError("wrong")))
    assert (type(one), str(one), one.exit_code, one.told) == (StoppedError, "told to", 130, False)
    assert (type(two), two.__notes__) == (LostPeerError, ["more"])
    assert type(three) is UsageError


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"x", b"[", b"[1]", b"null", b"[null, null, null]", b'[null, "x"]', b"[" * 10**5, b"\x80\x04."),
        *(b'[["exit", "", 1, []], null]', b'[["annotations", "", 1, []], null]', b'[["UsageError", 1], null]'),
        b" " * (MOST_BYTES + 1),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_what_is_something_else_is_one_line(text: bytes) -> None:
    with pytest.raises(FailureError, match="another process says what cannot be understood") as refused:
        decode(text, int)
    assert "\n" not in str(refused.value)


def test_too_much_is_not_sent() -> None:
    with pytest.raises(FailureError, match="are more than processes may tell each other at once"):
        encode("x" * MOST_BYTES)
