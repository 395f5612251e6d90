"""What a command ends with: JSON on stdout or tables on stderr; then what it made and what to try next."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ringflow.base.log import say, speaks, table
from ringflow.base.words import name_in_words, size_in_words, time_in_words

R = TypeVar("R")


def print_json(value: object) -> None:
    """The only thing that ever goes to stdout; a number that is not finite becomes null, which every reader takes."""
    if speaks():
        print(json.dumps(finite_or_null(value), indent=2, default=str, allow_nan=False))


def print_line(value: object) -> None:
    """One line of JSON on stdout, which a program can read while a server runs."""
    print(json.dumps(value), flush=True)


def show_or_print(result: R, show: Callable[[R], object], *, as_json: bool) -> None:
    """The result as JSON, or as it is shown to people."""
    if as_json:
        print_json(result)
    else:
        show(result)


def show_table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Some columns of rows, all of the first row unless named; nothing if there are no rows."""
    if rows:
        names = columns or list(rows[0])
        table(title, names, [[word(row.get(name)) for name in names] for row in rows])


def show_rows(title: str, rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> int:
    """Rows of a check; a column `ok` is shown as PASS or FAIL, None as no verdict. The exit code: 1 if one of them fails."""
    if as_json:
        print_json(rows)
    elif rows:
        columns = ["verdict" if name == "ok" else name for name in rows[0]]
        table(title, columns, [[_cell(name, value) for name, value in row.items()] for row in rows])
    judged = [row["ok"] for row in rows if row["ok"] is not None]
    failed = judged.count(False)
    say(f"{len(judged) - failed} of {len(judged)} passed")
    return int(failed > 0)


def show_summary(title: str, summary: Mapping[str, Any], *, as_json: bool) -> None:
    """Named values; people read names, times and sizes in words, and those of a section as `section: value`."""
    if as_json:
        print_json(summary)
    else:
        table(title, ("quantity", "value"), _lines(summary))


def finish(made: Path | None, *next_command: object) -> None:
    """The last lines of a command: what it made, and what to try next, as one text or as words that a shell takes."""
    if made is not None:
        say(f"made: {made}")
    say(f"next: {next_command[0] if len(next_command) == 1 else shlex.join(map(str, next_command))}")


def _lines(summary: Mapping[str, Any], section: str = "") -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for name, value in summary.items():
        if isinstance(value, Mapping):
            lines += _lines(value, f"{section}{name_in_words(name)}: ")
            continue
        measured, said = name_in_words(name), word(value)
        for ending, quantity, words in (("bytes", "size", size_in_words), ("seconds", "time", time_in_words)):
            if measured.endswith(ending) and isinstance(value, (int, float)):
                measured, said = measured.removesuffix(ending) + quantity, words(value)
        lines.append((section + measured, said))
    return lines


def finite_or_null(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them, however deep."""
    if isinstance(value, Mapping):
        return {key: finite_or_null(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_or_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def word(value: object) -> str:
    """A value as people read it."""
    match value:
        case Mapping():
            return " ".join(f"{name_in_words(name)} {word(inner)}" for name, inner in value.items())
        case list() | tuple():
            return ", ".join(map(word, value))
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"
    return "-" if value is None else str(value)


def _cell(name: str, value: object) -> str:
    verdict = "-" if value is None else "PASS" if value else "FAIL"
    return verdict if name == "ok" else word(value)
