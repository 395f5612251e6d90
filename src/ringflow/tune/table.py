"""What a terminal shows of a study: a table while it runs, the settings of its best trial, the front of several objectives.

    with LiveTable(total_trials=24, objective="loss") as table:
        table.show(record)                     # as often as one likes; in a log file a few plain lines
    Path("best.toml").write_text(best_settings(Path("studies/clic_small")))

A trial that was stopped early counts with its last values. Training on would make them smaller, if anything, so that what is on
the front now would not leave it for worse.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringflow.base.config import to_toml
from ringflow.base.errors import FailureError, UsageError
from ringflow.base.log import console, interactive, say
from ringflow.base.words import time_in_words
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import State, StudyRecord, TrialRecord, best_of
from ringflow.tune.space import with_values

if TYPE_CHECKING:
    from rich.console import RenderableType

Vector = NDArray[np.float64]


def best_settings(study: Path, objective: str | None = None, trial: int | None = None) -> str:
    """Complete settings of a training as TOML: of the trial that is best in an objective (the first one), or of this trial."""
    folder = StudyFolder(study)
    trials, objectives = folder.record().trials, folder.settings.objectives
    if objective is not None and objective not in objectives:
        raise UsageError(f"{folder.path} made no {objective!r} small; choose from {', '.join(objectives)}")
    if trial is not None and not 0 <= trial < len(trials):
        there = f"there are trials 0 to {len(trials) - 1}" if trials else "there are none yet"
        raise UsageError(f"{folder.path} has no trial {trial}; {there}")
    place = objectives.index(objective) if objective is not None else 0
    chosen = best_of(trials, objectives, place) if trial is None else trials[trial]
    if chosen is None:
        raise FailureError(_nothing(folder, trials))
    pairs = zip(objectives, chosen.values(objectives), strict=True)
    told = f": {', '.join(f'{name} {value:.5g}' for name, value in pairs)} after {chosen.resource:,} events"
    settings = with_values(folder.training, chosen.point)
    origin = f"# trial {chosen.number} of {folder.path.absolute().name}"
    return f"{origin}{told if chosen.reports else ', which has no value'}\n{to_toml(settings)}"


def front_rows(study: Path) -> list[dict[str, object]]:
    """The front of several objectives, one row per trial: number, state, events, values and settings."""
    folder = StudyFolder(study)
    trials = folder.record().trials
    front = front_of(trials, folder.settings.objectives)
    if not front.trials:
        raise FailureError(_nothing(folder, trials))
    return [
        {"trial": trial.number, "state": trial.state, "events": trial.resource}
        | dict(zip(folder.settings.objectives, values, strict=True))
        | dict(trial.point)
        for trial, values in zip(front.trials, front.values.tolist(), strict=True)
    ]


def short(point: Mapping[str, object], most: int | None = None) -> str:
    """Settings in a few words, with the last part of every name: `rate=0.0012 width=128`."""
    words = [f"{name.rpartition('.')[2]}={_brief(value)}" for name, value in point.items()]
    return " ".join(words[:most]) + (" …" if most is not None and len(words) > most else "")


def _brief(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(_brief, value))
    return str(value)


def _nothing(folder: StudyFolder, trials: Sequence[TrialRecord]) -> str:
    if trials and all(trial.state == "failed" for trial in trials):
        return f"all {len(trials)} trials of {folder.path} failed, the last with: {trials[-1].reason}"
    return f"no trial of {folder.path} has a value yet; go on with `ringflow tune resume {folder.path}`"


@dataclass(frozen=True)
class Front:
    """The trials that no other trial beats in everything."""

    #: By the first objective, best first, and their values, one row per trial.
    trials: list[TrialRecord]
    values: Vector
    #: Trials compared.
    compared: int
    #: Share of the box between the best and the worst values of all trials that the front dominates.
    hypervolume: float


def front_of(trials: Sequence[TrialRecord], objectives: Sequence[str]) -> Front:
    """The front of those trials that told all values."""
    rows = [trial.values(objectives) for trial in trials]
    told = [index for index, row in enumerate(rows) if all(map(math.isfinite, row))]
    if not told:
        return Front([], np.empty((0, len(objectives))), 0, 0.0)
    values = np.array([rows[index] for index in told])
    kept = sorted(non_dominated(values), key=lambda row: rows[told[row]])
    return Front([trials[told[row]] for row in kept], values[kept], len(told), _share(values[kept], values))


def non_dominated(values: ArrayLike) -> list[int]:
    """Rows that no other row beats: at most as large everywhere and smaller somewhere. Of equal rows the first counts."""
    rows = np.asarray(values, dtype=np.float64)
    kept: list[int] = []
    # A row can only be beaten by one that comes before it in this order.
    for row in np.lexsort(rows.T[::-1]).tolist():
        if not kept or not (rows[kept] <= rows[row]).all(axis=1).any():
            kept.append(row)
    return sorted(kept)


def hypervolume(values: ArrayLike, reference: Sequence[float]) -> float:
    """Volume of all that is worse than some row and better than the reference, by slices along the last axis."""
    rows = np.asarray(values, dtype=np.float64).reshape(-1, len(reference))
    rows = rows[(rows < np.asarray(reference)).all(axis=1)]
    if not len(rows):
        return 0.0
    if len(reference) == 1:
        return float(reference[0] - rows.min())
    rows = rows[np.argsort(rows[:, -1], kind="stable")]
    edges = np.append(rows[:, -1], reference[-1])
    return math.fsum(
        thickness * hypervolume(rows[: count + 1, :-1], reference[:-1])
        for count, thickness in enumerate(np.diff(edges).tolist())
        if thickness > 0.0
    )


def _share(front: Vector, values: Vector) -> float:
    best, worst = values.min(axis=0), values.max(axis=0)
    varied = worst > best
    if not varied.any():
        return 0.0
    scaled = (front[:, varied] - best[varied]) / (worst - best)[varied]
    return hypervolume(scaled[non_dominated(scaled)], [1.0] * int(varied.sum()))


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
