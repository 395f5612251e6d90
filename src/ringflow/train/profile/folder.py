"""The folder `profile` of a run: what the first process makes of the logs of all.

- `steps.csv`: a line per rank and step
- `trace.json`: the first steps after the warm-up, for https://ui.perfetto.dev
- `summary.json`: means, bytes and stragglers

Every start of a training that takes a step begins it anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringflow.base.rundir import write_atomic, write_errors
from ringflow.train.profile.offsets import offsets
from ringflow.train.profile.records import Circumstances, RankLog
from ringflow.train.profile.split import split
from ringflow.train.profile.summary import WARMUP_STEPS, Costs, summarize
from ringflow.train.profile.table import TableWriter, read_table
from ringflow.train.profile.trace import TraceWriter

PROFILE_FOLDER = "profile"
STEPS_FILE, TRACE_FILE, SUMMARY_FILE = "steps.csv", "trace.json", "summary.json"


class ProfileFolder:
    """Writes the files of a profile while the training goes on."""

    def __init__(self, run: Path) -> None:
        self.path = run / PROFILE_FOLDER
        self._writers: _Writers | None = None
        self._circumstances: Circumstances | None = None
        self._clock_error = 0

    def keep(self, circumstances: Circumstances, logs: Sequence[RankLog]) -> None:
        """Write down steps of all ranks."""
        apart = offsets([log.meetings for log in logs])
        self._clock_error = max(self._clock_error, *(offset.error for offset in apart))
        by_rank = [[step.shifted(offset.value) for step in log.steps] for log, offset in zip(logs, apart, strict=True)]
        if self._writers is None:
            zero = min(steps[0].start for steps in by_rank)
            self._writers = _Writers(self.path, circumstances.processes, zero)
        self._circumstances = circumstances
        self._writers.add([split(step) for step in zip(*by_rank, strict=True)])

    def close(self) -> None:
        """Nothing comes any more."""
        if self._writers is not None:
            self._writers.close()

    def finish(self, seconds: float) -> dict[str, Any] | None:
        """Write the summary of a closed folder, in which measuring took so long; None if there was no step."""
        if self._circumstances is None:
            return None
        costs = Costs(self._clock_error, seconds)
        summary = summarize(read_table(self.path / STEPS_FILE), self._circumstances, costs)
        write_atomic(self.path / SUMMARY_FILE, json.dumps(summary, indent=1, allow_nan=False) + "\n")
        return summary


class _Writers:
    """The table and the trace, begun anew."""

    def __init__(self, folder: Path, processes: int, zero: int) -> None:
        with write_errors(folder):
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir()
        self._zero, self._warmup = zero, WARMUP_STEPS
        self._table = TableWriter(folder / STEPS_FILE)
        self._trace = TraceWriter(folder / TRACE_FILE, processes)

    def add(self, steps: list[Any]) -> None:
        self._table.add(steps, self._zero)
        self._trace.add(steps[self._warmup :], self._zero)
        self._warmup = max(self._warmup - len(steps), 0)

    def close(self) -> None:
        self._table.close()
        self._trace.close()
