"""Keeps `optuna.db` of a study up to date while it goes on, for `optuna-dashboard sqlite:///STUDY/optuna.db`.

    mirror = Mirror(folder)
    mirror.apply(rows)          # as they are appended to the log; returns at once
    mirror.close()

It works in a thread of its own and never disturbs the study: when something goes wrong with the file it says so in one line and
does nothing any more. All that is in the file is in the log as well, so that it can be made again at any time.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Iterable, Sequence

from ringflow.base.errors import FailureError, RingflowError
from ringflow.base.log import complain
from ringflow.launch.frameworks import one_line
from ringflow.tune.folder import OPTUNA_FILE, StudyFolder
from ringflow.tune.log import read_rows
from ringflow.tune.optuna_file import OptunaFile
from ringflow.tune.record import Row, StudyRecord

#: How long the end of a study waits for what is not yet in the file; the first time, Optuna itself takes seconds to load.
_SECONDS_TO_CLOSE = 60.0


class Mirror:
    """A thread that writes rows of the log into Optuna's file; without Optuna it does nothing."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self._queue: queue.SimpleQueue[Sequence[Row] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if _installed():
            self._thread = threading.Thread(target=self._work, name="optuna mirror", daemon=True)
            self._thread.start()

    def apply(self, rows: Iterable[Row]) -> None:
        """New rows of the log, in their order; rows that are known are passed over."""
        if self._thread is not None and self._thread.is_alive():
            self._queue.put(tuple(rows))

    def close(self, seconds: float = _SECONDS_TO_CLOSE) -> None:
        """Wait until all is written, but not for ever; safe to call twice."""
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            _complain(self._folder, f"not everything was written within {seconds:.0f} seconds")
        self._thread = None

    def _work(self) -> None:
        try:
            copy = _Copy(self._folder)
            try:
                more = True
                while more:
                    copy.catch_up()
                    more = self._take(copy)
                copy.catch_up()
            finally:
                copy.close()
        except Exception as error:  # whatever it is: the study is more important than its picture
            _complain(self._folder, _reason(error))

    def _take(self, copy: _Copy) -> bool:
        """Wait for rows and take all there are; False at the end."""
        batch = self._queue.get()
        while batch is not None:
            copy.take(batch)
            try:
                batch = self._queue.get_nowait()
            except queue.Empty:
                return True
        return False


def rebuild(folder: StudyFolder) -> int:
    """Make the file again from the log; how many trials are in it."""
    path = folder.path / OPTUNA_FILE
    try:
        for suffix in ("", "-journal"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        copy = _Copy(folder)
        try:
            copy.catch_up()
            return len(copy.record.trials)
        finally:
            copy.close()
    except (sqlite3.Error, OSError) as error:
        raise FailureError(f"{path} cannot be made: {_reason(error)}; the study itself is not touched") from None


class _Copy:
    """The record of a study, and the file that is behind it."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self.record = StudyRecord(folder.training.length.events)
        self._first, self._last = 0.0, 0
        self._changed: dict[int, None] = {}
        self._file = OptunaFile(folder)
        try:
            self._begin()
        except BaseException:
            self._file.close()
            raise

    def _begin(self) -> None:
        """Take what is in the log already, and find out how much of it the file has."""
        rows = read_rows(self._folder.log)
        row, first = self._file.mark
        self.take(rows)
        # A mark that does not fit is that of another study, or of a log that an older copy of it replaced.
        self._anew = row > self._last or (row > 0 and first != self._first)
        if not self._anew:
            self._changed = {changed.trial: None for changed in rows if changed.number > row and changed.trial >= 0}

    def take(self, rows: Iterable[Row]) -> None:
        """Learn of rows."""
        for row in rows:
            if row.number <= self._last:
                continue
            if row.number > self._last + 1:  # somebody else wrote to the log meanwhile
                self.take(missed for missed in read_rows(self._folder.log) if self._last < missed.number < row.number)
            self.record.apply(row)
            self._first, self._last = self._first or row.time, row.number
            if row.trial >= 0:
                self._changed[row.trial] = None

    def catch_up(self) -> None:
        """Write all that changed, in one go."""
        if self._anew or self._changed:
            trials = self.record.trials
            chosen = trials if self._anew else [trials[number] for number in sorted(self._changed)]
            self._file.write(chosen, (self._last, self._first), anew=self._anew)
            self._anew, self._changed = False, {}

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _installed() -> bool:
    from importlib.util import find_spec

    try:
        return find_spec("optuna") is not None
    except ValueError:  # it is there, but without a description
        return False


def _complain(folder: StudyFolder, reason: str) -> None:
    path = folder.path / OPTUNA_FILE
    complain(f"ringflow: {path} is not kept up to date any more: {reason}; the study goes on without it")


def _reason(error: Exception) -> str:
    """One line that says what to do about it."""
    said = one_line(str(error)) or type(error).__name__
    if isinstance(error, RingflowError):
        return said
    if "locked" in said:
        return "another program has locked it; close that, and remove the file to have it made again"
    if "full" in said or "No space" in said:
        return "the disk is full; free some space, and remove the file to have it made again"
    return f"{said}; remove the file to have it made again"
