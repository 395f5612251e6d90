"""What people read: lines, tables and progress, always on stderr, because stdout belongs to `--json`.

On a terminal they are drawn with rich. In a batch job, a CI job or a pipe they are plain lines, and few of them. What comes
from files, arguments and other processes never steers the terminal: see `printable`.
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ringflow.base.words import name_in_words

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

#: Set by batch systems and CI services; a terminal there is nobody's.
BATCH_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "CI")

_VERDICT_STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red"}

SECONDS_BETWEEN_LINES = 30.0

Advance = Callable[[int], None]


def interactive() -> bool:
    """Whether a person is watching."""
    return sys.stderr.isatty() and not any(os.environ.get(name) for name in BATCH_VARIABLES)


def speaks() -> bool:
    """Whether this process speaks for those that were started with it."""
    return os.environ.get("RANK", "0") == "0"


def printable(text: str) -> str:
    """The text with control characters, and those that turn around how it reads, as escapes: `\\x1b[31m`; lines stay lines."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character in "\n\t" or (unicodedata.category(character)[0] != "C" and character not in "\u2028\u2029"):
        return character
    return character.encode("unicode_escape").decode()


def console() -> Console:
    """Where rich draws: on stderr, and of what it is given nothing is markup and everything printable."""
    from rich.console import Console
    from rich.segment import Segment

    class _Terminal(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else printable(text), style, control)

    return _Terminal(stderr=True, markup=False, emoji=False)


def say(text: str) -> None:
    """Write one line for people; of several processes that work together only the first does."""
    if speaks():
        print(printable(text), file=sys.stderr, flush=True)


def complain(text: str) -> None:
    """Write one line about what went wrong; every process does, and says which it is."""
    text = " ".join(text.split())
    print(printable(text if speaks() else f"{text} (process {os.environ['RANK']})"), file=sys.stderr, flush=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Show rows under a title, its columns named in words; PASS, WARN and FAIL are coloured on a terminal."""
    columns = [name_in_words(column) for column in columns]
    cells = [[printable(" ".join(str(cell).splitlines())) for cell in row] for row in rows]
    if interactive():
        from rich.table import Table
        from rich.text import Text

        drawn = Table(title=title, title_justify="left", title_style="bold")
        for column in columns:
            drawn.add_column(column, overflow="fold")
        for row in cells:
            drawn.add_row(*(Text(cell, style=_VERDICT_STYLES.get(cell, "")) for cell in row))
        console().print(drawn)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    say(title)
    for row in [columns, *cells]:
        say("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@contextmanager
def progress(total: int, what: str) -> Iterator[Advance]:
    """Gives a call that counts steps: a bar on a terminal, a line every tenth or every half minute elsewhere."""
    if interactive():
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console()) as bar:
            task = bar.add_task(what, total=total)
            yield lambda steps: bar.advance(task, steps)
        return
    done, tenths_said, last_line = 0, 0, time.monotonic()

    def advance(steps: int) -> None:
        nonlocal done, tenths_said, last_line
        done += steps
        tenths = 10 * done // total if total else 10
        if tenths > tenths_said or time.monotonic() - last_line >= SECONDS_BETWEEN_LINES:
            say(f"{what}: {done}/{total}")
            tenths_said, last_line = tenths, time.monotonic()

    yield advance
