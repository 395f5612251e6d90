"""Ways in which a file is broken: by bytes, by the words of a text, by the values of a JSON or TOML document.

A mutation is plain data, so Hypothesis can choose, repeat and shrink it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
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
NUMBERS = (
    *("0", "1", "2", "3", "7", "-1", "-7", "0.5", "-0.5", "1e-9", "1e9", "-1e9", "1e30", "1e300", "1e-300", "-0.0"),
    *(
        "127",
        "128",
        "256",
        "65536",
        "2147483647",
        "2147483648",
        "9007199254740993",
        "9223372036854775808",
        "nan",
        "inf",
    ),
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


def change_number(content: bytes, change: Mutation) -> bytes:
    """Another number in the place of one: what follows it is still read."""
    numbers = list(re.finditer(rb"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])", content))
    if not numbers:
        return content
    number = numbers[_index(change.place, len(numbers))]
    return content[: number.start()] + NUMBERS[change.what % len(NUMBERS)].encode() + content[number.end() :]


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
TEXT = {
    **BYTES,
    "put_in": put_in,
    "replace_word": replace_word,
    "change_number": change_number,
    "swap_lines": swap_lines,
}
DOCUMENT = {**TEXT, "change_value": change_value}


def mutations(ways: dict[str, Callable[[bytes, Mutation], bytes]]) -> st.SearchStrategy[list[Mutation]]:
    """One to three changes."""
    share = st.floats(0.0, 1.0, exclude_max=True)
    # What stays readable gets furthest.
    deep = [way for way in ("change_value", "change_number") if way in ways]
    change = st.builds(Mutation, st.sampled_from([*ways, *3 * deep]), share, share, st.integers(0, 4095))
    return st.lists(change, min_size=1, max_size=3)


def edit(content: bytes, case: Mapping[str, Any]) -> bytes:
    """What a case of the corpus makes of a good file: other `content`, texts to `replace`, values to `set` in a JSON document
    by their path, `cut` bytes at the end, and `changes` as a fuzzer found them."""
    content = case.get("content", "").encode() or content
    for before, after in case.get("replace", ()):
        assert before.encode() in content, f"no {before!r} to replace"
        content = content.replace(before.encode(), after.encode() * case.get("times", 1), 1)
    for path, value in case.get("set", {}).items():
        document = holder = json.loads(content)
        *keys, last = (int(key) if key.isdecimal() else key for key in path.split("/"))
        for key in keys:
            holder = holder[key]
        if value == "missing":
            del holder[last]
        else:
            holder[last] = json.loads(value)
        content = json.dumps(document).encode()
    content = content[: len(content) - case.get("cut", 0)]
    return apply(content, [Mutation(*change) for change in case.get("changes", ())])


def apply(content: bytes, changes: Sequence[Mutation]) -> bytes:
    """The content with all changes, one after the other."""
    for change in changes:
        content = DOCUMENT[change.how](content, change)
    return content
