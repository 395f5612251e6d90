"""Lines of the text files of generators: numbers as they may be written, and what is said of a wrong line."""

from __future__ import annotations

from typing import NoReturn

from ringflow.base.errors import InputFileError

#: Possessive, and of bounded length: a line that does not match costs no more than one that does.
NUMBER = rb"[-+]?(?:\d{1,40}+(?:\.\d{0,40}+)?|\.\d{1,40}+)(?:[eE][-+]?\d{1,9}+)?"
INTEGER = rb"-?\d{1,10}+"
FETCH_AGAIN = "make or copy the file again"


def refuse_line(text: bytes, where: str, line: int, place: int, why: str) -> NoReturn:
    """An error about the line at a place in the text of an event, or behind the line break there; `line` is the number of the
    event's first line in the file."""
    place += text.startswith(b"\n", place)
    number, value = line + text.count(b"\n", 0, place), text[place:].partition(b"\n")[0]
    raise InputFileError(f"{where} is damaged: {why} in line {number}, {shown(value)}; {FETCH_AGAIN}")


def shown(line: bytes) -> str:
    """The beginning of a line, for a message."""
    text = line[:80].decode("ascii", errors="backslashreplace").rstrip()
    return repr(text) + ("..." if len(line) > 80 else "")
