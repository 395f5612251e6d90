"""How long trials live: none, successive halving, Hyperband, ASHA, RASDA. Pure state machines: a report in, a decision out.

A value is what is made small. Resource is what a trial is given to live: events shown to its network, counted from its start.
A scheduler knows nothing of clocks, processes or files, so one serves a laptop, a cluster and a simulation. Its state is a
function of what it was told, in that order, so a study that was interrupted is gone on with by telling it the same again.

A trial climbs from rung to rung. At a rung it goes on, stops, or is put aside until more is known. What a trial is told holds:
a report that comes twice, as after a restart, gets the same answer, and who was told to stop stays stopped.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import Literal, NamedTuple, get_args

from ringflow.base.errors import UsageError
from ringflow.tune import SchedulerName

#: Settings of a trial: names as in `ringflow train NAME=VALUE`, and values.
Point = Mapping[str, object]
Verdict = Literal["continue", "stop", "pause", "resize"]
#: Names of `make_scheduler`, and those with which a trial gets more processes on its way.
SCHEDULERS: tuple[str, ...] = get_args(SchedulerName)
GROWING = ("rasda", "rasda-idle")
#: A rung nearer to the end than this saves nothing, and putting trials aside there costs a start each.
_NEARLY_THE_END = 0.9
#: One in so many goes on, unless told.
ETA = 4


class Decision(NamedTuple):
    """What becomes of a trial that reported."""

    verdict: Verdict
    #: Resource up to which it goes on, and the processes it has from now on; of no meaning if it does not go on.
    until: int = 0
    workers: int = 1


Promoted = Sequence[tuple[int, Decision]]
STOP, PAUSE = Decision("stop"), Decision("pause")


@dataclass(frozen=True)
class Report:
    """What a trial says of itself when it has used some of its resource."""

    trial: int
    resource: int
    value: float
    #: Events that one process could have been shown while a start of the trial takes; None where that is not known.
    restart: float | None = None


def first_rung(most: int, eta: int) -> int:
    """Events after which trials of so many are compared first, unless told: two rungs are before the end."""
    return max(most // eta**2, 1)


@dataclass(frozen=True)
class Ladder:
    """Trials live from `least` to `most` events; of those at a rung one in `eta` goes on to the next."""

    least: int
    most: int
    eta: int = ETA

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UsageError(f"trials cannot live from {self.least} to {self.most} events; give 1 <= least <= most")
        if self.eta < 2:
            raise UsageError(f"one in {self.eta} trials cannot go on; give eta of at least 2")

    @cached_property
    def rungs(self) -> tuple[int, ...]:
        """`least`, `least * eta`, `least * eta**2` ... and `most`, which is the end; none just before it."""
        rungs, resource = [], self.least
        while resource <= _NEARLY_THE_END * self.most:
            rungs.append(resource)
            resource *= self.eta
        return (*rungs, self.most)

    @cached_property
    def from_the_end(self) -> tuple[int, ...]:
        """... `most / eta**2`, `most / eta`, `most`, as long as it is not below `least`: the rungs of Hyperband."""
        rungs, power = [self.most], self.eta
        while self.most >= self.least * power:
            rungs.append(self.most // power)
            power *= self.eta
        return tuple(reversed(rungs))


class Standing(NamedTuple):
    """Of a trial at a rung; the smallest is the best, of equal ones the first to come."""

    value: float
    arrival: int
    trial: int


class Rung:
    """The trials that reached a rung. One whose value is not finite counts, but has no place among the others."""

    def __init__(self) -> None:
        self.arrived = 0
        self.ranked: list[Standing] = []
        self.place: dict[int, Standing] = {}

    def put(self, trial: int, value: float) -> None:
        """A trial arrives."""
        if math.isfinite(value):
            self.place[trial] = Standing(value, self.arrived, trial)
            insort(self.ranked, self.place[trial])
        self.arrived += 1

    def drop(self, trial: int) -> None:
        """A trial does not exist any more: those behind it move up."""
        if (place := self.place.pop(trial, None)) is not None:
            del self.ranked[bisect_left(self.ranked, place)]

    def among_best(self, trial: int, count: int) -> bool:
        """Whether a trial is one of the so many best."""
        place = self.place.get(trial)
        return place is not None and bisect_left(self.ranked, place) < count


class Scheduler:
    """Decides how long trials live, and on how many processes: who is where. What becomes of a trial at a rung is for others.

    A trial whose value is not finite at a rung stops.
    """

    def __init__(self, rungs: Sequence[int], eta: int, *, workers: int = 1) -> None:
        #: Resource that the longest trials get.
        self.most = rungs[-1]
        self.rungs, self.eta, self._first_workers = tuple(rungs), eta, workers
        self._reached = [Rung() for _ in rungs]
        self._next: dict[int, int] = {}  # the rung that a trial is on its way to, or put aside at
        self._climbing = [0] * len(rungs)  # so many are on their way to a rung
        self._aside: set[int] = set()
        self._over: set[int] = set()
        self._closed = False

    def add(self, trial: int) -> Decision:
        """A new trial: it goes on from nothing, up to its first report."""
        self._next[trial] = 0
        self._climbing[0] += 1
        return Decision("continue", self.rungs[0], self.workers(0))

    def report(self, report: Report) -> Decision:
        """A trial reached the resource it was to go on to. A value that is not finite is worse than all others."""
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
            self._climbing[number] -= 1
            if verdict == "pause":
                self._aside.add(trial)
                return PAUSE
            self._ascend(trial)
        return self._onward(trial, before)

    def promoted(self) -> Promoted:
        """Paused trials about which is decided now, each told once: they go on, or stop."""
        return ()

    def gone(self, trial: int) -> None:
        """A trial ended without a report: failed too often. Its place at the rungs that it reached goes to the next one."""
        if trial in self._over:
            return
        for rung in self._reached[: self._next[trial] + 1]:
            rung.drop(trial)
        self._end(trial)

    def again(self, trial: int, failed: int) -> Decision:
        """A trial that was gone is tried again under a new number; it is none of those that are to come."""
        return Scheduler.add(self, trial)

    def close(self) -> None:
        """No trial will be added any more, but those that are tried again."""
        self._closed = True

    def workers(self, rung: int) -> int:
        """Processes of a trial on its way to a rung."""
        return self._first_workers

    def _judge(self, trial: int, number: int) -> Verdict:
        """What becomes of a trial that has just come to a rung which is not the last."""
        return "pause"

    def _onward(self, trial: int, before: int) -> Decision:
        """On to its next rung, after it was on its way to the rung `before`."""
        number = self._next[trial]
        resized = self.workers(before) != self.workers(number)
        return Decision("resize" if resized else "continue", self.rungs[number], self.workers(number))

    def _ascend(self, trial: int) -> None:
        self._next[trial] += 1
        self._climbing[self._next[trial]] += 1

    def _promote(self, trial: int) -> tuple[int, Decision]:
        """A trial that was put aside goes on."""
        self._aside.remove(trial)
        before = self._next[trial]
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


class Asha(Scheduler):
    """Asynchronous successive halving that stops: at a rung a trial goes on if it is among the best one in `eta` of those that
    came there so far, or the very best as long as they are fewer than `eta`. The first one to come always goes on. Nobody waits
    and nothing is loaded again, but good trials that come to a rung after better ones are given up."""

    def _judge(self, trial: int, number: int) -> Verdict:
        rung = self._reached[number]
        return "continue" if rung.among_best(trial, max(rung.arrived // self.eta, 1)) else "stop"


class AshaPromote(Scheduler):
    """Asynchronous successive halving as published (L. Li et al., arXiv:1810.05934): at every rung a trial is put aside, and
    goes on as soon as it belongs to the best one in `eta`. None is given up too early, but networks are stored and
    loaded again.

    When all trials were added and none runs any more, but none came to the end, the best one of the highest rung goes on.
    """

    def __init__(self, rungs: Sequence[int], eta: int, *, workers: int = 1) -> None:
        super().__init__(rungs, eta, workers=workers)
        self._waiting: list[list[Standing]] = [[] for _ in self.rungs]  # heaps of those put aside

    def promoted(self) -> Promoted:
        found = []
        downwards = range(len(self.rungs) - 2, -1, -1)  # those that are furthest first
        for number in downwards:
            rung = self._reached[number]
            while (trial := self._best_aside(number)) is not None:
                if not rung.among_best(trial, rung.arrived // self.eta):
                    break
                found.append(self._promote(trial))
        if found or not self._closed or any(self._climbing):
            return found
        best = next((trial for number in downwards if (trial := self._best_aside(number)) is not None), None)
        return self._stop_aside() if best is None or self._reached[-1].ranked else [self._promote(best)]

    def _judge(self, trial: int, number: int) -> Verdict:
        place = self._reached[number].place.get(trial)
        if place is not None:
            heappush(self._waiting[number], place)
        return "pause"

    def _best_aside(self, number: int) -> int | None:
        """The best trial that was put aside at a rung."""
        heap = self._waiting[number]
        while heap and not (heap[0].trial in self._aside and self._next[heap[0].trial] == number):
            heappop(heap)
        return heap[0].trial if heap else None


class Rasda(Asha):
    """Resource-adaptive successive doubling (M. Aach et al., arXiv:2412.02729): what survives a rung also gets `eta` times the
    processes, so that those of the trials that stop are not idle."""

    def __init__(self, rungs: Sequence[int], eta: int, *, workers: int = 1, most_workers: int = 1024) -> None:
        if not 1 <= workers <= most_workers:
            raise UsageError(f"trials cannot have from {workers} to {most_workers} processes; give 1 <= first <= last")
        super().__init__(rungs, eta, workers=workers)
        self._most_workers = most_workers

    def workers(self, rung: int) -> int:
        return min(self._first_workers * int(self.eta**rung), self._most_workers)


class RasdaIdle(Rasda):
    """RASDA that leaves nobody waiting: a trial grows by doubling, up to its size by RASDA, onto processes that no other trial
    has or will come for, and only if it is at its next rung earlier with the new start: reports tell what that costs, and as
    long as none did, nobody grows. So that it sees processes become idle, it also reports at halts between rungs, where nobody
    is compared.

    `processes` are all that there are, `most_workers` those of one trial at most.
    """

    def __init__(
        self,
        rungs: Sequence[int],
        eta: int,
        *,
        trials: int,
        processes: int,
        workers: int = 1,
        most_workers: int = 1024,
    ) -> None:
        super().__init__(rungs, eta, workers=workers, most_workers=min(most_workers, processes))
        self._to_come, self._processes, self._restart = trials, processes, math.inf
        self._told: dict[int, Decision] = {}
        self._used = 0

    def add(self, trial: int) -> Decision:
        self._to_come = max(self._to_come - 1, 0)
        return self._tell(trial, super().add(trial))

    def again(self, trial: int, failed: int) -> Decision:
        return self._tell(trial, super().again(trial, failed))

    def report(self, report: Report) -> Decision:
        trial = report.trial
        told = self._told.get(trial)
        if told is None:
            return STOP
        if report.restart is not None:
            self._restart = report.restart
        if report.resource < told.until:  # on its way, or said twice
            return Decision("continue", told.until, told.workers)
        if not math.isfinite(report.value):  # at a halt, too, it counts at the rung that it was on its way to
            report = replace(report, resource=max(report.resource, self.rungs[self._next[trial]]))
        if super().report(report).verdict == "stop":
            return STOP
        workers = self._size(trial, report.resource, told.workers)
        # Twice as far, but not beyond the next rung, where a trial goes at once that cannot grow any more.
        end = self.rungs[self._next[trial]]
        halt = end if 2 * workers > self.workers(self._next[trial]) else min(2 * report.resource, end)
        return self._tell(trial, Decision("continue" if workers == told.workers else "resize", halt, workers))

    def close(self) -> None:
        super().close()
        self._to_come = 0

    def _size(self, trial: int, resource: int, has: int) -> int:
        """Processes of a trial from now on."""
        number = self._next[trial]
        idle = self._processes - self._used - self._to_come * self._first_workers
        wanted = has
        while 2 * wanted <= min(self.workers(number), has + idle):
            wanted *= 2
        saved = (self.rungs[number] - resource) * (1.0 / has - 1.0 / wanted)
        return wanted if saved > self._restart else has

    def _tell(self, trial: int, decision: Decision) -> Decision:
        self._used += decision.workers - (self._told[trial].workers if trial in self._told else 0)
        self._told[trial] = decision
        return decision

    def _end(self, trial: int) -> None:
        super()._end(trial)
        self._used -= self._told.pop(trial).workers


class Halving(Scheduler):
    """Successive halving (K. Jamieson, A. Talwalkar, arXiv:1502.07943): a rung is decided when all its trials are there."""

    def __init__(self, rungs: Sequence[int], eta: int, *, trials: int, workers: int = 1) -> None:
        super().__init__(rungs, eta, workers=workers)
        self.to_come = trials  # that were not added yet
        self._deciding = 0  # the rung

    def add(self, trial: int) -> Decision:
        if self.to_come == 0:
            raise UsageError(f"trial {trial} is one too many for successive halving; give the number of trials")
        self.to_come -= 1
        return super().add(trial)

    def promoted(self) -> Promoted:
        if self.to_come or self.decided or self._climbing[self._deciding]:
            return ()
        rung = self._reached[self._deciding]
        survivors = rung.ranked[: max(rung.arrived // self.eta, 1)]
        self._deciding += 1
        going_on = [self._promote(place.trial) for place in survivors]
        return going_on + self._stop_aside()

    def _judge(self, trial: int, number: int) -> Verdict:
        """One that is tried again may come to a rung that is decided: it goes on if it would have."""
        if number >= self._deciding:
            return "pause"
        rung = self._reached[number]
        return "continue" if rung.among_best(trial, max(rung.arrived // self.eta, 1)) else "stop"

    @property
    def decided(self) -> bool:
        """Whether nothing is left to decide."""
        return self._deciding == len(self.rungs) - 1

    def close(self) -> None:
        self.to_come = 0


class Hyperband(Scheduler):
    """Successive halving from several beginnings (L. Li et al., arXiv:1603.06560): brackets of many short trials and of a few
    long ones, over and over."""

    def __init__(self, rungs: Sequence[int], eta: int, *, workers: int = 1) -> None:
        super().__init__(rungs, eta, workers=workers)
        self._opened = 0
        self._undecided: list[Halving] = []  # brackets, the last one being filled
        self._of: dict[int, Halving] = {}

    def add(self, trial: int) -> Decision:
        if not self._undecided or self._undecided[-1].to_come == 0:
            bracket = self._opened % len(self.rungs)
            begin = self.bracket_trials(bracket)
            self._undecided.append(Halving(self.rungs[bracket:], self.eta, trials=begin, workers=self._first_workers))
            self._opened += 1
        self._of[trial] = self._undecided[-1]
        return self._of[trial].add(trial)

    def again(self, trial: int, failed: int) -> Decision:
        self._of[trial] = self._of[failed]
        return self._of[trial].again(trial, failed)

    def bracket_trials(self, bracket: int) -> int:
        """How many trials begin in a bracket; bracket 0 is the one with the most."""
        halvings = len(self.rungs) - 1 - bracket
        return -(-len(self.rungs) * int(self.eta**halvings) // (halvings + 1))

    def report(self, report: Report) -> Decision:
        return self._of[report.trial].report(report)

    def promoted(self) -> Promoted:
        found = [told for bracket in self._undecided for told in bracket.promoted()]
        self._undecided = [bracket for bracket in self._undecided if not bracket.decided or bracket.to_come]
        return found

    def gone(self, trial: int) -> None:
        self._of[trial].gone(trial)

    def close(self) -> None:
        if self._undecided:
            self._undecided[-1].close()


def one_bracket(name: str, ladder: Ladder, trials: int) -> str | None:
    """A sentence about Hyperband that has too few trials for a second bracket; else None."""
    first = Hyperband(ladder.from_the_end, ladder.eta).bracket_trials(0) if name == "hyperband" else 0
    if trials > first:
        return None
    return f"Hyperband with {trials} trials is successive halving; from {first + 1} on it has a second bracket"


def make_scheduler(
    name: str,
    ladder: Ladder,
    *,
    trials: int,
    initial_workers: int = 1,
    most_workers: int = 1024,
    processes: int | None = None,
) -> Scheduler:
    """The scheduler of this name, for a study of so many trials, each with so many processes at first and at most;
    `processes` are those of all trials together, `most_workers` unless given."""
    rungs, eta, first = ladder.rungs, ladder.eta, initial_workers
    made: dict[str, Callable[[], Scheduler]] = {
        "none": lambda: Asha(rungs[-1:], eta, workers=first),
        "halving": lambda: Halving(rungs, eta, trials=trials, workers=first),
        "hyperband": lambda: Hyperband(ladder.from_the_end, eta, workers=first),
        "asha": lambda: Asha(rungs, eta, workers=first),
        "asha-promote": lambda: AshaPromote(rungs, eta, workers=first),
        "rasda": lambda: Rasda(rungs, eta, workers=first, most_workers=most_workers),
        "rasda-idle": lambda: RasdaIdle(
            rungs, eta, trials=trials, processes=processes or most_workers, workers=first, most_workers=most_workers
        ),
    }
    if name not in made:
        raise UsageError(f"no scheduler is called {name!r}; choose from {', '.join(SCHEDULERS)}")
    return made[name]()
