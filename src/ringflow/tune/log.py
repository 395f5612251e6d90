"""The log of a study: rows in an SQLite file, of which the newest is on disk before anything follows from it.

    with StudyLog(folder / "study.db") as log:
        row = log.append("added", trial=0, point={...}, verdict="continue", until=1000, workers=1)

Nothing is ever changed or taken away. A study that was killed is what its log says.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ringflow.base.errors import FailureError, InputFileError
from ringflow.base.output import finite_or_null
from ringflow.tune.record import Row

LOG_FILE = "study.db"
_FORMAT = 1
_SECONDS_TO_WAIT = 10.0
_TABLE = (
    "CREATE TABLE IF NOT EXISTS log (number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, "
    "trial INTEGER NOT NULL, data TEXT NOT NULL)"
)


class StudyLog:
    """Rows of a study, to be read and added to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._errors():
            self._file = sqlite3.connect(path, timeout=_SECONDS_TO_WAIT, isolation_level=None)
            self._file.execute("PRAGMA synchronous = FULL")
            self._file.execute(_TABLE)
            self._file.execute(f"PRAGMA user_version = {_FORMAT}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def rows(self) -> list[Row]:
        """All that happened so far."""
        with self._errors():
            found = self._file.execute("SELECT number, time, kind, trial, data FROM log ORDER BY number").fetchall()
        return [_row(self.path, *columns) for columns in found]

    def append(self, kind: str, trial: int = -1, **data: Any) -> Row:
        """Add a row; it is on disk when this returns."""
        now, text = time.time(), json.dumps(finite_or_null(data), allow_nan=False)
        with self._errors():
            number = self._file.execute(
                "INSERT INTO log (time, kind, trial, data) VALUES (?, ?, ?, ?)", (now, kind, trial, text)
            ).lastrowid
        return Row(number or 0, now, kind, trial, json.loads(text))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with log_errors(self.path):
            yield


def read_rows(path: Path) -> list[Row]:
    """The rows of a log that others may be writing; nothing is changed."""
    if not path.is_file():
        raise InputFileError(f"{path} does not exist; give the folder of a study, as made by `ringflow tune`")
    with log_errors(path):
        file = sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True, timeout=_SECONDS_TO_WAIT)
        try:
            found = file.execute("SELECT number, time, kind, trial, data FROM log ORDER BY number").fetchall()
        finally:
            file.close()
    return [_row(path, *columns) for columns in found]


@contextmanager
def log_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite says into one line for the user."""
    try:
        yield
    except sqlite3.Error as error:
        said = str(error)
        if "locked" in said:
            raise FailureError(f"{path} is locked by another program; close it and run the command again") from None
        if "full" in said:
            raise FailureError(f"cannot write {path}: the disk is full; free some space and run it again") from None
        if "readonly" in said or "unable to open" in said:
            raise FailureError(f"cannot write {path} ({said}); choose another folder") from None
        raise InputFileError(
            f"{path} is damaged ({said}); put a copy of it back, or move it away and start the study again with "
            "--warm-start: the folders of its trials are untouched"
        ) from None


def _row(path: Path, number: int, time: float, kind: str, trial: int, data: str) -> Row:
    try:
        return Row(number, time, kind, trial, json.loads(data))
    except (ValueError, TypeError):
        raise InputFileError(f"{path} is damaged: row {number} cannot be read; put a copy of it back") from None
