"""The table of all steps, a line for every process and step: `steps.csv`. Times are milliseconds."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ringflow.base.errors import InputFileError
from ringflow.base.rundir import write_errors
from ringflow.train.phases import PHASES
from ringflow.train.profile.split import RankStep

#: What the time of a step is made of: the phases, and what is in none of them.
KINDS = (*PHASES, "other")
COLUMNS = (
    "step",
    "rank",
    "events",
    "start_ms",
    "step_ms",
    *(f"{kind}_ms" for kind in KINDS),
    "hidden_ms",
    "late_ms",
    "sent_bytes",
    "received_bytes",
)

Floats = NDArray[np.float64]


class TableWriter:
    """Writes lines as they come, so that a training that is killed leaves them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with write_errors(path):
            self._file = path.open("w", encoding="utf-8", newline="")
        self._lines = csv.writer(self._file, lineterminator="\n")
        self._lines.writerow(COLUMNS)

    def add(self, steps: Sequence[Sequence[RankStep]], zero: int) -> None:
        """Add steps, each of all processes; `zero` is the time from which starts are counted."""
        with write_errors(self._path):
            self._lines.writerows(_line(rank, done, zero) for step in steps for rank, done in enumerate(step))
            self._file.flush()

    def close(self) -> None:
        """All is written."""
        with write_errors(self._path):
            self._file.close()


def _line(rank: int, done: RankStep, zero: int) -> list[object]:
    record = done.record
    times = [
        record.start - zero,
        record.end - record.start,
        *map(done.time, PHASES),
        done.other,
        done.hidden,
        done.late,
    ]
    counts = ["" if count is None else count for count in (record.sent, record.received)]
    return [record.step, rank, record.events, *(f"{time / 1e6:.4f}" for time in times), *counts]


@dataclass(frozen=True)
class StepTable:
    """Columns by name, each an array of steps by ranks."""

    columns: dict[str, Floats]

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    @property
    def num_steps(self) -> int:
        """Steps in the table."""
        return len(self["step"])

    @property
    def num_ranks(self) -> int:
        """Processes in the table."""
        return int(self["step"].shape[1])

    def after(self, step: int) -> StepTable:
        """Without the first lines, up to the place `step`."""
        return StepTable({name: column[step:] for name, column in self.columns.items()})


def read_table(path: Path) -> StepTable:
    """What a `TableWriter` wrote."""
    from pyarrow import ArrowInvalid
    from pyarrow.csv import read_csv

    try:
        read = read_csv(path)
    except (ArrowInvalid, OSError) as error:
        raise InputFileError(f"{path} is no table of steps ({str(error).splitlines()[0]}); profile again") from None
    lines = read.to_pydict() if read.num_rows == 0 else {name: read[name].to_numpy() for name in read.column_names}
    if tuple(lines) != COLUMNS or not len(lines["rank"]):
        raise InputFileError(f"{path} is no table of steps; profile again")
    ranks = int(np.max(lines["rank"])) + 1
    whole = len(lines["rank"]) // ranks * ranks
    return StepTable({name: np.asarray(lines[name][:whole], np.float64).reshape(-1, ranks) for name in COLUMNS})
