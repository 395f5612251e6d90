"""Trials on a Ray cluster: each has a placement group, with an actor for each of its processes.

executor = RayExecutor("auto", workers=None, on_gpus=True)
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass

from ringflow.base.errors import FailureError, UsageError
from ringflow.launch.ray import open_ray
from ringflow.tune.desk import Tray
from ringflow.tune.executor import Ended, Message, Order
from ringflow.tune.executors.ray_crew import Crew, Outcome
from ringflow.tune.executors.stop_file import ask_to_stop

_SECONDS_BETWEEN_LOOKS = 0.05
#: That processes have to end after the first of them has said that the order is over, and to write a checkpoint at the end.
_SECONDS_TO_FOLLOW = 30.0
#: That a crew without an order keeps its place in the cluster.
_SECONDS_TO_REST = 30.0
_SECONDS_BETWEEN_COUNTS = 1.0


@dataclass
class _Running:
    """An order and its processes."""

    tray: Tray
    crew: Crew
    begun: bool = False
    #: What the first process said of the end, and when that or the end of all processes was noticed.
    ended: Ended | None = None
    since: float | None = None


class RayExecutor:
    """Starts trials on a cluster that answers at an address, or on one that is started on this machine.

    Not more than `workers` processes at a time; with `on_gpus` each has a GPU, if there is one in the cluster.
    """

    def __init__(self, address: str | None, workers: int | None, on_gpus: bool) -> None:
        if workers is not None and workers < 1:
            raise UsageError(f"--workers {workers} leaves nothing to train on; give at least 1")
        self._ray, self._ours = open_ray(address, workers)
        # Ray tells of dead processes at great length on stdout, which belongs to --json.
        self._quiet = ExitStack()
        self._quiet.enter_context(redirect_stdout(io.StringIO()))
        self._limit, self._wants = workers, {"CPU": 1.0}
        if on_gpus and any(node.get("GPU", 0.0) >= 1.0 for node in self._nodes()):
            self._wants["GPU"] = 1.0
        self._running: dict[int, _Running] = {}
        #: Crews without an order, and since when.
        self._resting: list[tuple[Crew, float]] = []
        self._counted, self._slots, self._most_slots = -_SECONDS_BETWEEN_COUNTS, 0, 0

    def room(self, workers: int) -> bool:
        """Whether the cluster has so many slots that no trial has; an error if it never had."""
        self._count()
        if workers > self._most_slots:
            kind = "GPUs" if "GPU" in self._wants else "cores"
            raise FailureError(
                f"a trial of {workers} processes does not fit: {self._most_slots} {kind} of the Ray cluster can be used; give "
                f"trials at most {max(self._most_slots, 1)} processes, or add nodes with `ray start --address`"
            )
        return self._slots - sum(one.crew.size for one in self._running.values()) >= workers

    def _count(self) -> None:
        if time.monotonic() - self._counted < _SECONDS_BETWEEN_COUNTS:
            return
        slots = slots_of(self._nodes(), self._wants)
        self._slots = slots if self._limit is None else min(slots, self._limit)
        self._most_slots = max(self._most_slots, self._slots)
        self._counted = time.monotonic()

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def start(self, order: Order) -> None:
        """Give an order to a crew of its size that rests, or to a new one."""
        crew = self._rested(order.workers)
        if crew is None:
            self._count()
            self._make_place(order.workers)
            crew = Crew(self._ray, order.workers, self._wants)
        crew.begin(order.ticket, on_one_node=len(self._nodes()) == 1)
        self._running[order.trial] = _Running(Tray(order), crew)

    def _rested(self, size: int) -> Crew | None:
        found = next((one for one in self._resting if one[0].size == size), None)
        if found is None:
            return None
        self._resting.remove(found)
        return found[0]

    def _make_place(self, workers: int) -> None:
        """Dismiss crews of other sizes that have nothing to do, as far as it needs."""
        taken = sum(one.crew.size for one in self._running.values()) + sum(crew.size for crew, _ in self._resting)
        while self._resting and self._slots - taken < workers:
            crew, _ = self._resting.pop(0)
            crew.dismiss()
            taken -= crew.size

    def answer(self, trial: int, until: int) -> None:
        """What a trial that waits is told."""
        self._running[trial].tray.answer(until)

    def poll(self, seconds: float) -> Sequence[Message]:
        """What trials said, and which have ended."""
        until = time.monotonic() + seconds
        while True:
            try:
                messages = [message for trial in [*self._running] for message in self._look(trial)]
            except (self._ray.exceptions.RayError, ConnectionError) as error:
                reason = " ".join(str(error).split())[:160]
                raise FailureError(
                    f"the Ray cluster was lost ({reason}); start it again and resume the study"
                ) from None
            self._send_home()
            if messages or time.monotonic() >= until:
                return messages
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _look(self, trial: int) -> Iterator[Message]:
        one = self._running[trial]
        outcome = one.crew.outcome()  # first: what processes that are done have said is there afterwards
        if outcome is not None:
            os.listdir(one.tray.order.ticket)  # lets a network file system forget which files were not there
        for message in one.tray.look():
            if isinstance(message, Ended):
                one.ended = message
            else:
                one.begun = True
                yield message
        if outcome is not None and outcome.trouble is not None:
            yield self._over(trial, _verdict(one.ended, trial, outcome), again=False)
        elif outcome is not None and one.ended is not None:
            yield self._over(trial, one.ended, again=one.ended.trouble is None)
        elif outcome is not None or one.ended is not None:
            one.since = one.since or time.monotonic()
            if time.monotonic() - one.since > _SECONDS_TO_FOLLOW:
                silent = Ended(trial, "failed", "its processes ended, and the first of them did not say how")
                yield self._over(trial, one.ended or silent, again=False)

    def _over(self, trial: int, ended: Ended, *, again: bool) -> Ended:
        """Let the crew of an order rest, or dismiss it: after a trouble its processes may not be of one mind."""
        crew = self._running.pop(trial).crew
        if again:
            self._resting.append((crew, time.monotonic()))
        else:
            crew.dismiss()
        return ended

    def _send_home(self) -> None:
        long_ago = time.monotonic() - _SECONDS_TO_REST
        while self._resting and self._resting[0][1] < long_ago:
            self._resting.pop(0)[0].dismiss()

    def close(self) -> None:
        """Ask all trials to write a checkpoint, and dismiss their crews."""
        for one in self._running.values():
            ask_to_stop(one.tray.order.ticket)
        until = time.monotonic() + _SECONDS_TO_FOLLOW
        with suppress(FailureError):  # a cluster that was lost
            while any(one.begun for one in self._running.values()) and time.monotonic() < until:
                self.poll(_SECONDS_BETWEEN_LOOKS)
        for crew in [*(one.crew for one in self._running.values()), *(crew for crew, _ in self._resting)]:
            crew.dismiss()
        self._running, self._resting = {}, []
        if self._ours:
            self._ray.shutdown()
            self._ours = False
        self._quiet.close()


def slots_of(nodes: Sequence[Mapping[str, float]], wants: Mapping[str, float]) -> int:
    """Processes that nodes have room for."""
    return sum(min(int(node.get(name, 0.0) // amount) for name, amount in wants.items()) for node in nodes)


def _verdict(said: Ended | None, trial: int, outcome: Outcome) -> Ended:
    """What an order ended with, of which a process failed: what the first one said, unless it only noticed the failure."""
    if said is not None and said.trouble != "failed":
        return said
    return Ended(trial, outcome.trouble, outcome.reason)
