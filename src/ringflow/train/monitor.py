"""What a training shows while it runs: a line of history, TensorBoard files, and progress for people.

`history.jsonl` has one JSON object per line, of the kinds `train` (means over about a hundred steps) and `validation`.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ringflow.base.log import interactive, say
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.base.words import time_in_words
from ringflow.train.checkpoint import TrainingState
from ringflow.train.runs import HISTORY_FILE
from ringflow.train.step import Record
from ringflow.train.validation import Rules, followed

TENSORBOARD_FOLDER = "tensorboard"
_STEPS_PER_LINE = 100


class Monitor:
    """Writes down how a training goes, from a state on; what an earlier start wrote after that state is taken away."""

    def __init__(self, folder: Path, state: TrainingState, total_events: int, rules: Rules | None = None) -> None:
        self._folder = folder
        path = folder / HISTORY_FILE
        cut_history(path, state.step)
        with write_errors(folder):
            self._history = path.open("a", encoding="utf-8")
            self._board = Board(folder / TENSORBOARD_FOLDER, going_on_after=state.step)
        self._total, self._rules, self._rules_said = total_events, rules or Rules({}, ""), False
        self._window: list[Record] = []
        self._line_events, self._line_seconds = state.events, state.step_seconds
        self._start: tuple[int, float] | None = None
        self._show: TerminalProgress | SparseLines = (
            TerminalProgress(total_events, state.events) if interactive() else SparseLines(total_events)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show.close()
        # What is written last on a full disk fails as well; the first failure is the one to tell.
        with suppress(OSError) if error else write_errors(self._folder):
            try:
                self._board.close()
            finally:
                self._history.close()

    def steps(self, records: Sequence[Record], state: TrainingState, rate: float) -> None:
        """Take note of steps that were done; a line every hundred of them."""
        if not records:
            return
        self._window += records
        self._show.update(state.events, self._description(records[-1], state))
        if len(self._window) >= _STEPS_PER_LINE:
            self._write_window(state, rate)

    def validation(self, metrics: Mapping[str, float | None], state: TrainingState) -> None:
        """Write a line of a validation."""
        self._write("validation", state, dict(metrics))
        if self._rules.said and not self._rules_said:
            self._show.message(f"validation  {self._rules.said}")
            self._rules_said = True
        events = f"{state.events:,}".rjust(len(f"{self._total:,}"))
        self._show.message(f"validation  {events} events  {followed(metrics, self._rules.figures)}")

    def flush(self) -> None:
        """Make sure that what was written outlives the process."""
        with write_errors(self._folder):
            self._board.flush()

    def _write_window(self, state: TrainingState, rate: float) -> None:
        count = len(self._window)
        means = {name: sum(record.values[name] for record in self._window) / count for name in self._window[0].values}
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

    def _write(self, kind: str, state: TrainingState, values: dict[str, float | None]) -> None:
        line = {"kind": kind, "step": state.step, "events": state.events, **values}
        with write_errors(self._folder):
            self._history.write(json.dumps(line, allow_nan=False) + "\n")
            self._history.flush()
            for name, value in values.items():
                if value is not None:
                    self._board.add(f"{kind}/{name}", value, state.step)

    def _description(self, record: Record, state: TrainingState) -> str:
        text = f"loss {record.values['total']:.4f}"
        if self._start is None:  # the first steps, in which things are compiled, tell nothing about speed
            self._start = (state.events, state.step_seconds)
            return text
        events, seconds = self._start
        speed = (state.events - events) / max(state.step_seconds - seconds, 1e-9)
        left = (self._total - state.events) / max(speed, 1e-9)
        return f"{text}, {speed:,.0f} events/s, {time_in_words(max(left, 0.0))} left"


def cut_history(path: Path, step: int) -> None:
    """Take away lines after a step, and what is left of a line that was cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record["step"] <= step:
            kept.append(line + "\n")
    write_atomic(path, "".join(kept))


class Board:
    """TensorBoard's file of numbers over steps; `going_on_after` hides what earlier files hold after that step.

    Written in place: a writer with a thread of its own would wait for ever once a disk is full.
    """

    def __init__(self, folder: Path, going_on_after: int = 0) -> None:
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        self._records = RecordWriter(str(folder / name))
        self._write(file_version="brain.Event:2")
        if going_on_after:
            self._write(step=going_on_after + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, name: str, value: float, step: int) -> None:
        """One number after a step."""
        from tensorboardX.proto.summary_pb2 import Summary

        self._write(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))

    def flush(self) -> None:
        """Make sure that what was written outlives the process and the machine."""
        self._records.flush()

    def close(self) -> None:
        """Write the rest."""
        self._records.close()

    def _write(self, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time.time(), **content).SerializeToString())


class SparseLines:
    """Progress as plain lines: every tenth of the training, or every half minute."""

    SECONDS_BETWEEN_LINES = 30.0

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock = total, clock
        self._tenths_said: int | None = None
        self._last_line = clock()

    def update(self, events: int, description: str) -> None:
        """Say where the training is, if it is time."""
        tenths = 10 * events // self._total
        said = tenths if self._tenths_said is None else self._tenths_said
        if tenths > said or self._clock() - self._last_line >= self.SECONDS_BETWEEN_LINES:
            # The last batch is shown whole.
            self.message(f"train: {min(events, self._total):,} of {self._total:,} events, {description}")
            self._last_line = self._clock()
        self._tenths_said = max(said, tenths)

    def message(self, text: str) -> None:
        """Say something else."""
        say(text)

    def close(self) -> None:
        """Nothing is left to do."""


class TerminalProgress:
    """Progress as a bar, for a terminal."""

    SECONDS_BETWEEN_UPDATES = 0.2

    def __init__(self, total: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns: tuple[Any, ...] = (TextColumn("train"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True))
        self._task = self._bar.add_task("", total=total, completed=done)
        self._last = 0.0
        self._bar.start()

    def update(self, events: int, description: str) -> None:
        """Move the bar."""
        if time.monotonic() - self._last >= self.SECONDS_BETWEEN_UPDATES:
            self._bar.update(self._task, completed=events, description=description)
            self._last = time.monotonic()

    def message(self, text: str) -> None:
        """Write a line above the bar."""
        self._bar.console.print(text, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()
