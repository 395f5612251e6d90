"""What people see while a study runs: a live table on a terminal, a few plain lines in a log file.

with LiveTable(total_trials=24, objective="loss") as table:
    table.show(record)                     # as often as one likes
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from ringflow.base.log import interactive, say
from ringflow.base.words import time_in_words
from ringflow.tune.best import short
from ringflow.tune.record import State, StudyRecord, TrialRecord, best_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

#: Seconds between two looks at least, and how many times longer than the last look took: the driver has better things to do.
_PAUSE, _PATIENCE = 0.25, 50
_MOST_ROWS = 16
#: Studies up to this many trials tell every trial in a log file; larger ones about a hundred of them, and every new best.
_TALKATIVE = 200
_ORDER: tuple[State, ...] = ("running", "waiting", "paused", "complete", "stopped", "failed")


class _View(Protocol):
    def show(self, record: StudyRecord) -> None: ...
    def close(self) -> None: ...


class LiveTable:
    """Shows a study as it goes on; throttles itself."""

    def __init__(self, total_trials: int, objective: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._make: Callable[[], _View] = lambda: (
            _Screen(total_trials, objective) if interactive() else PlainLines(total_trials, objective)
        )
        self._view: _View | None = None
        self._clock, self._next = clock, -math.inf
        self._pending: StudyRecord | None = None

    def __enter__(self) -> Self:
        self._view = self._make()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._view is not None
        if self._pending is not None:
            self._view.show(self._pending)
        self._view.close()

    def show(self, record: StudyRecord) -> None:
        """Show how things stand, unless they were shown a moment ago. The last state is shown in any case."""
        assert self._view is not None, "to be used in a `with` block"
        begin = self._clock()
        self._pending = record
        if begin >= self._next:
            self._view.show(record)
            self._pending = None
            end = self._clock()
            self._next = end + max(_PAUSE, _PATIENCE * (end - begin))


class PlainLines:
    """A line for every trial that ended or went on; of many trials only for some."""

    def __init__(self, total: int, objective: str, write: Callable[[str], None] = say) -> None:
        self._total, self._objective, self._write = total, objective, write
        self._said: dict[int, int] = {}  # reports told, by trial
        self._done: set[int] = set()
        self._best: int | None = None
        self._every = 1 if total <= _TALKATIVE else total // 100

    def show(self, record: StudyRecord) -> None:
        """Tell what is new."""
        ended = [trial for trial in record.trials if trial.over and trial.number not in self._done]
        best = best_of(record.trials)
        for trial in sorted(ended, key=lambda trial: trial.ended or 0.0):
            self._done.add(trial.number)
            is_best = best is not None and best.number == trial.number != self._best
            if is_best or len(self._done) % self._every == 0:
                self._write(f"{self._ending(trial)}{self._standing(trial, best)}; {self._progress()}")
        self._best = best.number if best is not None else None
        if self._every == 1:
            for trial in record.trials:
                if not trial.over and len(trial.reports) > self._said.get(trial.number, 0):
                    self._said[trial.number] = len(trial.reports)
                    self._write(self._going_on(trial))

    def close(self) -> None:
        """Nothing is left to write."""

    def _ending(self, trial: TrialRecord) -> str:
        if trial.state == "failed":
            return f"trial {trial.number} failed: {trial.reason}"
        word = "complete after" if trial.state == "complete" else "stopped at"
        return f"trial {trial.number} {word} {trial.resource:,} events: {self._objective} {_value(trial)}"

    def _standing(self, trial: TrialRecord, best: TrialRecord | None) -> str:
        if best is None:
            return ""
        return " (best so far)" if best.number == trial.number else f" (best {_value(best)}, trial {best.number})"

    def _progress(self) -> str:
        return f"{len(self._done):,} of {self._total:,} trials done"

    def _going_on(self, trial: TrialRecord) -> str:
        said = f"trial {trial.number} at {trial.resource:,} events: {self._objective} {_value(trial)}"
        if trial.state == "paused":
            return f"{said}, put aside"
        before = trial.reports[-1].workers
        grown = f" on {trial.workers} processes instead of {before}" if trial.workers != before else ""
        return f"{said}, goes on to {trial.until:,}{grown}"


class _Screen:
    """The table on a terminal."""

    def __init__(self, total: int, objective: str, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._total, self._objective = total, objective
        self._live = Live(console=console or Console(stderr=True), auto_refresh=False)
        self._live.start()

    def show(self, record: StudyRecord) -> None:
        """Draw anew."""
        self._live.update(study_table(record, self._total, self._objective, time.time()), refresh=True)

    def close(self) -> None:
        """Leave what was drawn last."""
        self._live.stop()


def study_table(record: StudyRecord, total: int, objective: str, now: float) -> RenderableType:
    """The study at a time: how it stands, its best trial, and a row for every trial that has processes."""
    from rich.console import Group
    from rich.text import Text

    counts = Counter(trial.state for trial in record.trials)
    over = sum(trial.over for trial in record.trials)
    states = "  ".join(f"{counts[state]:,} {state}" for state in _ORDER if counts[state])
    begun = min((trial.created for trial in record.trials), default=now)
    elapsed = max(now - begun, 0.0)
    head = Text.assemble(
        (f"{over:,} of {total:,} trials done", "bold"), f"  {states}\n", f"{time_in_words(elapsed)} elapsed"
    )
    if 0 < over < total and not record.closed:
        head.append(f", about {time_in_words(elapsed / over * (total - over))} left")
    best = best_of(record.trials)
    lines: list[RenderableType] = [head]
    if best is not None:
        lines.append(
            Text.assemble(
                (f"best {objective} {_value(best)}", "bold green"),
                f"  trial {best.number} after {best.resource:,} events  {short(best.point)}",
            )
        )
    running = [trial for trial in record.trials if trial.state == "running"]
    if running:
        lines.append(_running_table(running[:_MOST_ROWS], objective, now))
    if len(running) > _MOST_ROWS:
        lines.append(Text(f"and {len(running) - _MOST_ROWS:,} more that run", style="dim"))
    return Group(*lines)


def _running_table(trials: list[TrialRecord], objective: str, now: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    rows = []
    for trial in trials:
        spent = sum((now if part.end is None else part.end) - part.start for part in trial.segments)
        events = f"{trial.resource:,} / {trial.until:,}"
        rows.append(
            (str(trial.number), events, _value(trial), str(trial.workers), time_in_words(spent), short(trial.point))
        )
    drawn = Table()
    for name in ("trial", "events / until", objective, "processes", "time"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("settings")  # the one that gets shorter on a narrow terminal
    for *figures, settings in rows:
        drawn.add_row(*map(Text, figures), Text(settings, no_wrap=True, overflow="ellipsis"))
    return drawn


def _value(trial: TrialRecord) -> str:
    if trial.value is None:
        return "–"
    return f"{trial.value:.4g}" if math.isfinite(trial.value) else "diverged"
