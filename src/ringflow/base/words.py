"""Names, times and sizes as people say them, and nested values by dotted names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def time_in_words(seconds: float) -> str:
    """0.42 s, 42 s, 3 min 20 s, 5 h 12 min, 2 d 3 h."""
    whole = round(seconds)
    for unit, word, part, part_word in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            return f"{whole // unit} {word} {whole % unit // part} {part_word}"
    return f"{whole} s" if seconds >= 9.5 or not seconds else f"{seconds:.2g} s"


def size_in_words(count: float) -> str:
    """620 B, 8.1 kB, 120 MB, 1.2 GB."""
    for unit, word in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= 0.9995 * unit:
            return f"{count / unit:.3g} {word}"
    return f"{count:.0f} B"


_ABBREVIATIONS = {"cpu": "CPU", "mb": "MB", "iqr": "IQR", "num": "number of"}


def name_in_words(name: str) -> str:
    """`num_elements`: number of elements; a name with a dot is that of a setting, and stays."""
    return name if "." in name else " ".join(_ABBREVIATIONS.get(word, word) for word in name.split("_"))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The hint `did you mean 'this'? ` if something known is spelt alike, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values as (`section.name`, value)."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
