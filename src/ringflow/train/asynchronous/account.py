"""What the processes of an asynchronous training spent their time on, and what they sent: `asynchronous.json` of a run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ringflow.base.rundir import write_atomic
from ringflow.train.phases import Phases

ACCOUNT_FILE = "asynchronous.json"


class Stopwatch(Phases):
    """Adds up the seconds of every phase; those of an accelerator are counted where the host waits for it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun


class Account(NamedTuple):
    """Of one process, since its start."""

    seconds: dict[str, float]
    bytes_sent: int
    bytes_received: int


class Staleness:
    """How often the weights of the master had moved since a worker fetched those that it worked with."""

    def __init__(self) -> None:
        self._sum = self._count = self.largest = 0

    def add(self, moves: int) -> None:
        """Take note of one more."""
        self._sum += moves
        self._count += 1
        self.largest = max(self.largest, moves)

    @property
    def mean(self) -> float:
        """Over all that were noted; 0 if there are none."""
        return self._sum / max(self._count, 1)


def write_accounts(folder: Path, sync: str, staleness: Staleness, accounts: Sequence[Account]) -> None:
    """Write the accounts of all processes, by rank; the first is the master's."""
    ranks: list[dict[str, Any]] = [
        {"rank": rank, "role": "worker" if rank else "master", **account._asdict()}
        for rank, account in enumerate(accounts)
    ]
    record = {
        "sync": sync,
        "workers": len(accounts) - 1,
        "staleness_mean": staleness.mean,
        "staleness_largest": staleness.largest,
        "ranks": ranks,
    }
    write_atomic(folder / ACCOUNT_FILE, json.dumps(record, indent=1) + "\n")
