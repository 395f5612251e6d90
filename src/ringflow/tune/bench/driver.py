"""What the driver of a study takes for itself: search, scheduler, log, desk, table and the file for Optuna.

The driver is the real one, and so is its study. Its trials are made up: what they say lies on the desk as soon as it is asked
for. The time that it takes to lay it there is the trials' own, and is not counted.
"""

from __future__ import annotations

import io
import json
import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import NamedTuple

from ringflow.base.rundir import write_atomic
from ringflow.train.settings import TrainSettings
from ringflow.tune.create import create
from ringflow.tune.desk import Side, Tray
from ringflow.tune.drive import drive
from ringflow.tune.executor import Message, Order
from ringflow.tune.log import StudyLog
from ringflow.tune.mirror import Mirror
from ringflow.tune.settings import StudySettings
from ringflow.tune.space_file import space_path
from ringflow.tune.study import Study
from ringflow.tune.table import LiveTable

#: Seconds of the trial that the driver is compared with.
TRIAL_SECONDS = 10.0
TRIALS, _FIRST_TRIALS, _EVENTS, _AT_ONCE = 64, 12, 16_000, 8


class DriverCost(NamedTuple):
    """What a driver takes for itself."""

    seconds_per_trial: float
    #: Once, to load what it needs.
    start_seconds: float

    @property
    def overhead(self) -> float:
        """Over a trial of `TRIAL_SECONDS`."""
        return self.seconds_per_trial / TRIAL_SECONDS


def driver_cost(trials: int = TRIALS, rounds: int = 3) -> DriverCost:
    """With TPE and ASHA; good trials report three times. A short study goes before, so that nothing is left to be loaded.

    The fastest round counts: what else a machine does comes and goes.
    """
    first = _driver_seconds(_FIRST_TRIALS)
    per_trial = min(_driver_seconds(trials) for _ in range(rounds)) / trials
    return DriverCost(per_trial, max(first - _FIRST_TRIALS * per_trial, 0.0))


def _driver_seconds(trials: int) -> float:
    with tempfile.TemporaryDirectory(prefix="ringflow-") as place, redirect_stderr(io.StringIO()):
        training = TrainSettings.resolve("clic_tiny", [f"length.events={_EVENTS}", "compute.device=cpu"])
        settings = StudySettings(trials=trials, search="tpe", scheduler="asha", least=_EVENTS // 16)
        folder = create(training, settings, space_path("training"), Path(place) / "study")
        executor = MadeUpTrials()
        began = time.perf_counter()
        with StudyLog(folder.log) as log:
            study, mirror, shown = Study(folder, log), Mirror(folder), 0
            with LiveTable(trials, "loss") as table:

                def look(study: Study) -> None:
                    nonlocal shown
                    table.show(study.record)
                    mirror.apply(study.rows[shown:])
                    shown = len(study.rows)

                try:
                    drive(study, executor, look)
                finally:
                    mirror.close()
        return time.perf_counter() - began - executor.seconds


class MadeUpTrials:
    """An executor whose trials come to their rungs at once."""

    def __init__(self) -> None:
        #: That the trials took.
        self.seconds = 0.0
        self._trays: dict[int, Tray] = {}
        self._next: dict[int, int] = {}  # resource of the next report; 0: told to end
        self._said: dict[int, int] = {}

    def room(self, workers: int) -> bool:
        """For a few trials."""
        return len(self._trays) < _AT_ONCE

    def start(self, order: Order) -> None:
        """Its reports will lie on the desk."""
        self._trays[order.trial], self._next[order.trial], self._said[order.trial] = Tray(order), order.until, 0
        began = time.perf_counter()
        Side(order.ticket).begin()
        self.seconds += time.perf_counter() - began

    def answer(self, trial: int, until: int) -> None:
        """Through the desk."""
        self._trays[trial].answer(until)
        self._next[trial] = until

    def poll(self, seconds: float) -> Sequence[Message]:
        """Every trial goes on to its next report, or to its end; then the desk is looked at."""
        began = time.perf_counter()
        for trial, until in self._next.items():
            if until > 0:
                self._report(trial, until)
            elif until == 0:
                Side(self._trays[trial].order.ticket).end()
        self.seconds += time.perf_counter() - began
        messages = [message for tray in self._trays.values() for message in tray.look()]
        for trial in [trial for trial, tray in self._trays.items() if tray.ended]:
            del self._trays[trial], self._next[trial], self._said[trial]
        return messages

    def _report(self, trial: int, until: int) -> None:
        """Lay a report down, as the first process of a trial does before it waits for the answer."""
        order = self._trays[trial].order
        share = until / order.settings["length"]["events"]
        loss = 1.0 + abs(math.log10(order.settings["optimizer"]["rate"]) + 3.0) + 0.2 * share**-0.5
        said = {"resource": until, "figures": {"loss": loss}}
        write_atomic(order.ticket / f"report-{self._said[trial]}.json", json.dumps(said))
        self._said[trial] += 1
        self._next[trial] = -1  # waits for the answer

    def close(self) -> None:
        """Nothing runs."""
