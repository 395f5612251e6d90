"""What a command ends with: JSON on stdout or tables on stderr; then what it made and what to try next."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.log import say, speaks, table


def print_json(value: object) -> None:
    """The only thing that ever goes to stdout; a number that is not finite becomes null, which every reader takes."""
    if speaks():
        print(json.dumps(finite_or_null(value), indent=2, default=str, allow_nan=False))


def show_rows(title: str, rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> int:
    """Rows of a check; a column `ok` is shown as PASS or FAIL. The exit code: 1 if one of them fails."""
    if as_json:
        print_json(rows)
    elif rows:
        columns = ["verdict" if name == "ok" else name for name in rows[0]]
        table(title, columns, [[_cell(name, value) for name, value in row.items()] for row in rows])
    failed = sum(not row["ok"] for row in rows)
    say(f"{len(rows) - failed} of {len(rows)} passed")
    return int(failed > 0)


def show_summary(title: str, summary: Mapping[str, Any], *, as_json: bool) -> None:
    """Named values; those of a section are named `section.value`."""
    if as_json:
        print_json(summary)
    else:
        table(title, ("quantity", "value"), [(name, _word(value)) for name, value in _flat(summary)])


def finish(made: Path | None, next_command: str) -> None:
    """The last lines of a command."""
    if made is not None:
        say(f"made: {made}")
    say(f"next: {next_command}")


def _flat(summary: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    lines: list[tuple[str, object]] = []
    for name, value in summary.items():
        lines += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, value)]
    return lines


def finite_or_null(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them, however deep."""
    if isinstance(value, Mapping):
        return {key: finite_or_null(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_or_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _word(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_word, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(name: str, value: object) -> str:
    return ("PASS" if value else "FAIL") if name == "ok" else _word(value)
