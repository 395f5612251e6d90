"""Orders, reports and answers as small files, each written once and whole:

STUDY/desk/000007-2/order.json      what to train (driver)
                    begun           it has its processes (trial)
                    report-0.json   figures at a rung (trial) ... report-1.json
                    answer-0.json   resource of the next report, 0 to end (driver) ...
                    ended.json      trouble and reason, or none (trial)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringflow.base.errors import StoppedError
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.tune.executor import Begun, Ended, Message, Order, Said, Trouble

DESK_FOLDER = "desk"
_ORDER, _BEGUN, _ENDED = "order.json", "begun", "ended.json"


def lay(order: Order) -> None:
    """Put an order on the desk."""
    with write_errors(order.ticket):
        order.ticket.mkdir(parents=True, exist_ok=True)
    words = {**asdict(order), "ticket": str(order.ticket), "run": str(order.run)}
    write_atomic(order.ticket / _ORDER, json.dumps(words))


def read_order(ticket: Path) -> Order:
    """The order in a folder of the desk."""
    words = json.loads((ticket / _ORDER).read_text(encoding="utf-8"))
    paths = {"ticket": Path(words["ticket"]), "run": Path(words["run"]), "extras": tuple(words["extras"])}
    return Order(**{**words, **paths})


class Side:
    """The trial's side of a ticket: its first process writes here."""

    def __init__(self, ticket: Path, *, pause: float = 0.02) -> None:
        self._ticket, self._pause, self._said = ticket, pause, 0

    def begin(self) -> None:
        """It has its processes."""
        write_atomic(self._ticket / _BEGUN, "")

    def report(
        self, resource: int, figures: Mapping[str, float | None], ring: Callable[[], None], stopped: Callable[[], bool]
    ) -> int:
        """Lay down a report, ring the bell, and wait for the answer. An error if the wait is to be stopped."""
        number, self._said = self._said, self._said + 1
        words = {"resource": resource, "figures": dict(figures)}
        write_atomic(self._ticket / f"report-{number}.json", json.dumps(words, allow_nan=False))
        ring()
        path = self._ticket / f"answer-{number}.json"
        while not path.exists():
            if stopped():
                raise StoppedError(f"stopped while it waited for an answer after {resource} events; all is saved")
            time.sleep(self._pause)
        return int(json.loads(path.read_text(encoding="utf-8"))["until"])

    def end(self, trouble: Trouble | None = None, reason: str = "") -> None:
        """The training is over."""
        write_atomic(self._ticket / _ENDED, json.dumps({"trouble": trouble, "reason": reason}))


class Tray:
    """The driver's side of a ticket: what has come in since it was looked at."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._begun, self._heard, self.ended = False, 0, False

    def look(self) -> Iterator[Message]:
        """What is new."""
        ticket, trial = self.order.ticket, self.order.trial
        if not self._begun and (ticket / _BEGUN).exists():
            self._begun = True
            yield Begun(trial)
        while (said := _read(ticket / f"report-{self._heard}.json")) is not None:
            self._heard += 1
            yield Said(trial, said["resource"], said["figures"])
        if not self.ended and (said := _read(ticket / _ENDED)) is not None:
            self.ended = True
            yield Ended(trial, said["trouble"], said["reason"])

    def answer(self, until: int) -> None:
        """Answer the last report."""
        write_atomic(self.order.ticket / f"answer-{self._heard - 1}.json", json.dumps({"until": until}))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
