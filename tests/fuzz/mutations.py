"""Ways in which a file is broken: by bytes, by the words of a text, by the values of a JSON or TOML document.

A mutation is plain data, so Hypothesis can choose, repeat and shrink it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

#: Words and values that programs choke on.
WORDS = (
    *("", "-1", "0", "1e999", "-1e999", "nan", "NaN", "inf", "null", "true", "[]", "{}", '""', "99999999999999999999"),
    *(
        "9223372036854775807",
        "-2147483649",
        "1" * 5000,
        "../../outside",
        "/etc/passwd",
        "\x1b[31mred\x1b[0m",
        "\u202e",
        "\x00",
    ),
    *("ä" * 300, "'", '"', "\\", "\n", "[" * 2000, "{" * 2000, "%s%n", "0x10", "1_000", "٣", "1.5.5", "--help"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, -0.0, 0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "../../outside", "/etc/passwd", "\x1b[2J", "ä" * 300, "\x00", "f" * 64, "nan", "1e9"),
    *([], {}, [[]], [None], {"": None}, [1] * 300, {"a": {"a": {"a": {}}}}, ["x", 1, None]),
)


class Mutation(NamedTuple):
    """One change: how, at which share of the file, how far from there, and with what."""

    how: str
    place: float
    extent: float
    what: int


def flip(content: bytes, change: Mutation) -> bytes:
    """One bit is another."""
    at = _index(change.place, len(content))
    return content[:at] + bytes([content[at] ^ 1 << change.what % 8]) + content[at + 1 :] if content else content


def overwrite(content: bytes, change: Mutation) -> bytes:
    """Some bytes are one byte, the file as long as before."""
    start, end = _span(content, change, 64)
    return content[:start] + bytes([change.what % 256]) * (end - start) + content[end:]


def cut(content: bytes, change: Mutation) -> bytes:
    """The end is missing."""
    return content[: _index(change.place, len(content))]


def leave_out(content: bytes, change: Mutation) -> bytes:
    """Some bytes are missing."""
    start, end = _span(content, change, 64)
    return content[:start] + content[end:]


def repeat(content: bytes, change: Mutation) -> bytes:
    """A part stands there twice."""
    start, end = _span(content, change, 2048)
    return content[:end] + content[start:end] + content[end:]


def put_in(content: bytes, change: Mutation) -> bytes:
    """A word where there was none."""
    at = _index(change.place, len(content))
    return content[:at] + WORDS[change.what % len(WORDS)].encode() + content[at:]


def replace_word(content: bytes, change: Mutation) -> bytes:
    """Another word in the place of one."""
    words = list(re.finditer(rb"[\w.+-]+", content))
    if not words:
        return content
    word = words[_index(change.place, len(words))]
    return content[: word.start()] + WORDS[change.what % len(WORDS)].encode() + content[word.end() :]


def swap_lines(content: bytes, change: Mutation) -> bytes:
    """Two lines in each other's place."""
    lines = content.splitlines(keepends=True)
    first, second = _index(change.place, len(lines)), _index(change.extent, len(lines))
    if lines:
        lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


def change_value(content: bytes, change: Mutation) -> bytes:
    """Another value somewhere in a JSON document, or one that is missing; other files as they are."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return content
    places = list(_places(document))
    if not places:
        return content
    holder, key = places[_index(change.place, len(places))]
    choice = change.what % (len(VALUES) + 1)
    if choice == len(VALUES):
        del holder[key]
    else:
        holder[key] = VALUES[choice]
    return json.dumps(document).encode()


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


def _index(share: float, length: int) -> int:
    return min(int(share * length), max(length - 1, 0))


def _span(content: bytes, change: Mutation, most: int) -> tuple[int, int]:
    start = _index(change.place, len(content))
    return start, min(start + 1 + int(change.extent * most), len(content))


BYTES: dict[str, Callable[[bytes, Mutation], bytes]] = {
    "flip": flip,
    "overwrite": overwrite,
    "cut": cut,
    "leave_out": leave_out,
    "repeat": repeat,
}
TEXT = {**BYTES, "put_in": put_in, "replace_word": replace_word, "swap_lines": swap_lines}
DOCUMENT = {**TEXT, "change_value": change_value}


def mutations(ways: dict[str, Callable[[bytes, Mutation], bytes]]) -> st.SearchStrategy[list[Mutation]]:
    """One to three changes."""
    share = st.floats(0.0, 1.0, exclude_max=True)
    change = st.builds(Mutation, st.sampled_from(list(ways)), share, share, st.integers(0, 4095))
    return st.lists(change, min_size=1, max_size=3)


def apply(content: bytes, changes: Sequence[Mutation]) -> bytes:
    """The content with all changes, one after the other."""
    for change in changes:
        content = DOCUMENT[change.how](content, change)
    return content
