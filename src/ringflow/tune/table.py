"""What people see while a study runs: a live table on a terminal, a few plain lines in a log file.

with LiveTable(total_trials=24, objective="loss") as table:
    table.show(record)                     # as often as one likes
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from ringflow.base.log import console, interactive, say
from ringflow.base.words import time_in_words
from ringflow.tune.best import short
from ringflow.tune.record import State, StudyRecord, TrialRecord

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Seconds between two looks at least, and how many times longer than the last look took: the driver has better things to do.
_PAUSE, _PATIENCE = 0.25, 50
_MOST_ROWS = 16
#: Studies up to this many trials tell every trial in a log file; larger ones about a hundred of them, and every new best.
_TALKATIVE = 200
_ORDER: tuple[State, ...] = ("running", "waiting", "paused", "complete", "stopped", "failed")


class LiveTable:
    """Shows a study as it goes on; throttles itself. The last state is shown in any case, when the block ends."""

    def __init__(self, total_trials: int, objective: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._objective, self._clock = total_trials, objective, clock
        self._show: Callable[[StudyRecord], None] = PlainLines(total_trials, objective).show
        self._close: Callable[[], None] = lambda: None
        self._next, self._pending = -math.inf, StudyRecord(0)

    def __enter__(self) -> Self:
        if interactive():
            from rich.live import Live

            live = Live(console=console(), auto_refresh=False)
            live.start()
            self._close = live.stop
            self._show = lambda record: live.update(
                study_table(record, self._total, self._objective, time.time()), refresh=True
            )
        return self

    def __exit__(self, *error: object) -> None:
        self._show(self._pending)
        self._close()

    def show(self, record: StudyRecord) -> None:
        """Show how things stand, unless they were shown a moment ago."""
        begin, self._pending = self._clock(), record
        if begin >= self._next:
            self._show(record)
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
        best = record.best
        for trial in sorted(ended, key=lambda trial: trial.ended or 0.0):
            self._done.add(trial.number)
            is_best = best is not None and best.number == trial.number
            if (is_best and trial.number != self._best) or len(self._done) % self._every == 0:
                so_far = " (best so far)" if is_best else f" (best {_value(best)}, trial {best.number})" if best else ""
                progress = f"{len(self._done):,} of {self._total:,} trials done"
                self._write(f"{self._ending(trial)}{so_far}; {progress}")
        self._best = best.number if best is not None else None
        for trial in record.trials if self._every == 1 else ():
            if not trial.over and len(trial.reports) > self._said.get(trial.number, 0):
                self._said[trial.number] = len(trial.reports)
                self._write(self._going_on(trial))

    def _ending(self, trial: TrialRecord) -> str:
        if trial.state == "failed":
            return f"trial {trial.number} failed: {trial.reason}"
        word = "complete after" if trial.state == "complete" else "stopped at"
        return f"trial {trial.number} {word} {trial.resource:,} events: {self._objective} {_value(trial)}"

    def _going_on(self, trial: TrialRecord) -> str:
        said = f"trial {trial.number} at {trial.resource:,} events: {self._objective} {_value(trial)}"
        if trial.state == "paused":
            return f"{said}, put aside"
        before = trial.reports[-1].workers
        grown = f" on {trial.workers} processes instead of {before}" if trial.workers != before else ""
        return f"{said}, goes on to {trial.until:,}{grown}"


def study_table(record: StudyRecord, total: int, objective: str, now: float) -> RenderableType:
    """The study at a time: how it stands, its best trial, and a row for every trial that has processes."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    counts = Counter(trial.state for trial in record.trials)
    over = sum(trial.over for trial in record.trials)
    states = "  ".join(f"{counts[state]:,} {state}" for state in _ORDER if counts[state])
    elapsed = max(now - min((trial.created for trial in record.trials), default=now), 0.0)
    head = Text.assemble(
        (f"{over:,} of {total:,} trials done", "bold"), f"  {states}\n", f"{time_in_words(elapsed)} elapsed"
    )
    if 0 < over < total and not record.closed:
        head.append(f", about {time_in_words(elapsed / over * (total - over))} left")
    lines: list[RenderableType] = [head]
    if best := record.best:
        told = f"  trial {best.number} after {best.resource:,} events  {short(best.point)}"
        lines.append(Text.assemble((f"best {objective} {_value(best)}", "bold green"), told))
    drawn = Table()
    for name in ("trial", "events / until", objective, "processes", "time"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("settings")  # the one that gets shorter on a narrow terminal
    running = record.in_state("running")
    for trial in running[:_MOST_ROWS]:
        spent = sum((now if part.end is None else part.end) - part.start for part in trial.segments)
        events = f"{trial.resource:,} / {trial.until:,}"
        figures = (str(trial.number), events, _value(trial), str(trial.workers), time_in_words(spent))
        drawn.add_row(*map(Text, figures), Text(short(trial.point), no_wrap=True, overflow="ellipsis"))
    if running:
        lines.append(drawn)
    if len(running) > _MOST_ROWS:
        lines.append(Text(f"and {len(running) - _MOST_ROWS:,} more that run", style="dim"))
    return Group(*lines)


def _value(trial: TrialRecord) -> str:
    if trial.value is None:
        return "–"
    return f"{trial.value:.4g}" if math.isfinite(trial.value) else "diverged"
