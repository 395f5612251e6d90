"""Trials on their way from rung to rung: what all schedulers with rungs have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ringflow.tune.contract import Decision, Report, Verdict
from ringflow.tune.rungs import Rung

STOP, PAUSE = Decision("stop"), Decision("pause")


class Climb(ABC):
    """Who is where. A scheduler says by `_judge` what becomes of a trial that comes to a rung.

    What a trial is told holds: a report that comes twice, as after a restart, gets the same answer, and who was told to stop
    stays stopped. A trial whose value is not finite at a rung stops.
    """

    def __init__(self, rungs: Sequence[int], eta: int, *, workers: int = 1) -> None:
        self.most, self.rungs, self.eta = rungs[-1], tuple(rungs), eta
        self._first_workers = workers
        self._reached = [Rung() for _ in rungs]
        self._next: dict[int, int] = {}  # the rung that a trial is on its way to, or put aside at
        self._climbing = [0] * len(rungs)  # so many are on their way to a rung
        self._aside: set[int] = set()
        self._over: set[int] = set()
        self._closed = False

    def add(self, trial: int) -> Decision:
        self._next[trial] = 0
        self._climbing[0] += 1
        return Decision("continue", self.rungs[0], self.workers(0))

    def report(self, report: Report) -> Decision:
        trial = report.trial
        if trial in self._over:
            return STOP
        if trial in self._aside:
            return PAUSE
        before = self._next[trial]
        while report.resource >= self.rungs[self._next[trial]]:
            number = self._next[trial]
            self._reached[number].put(trial, report.value)
            verdict = self._judge(trial, number) if number + 1 < len(self.rungs) else "stop"
            if verdict == "stop" or not math.isfinite(report.value):
                self._end(trial)
                return STOP
            if verdict == "pause":
                self._climbing[number] -= 1
                self._aside.add(trial)
                return PAUSE
            self._ascend(trial)
        return self._onward(trial, before)

    def promoted(self) -> Sequence[tuple[int, Decision]]:
        return ()

    def gone(self, trial: int) -> None:
        """Its place at the rungs that it reached goes to the next one."""
        if trial in self._over:
            return
        for rung in self._reached[: self._next[trial] + 1]:
            rung.drop(trial)
        self._end(trial)

    def close(self) -> None:
        self._closed = True

    def workers(self, rung: int) -> int:
        """Processes of a trial on its way to a rung."""
        return self._first_workers

    @abstractmethod
    def _judge(self, trial: int, number: int) -> Verdict:
        """What becomes of a trial that has just come to a rung which is not the last."""

    def _onward(self, trial: int, before: int) -> Decision:
        """On to its next rung, after it was on its way to the rung `before`."""
        number = self._next[trial]
        resized = self.workers(before) != self.workers(number)
        return Decision("resize" if resized else "continue", self.rungs[number], self.workers(number))

    def _ascend(self, trial: int) -> None:
        self._climbing[self._next[trial]] -= 1
        self._next[trial] += 1
        self._climbing[self._next[trial]] += 1

    def _promote(self, trial: int) -> tuple[int, Decision]:
        """A trial that was put aside goes on."""
        self._aside.remove(trial)
        before = self._next[trial]
        self._climbing[before] += 1
        self._ascend(trial)
        return trial, self._onward(trial, before)

    def _end(self, trial: int) -> None:
        if trial in self._aside:
            self._aside.remove(trial)
        else:
            self._climbing[self._next[trial]] -= 1
        self._over.add(trial)

    def _stop_aside(self) -> list[tuple[int, Decision]]:
        """Those that were put aside and will not go on."""
        stopped = sorted(self._aside)
        for trial in stopped:
            self._end(trial)
        return [(trial, STOP) for trial in stopped]
