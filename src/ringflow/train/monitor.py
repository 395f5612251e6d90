"""What a training shows while it runs: a line of history, TensorBoard files, and progress for people.

`history.jsonl` has one JSON object per line, of the kinds `train` (means over about a hundred steps) and `validation`.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter

from ringflow.base.log import interactive, say
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.base.words import time_in_words
from ringflow.train.checkpoint import TrainingState
from ringflow.train.runs import HISTORY_FILE
from ringflow.train.step import Record
from ringflow.train.validation import followed

TENSORBOARD_FOLDER = "tensorboard"
_STEPS_PER_LINE = 100
#: Without a terminal progress is a plain line every tenth of the training, or after so many seconds.
_SECONDS_BETWEEN_LINES = 30.0


class Monitor:
    """Writes down how a training goes, from a state on; what an earlier start wrote after that state is taken away."""

    def __init__(
        self, folder: Path, state: TrainingState, total_events: int, rules: Mapping[str, float | None] | None = None
    ) -> None:
        self._folder, self._total, self._rules = folder, total_events, rules or {}
        path = folder / HISTORY_FILE
        cut_history(path, state.step)
        with write_errors(folder):
            self._history = path.open("a", encoding="utf-8")
            self._board = self._begin_board(folder / TENSORBOARD_FOLDER, state.step)
        self._window: list[Record] = []
        self._line_events, self._line_seconds = state.events, state.step_seconds
        self._start: tuple[int, float] | None = None
        self._tenths, self._last_line = -1, time.monotonic()
        self._bar = _bar(total_events, state.events) if interactive() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._bar:
            self._bar.stop()
        # What is written last on a full disk fails as well; the first failure is the one to tell.
        with suppress(OSError) if error else write_errors(self._folder):
            try:
                self._board.close()
            finally:
                self._history.close()

    def steps(self, records: Sequence[Record], state: TrainingState, rate: float) -> None:
        """Take note of steps that were done; a line of history every hundred of them."""
        if not records:
            return
        self._window += records
        self._show_progress(records[-1].values["total"], state)
        if len(self._window) < _STEPS_PER_LINE:
            return
        names, count = self._window[0].values, len(self._window)
        means = {name: sum(record.values[name] for record in self._window) / count for name in names}
        seconds = state.step_seconds - self._line_seconds
        values: dict[str, float | None] = {
            "loss": means.pop("total"),
            "gradient": means.pop("gradient"),
            **{f"loss_{name}": value for name, value in means.items()},
            "rate": rate,
            "events_per_second": (state.events - self._line_events) / seconds if seconds > 0 else None,
            "padding_share": state.padding_share,
        }
        self._write("train", state, values)
        self._window.clear()
        self._line_events, self._line_seconds = state.events, state.step_seconds

    def validation(self, metrics: Mapping[str, float | None], state: TrainingState) -> None:
        """Write a line of a validation."""
        self._write("validation", state, metrics)
        events = f"{state.events:,}".rjust(len(f"{self._total:,}"))
        line = f"validation  {events} events  {followed(metrics, self._rules)}"
        if self._bar:
            self._bar.console.print(line, highlight=False, soft_wrap=True)  # above the bar
        else:
            say(line)

    def flush(self) -> None:
        """Make sure that what was written outlives the process."""
        with write_errors(self._folder):
            self._board.flush()

    def _begin_board(self, folder: Path, step: int) -> RecordWriter:
        """TensorBoard's file of numbers over steps, which hides what earlier files hold after a step.

        Written in place: a writer with a thread of its own would wait for ever once a disk is full.
        """
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        board = RecordWriter(str(folder / name))
        board.write(_event(file_version="brain.Event:2"))
        if step:
            board.write(_event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))
        return board

    def _write(self, kind: str, state: TrainingState, values: Mapping[str, float | None]) -> None:
        line = {"kind": kind, "step": state.step, "events": state.events, **values}
        with write_errors(self._folder):
            self._history.write(json.dumps(line, allow_nan=False) + "\n")
            self._history.flush()
            known = [Summary.Value(tag=f"{kind}/{name}", simple_value=x) for name, x in values.items() if x is not None]
            self._board.write(_event(step=state.step, summary=Summary(value=known)))

    def _show_progress(self, loss: float, state: TrainingState) -> None:
        text, done = f"loss {loss:.4f}", min(state.events, self._total)  # the last batch is shown whole
        if self._start is None:  # the first steps, in which things are compiled, tell nothing about speed
            self._start = (state.events, state.step_seconds)
        else:
            speed = (state.events - self._start[0]) / max(state.step_seconds - self._start[1], 1e-9)
            left = (self._total - done) / max(speed, 1e-9)
            text += f", {speed:,.0f} events/s, {time_in_words(left)} left"
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=state.events, description=text)
            return
        now, tenths = time.monotonic(), 10 * state.events // self._total
        if tenths > self._tenths >= 0 or now - self._last_line >= _SECONDS_BETWEEN_LINES:
            say(f"train: {done:,} of {self._total:,} events, {text}")
            self._last_line = now
        self._tenths = max(self._tenths, tenths)


def _event(**content: Any) -> bytes:
    written: bytes = Event(wall_time=time.time(), **content).SerializeToString()
    return written


def _bar(total: int, done: int) -> Any:
    """Progress as a bar, for a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("train"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=Console(stderr=True))
    bar.add_task("", total=total, completed=done)
    bar.start()
    return bar


def cut_history(path: Path, step: int) -> None:
    """Take away lines after a step, and what is left of a line that was cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(json.JSONDecodeError):
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    write_atomic(path, "".join(kept))
