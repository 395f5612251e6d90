from __future__ import annotations

import pytest

from ringflow.base.words import size_in_words, time_in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.42, "0.42 s"),
        (42.3, "42 s"),
        (59.7, "1 min 0 s"),
        (200, "3 min 20 s"),
        (18_720, "5 h 12 min"),
        (183_600, "2 d 3 h"),
    ],
)
def test_times_are_as_people_say_them(seconds: float, words: str) -> None:
    assert time_in_words(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (8123, "8.12 kB"), (999_999, "1 MB"), (120e6, "120 MB"), (1.2e9, "1.2 GB")],
)
def test_sizes_are_as_people_say_them(count: float, words: str) -> None:
    assert size_in_words(count) == words
