"""One way for all executors to train trials: a worker takes an order, trains, reports, and hears how far to go.

A worker is a number of processes that live together: started on this machine, in a job of Slurm or as actors of Ray. They
carry out one order of their size after the other, so that Python and torch load once. Driver and worker send each other small
files, each written whole, numbered, and removed by whoever reads it:

STUDY/work/W/   driver-0.json   an order; after a report the resource of the next one, or 0 to end
                worker-0.json   that it is ready; then for every order that it has begun, its reports, its end
                task-0.json     an order and where processes meet: from the first process of the worker to the others
                stop            asks the worker to end, after a checkpoint (driver)
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, TypeAdapter, ValidationError

from ringflow.base.errors import DiskFullError, DivergenceError, InputFileError, RingflowError, StoppedError, UsageError
from ringflow.base.log import complain
from ringflow.base.processes import wait_without_spinning
from ringflow.base.rundir import write_errors
from ringflow.launch.environment import OURS, free_port

#: The processes died; an error that another start may not meet again; the loss is not finite; settings or data are wrong; no
#: room on the disk; told to stop by a signal.
Trouble = Literal["lost", "failed", "diverged", "refused", "full", "interrupted"]
#: What kind of trouble an error is; any other one is "failed".
TROUBLES: Mapping[type[RingflowError], Trouble] = {
    StoppedError: "interrupted",
    UsageError: "refused",
    DivergenceError: "diverged",
    DiskFullError: "full",
}
#: Held by every process of a worker on this machine as long as it lives, in the folder of the study.
LOCK_FILE = "workers.lock"
STOP_FILE = "stop"
#: Seconds between two looks for a message, and whether to stop.
_TO_HEAR, _TO_STOP = 0.05, 0.1


class Order(BaseModel, frozen=True):
    """A trial is to be trained on so many processes, from where it is, until somebody says otherwise."""

    trial: int
    #: Folder of the trial's run.
    run: Path
    #: Of the training, complete, as JSON.
    settings: dict[str, Any]
    #: Resource of its next report.
    until: int
    workers: int
    #: Figures beside those of a validation that its reports are to hold, see `objective`.
    extras: tuple[str, ...] = ()


class Message(NamedTuple):
    """What is heard of a trial: that it has begun, a report (it waits for an answer), or its end, with what went wrong."""

    kind: Literal["begun", "report", "ended"]
    trial: int
    resource: int = 0
    figures: Mapping[str, float | None] | None = None
    trouble: Trouble | None = None
    reason: str = ""


_MESSAGE = TypeAdapter(Message)


def read_message(trial: int, words: Mapping[str, Any]) -> Message:
    """What a worker said of its trial."""
    try:
        return _MESSAGE.validate_python({**words, "trial": trial})
    except ValidationError:
        raise InputFileError(f"a worker said {str(words)[:80]!r} of trial {trial}, which is no message") from None


class Channel:
    """One end of a conversation through files in a folder, which may be on a network."""

    def __init__(self, folder: Path, me: str, other: str) -> None:
        self._folder, self._me, self._other = folder, me, other
        self._sent = self._received = 0

    def send(self, **words: Any) -> None:
        """Say something."""
        _write(self._folder / f"{self._me}-{self._sent}.json", words)
        self._sent += 1

    def receive(self) -> dict[str, Any] | None:
        """What the other end says next; None if it has not."""
        path = self._folder / f"{self._other}-{self._received}.json"
        if (words := _read(path)) is not None:
            path.unlink()
            self._received += 1
        return words


def _write(path: Path, words: Mapping[str, Any]) -> None:
    """Whole, but not safe from a crash of the machine, after which nobody would read it."""
    with write_errors(path):
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(json.dumps(words, allow_nan=False), encoding="utf-8")
        temporary.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        if path.name not in os.listdir(path.parent):  # which sees what a network file system believes to be missing
            return None
        words = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, dict):
        raise InputFileError(f"{path} is no message of a study; leave its folder work/ alone, and resume the study")
    return words


def _wait(
    look: Callable[[], dict[str, Any] | None], stopped: Callable[[], bool], seconds: float = math.inf
) -> dict[str, Any] | None:
    """What comes, or None if the wait is stopped or takes too long."""
    until = time.monotonic() + seconds
    while not stopped() and time.monotonic() < until:
        if (found := look()) is not None:
            return found
        time.sleep(_TO_HEAR)
    return None


def work_folder(study: Path) -> Path:
    """Where driver and workers of a study meet."""
    return study.absolute() / "work"


@dataclass(frozen=True)
class Worker:
    """One process of a worker: who it is, and what it does. Without its folder it ends."""

    folder: Path
    rank: int = 0
    size: int = 1
    local_rank: int | None = None
    #: Where the others find the first process.
    host: str = "127.0.0.1"
    #: Seconds without an order after which it ends.
    idle: float = math.inf
    #: Whether it ends with the process that started it.
    follows_parent: bool = False

    def work(self) -> None:
        """Carry out orders, in the main thread, until it is asked to stop or there were none for long."""
        self.folder.mkdir(parents=True, exist_ok=True)
        channel = Channel(self.folder, "worker", "driver")
        with self._heeding() as stopped:
            if self.rank == 0:
                channel.send(kind="ready")
            for number in count():
                task = self._next_task(number, channel, stopped)
                if not task:
                    return
                self._take_place(task)
                self._carry_out(Order.model_validate(task["order"]), channel, stopped)

    def _next_task(self, number: int, channel: Channel, stopped: Callable[[], bool]) -> dict[str, Any] | None:
        """The next order; the first process hears it from the driver and tells the others."""
        path = self.folder / f"task-{number}.json"
        if self.rank:
            return _wait(lambda: _read(path), stopped)
        order = _wait(channel.receive, stopped, self.idle)
        task = {"order": order, "host": self.host, "port": free_port() if self.size > 1 else 0} if order else {}
        if self.size > 1 and (order or not stopped()):  # otherwise they see for themselves
            _write(path, task)
        return task

    def _take_place(self, task: Mapping[str, Any]) -> None:
        for name in (*OURS, "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        if self.local_rank is not None or self.size > 1:
            os.environ["LOCAL_RANK"] = str(self.rank if self.local_rank is None else self.local_rank)
        if self.size > 1:
            os.environ |= {"RANK": str(self.rank), "WORLD_SIZE": str(self.size)}
            os.environ |= {"MASTER_ADDR": task["host"], "MASTER_PORT": str(task["port"])}

    def _carry_out(self, order: Order, channel: Channel, stopped: Callable[[], bool]) -> None:
        """Train; what is written for people goes beside the run of the trial."""
        try:
            log = order.run.with_suffix(".log" if self.rank == 0 else f".{self.rank}.log")
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as said, redirect_stdout(said), redirect_stderr(said):
                trouble = train_order(order, channel if self.rank == 0 else None, stopped)
        except Exception:
            if self.folder.is_dir():
                raise  # a mistake of ours, or a disk that takes no report
            complain("the order was taken back by a new driver; what was trained is saved")
            return
        from ringflow.train.device import give_back_memory

        give_back_memory()
        if self.rank and trouble == "failed":
            raise SystemExit(1)  # the others wait for this one

    @contextmanager
    def _heeding(self) -> Iterator[Callable[[], bool]]:
        """Whether the end is wished for: by a file, by a signal, by the death of a parent.

        A training takes note of signals while its steps are under way only. One that comes earlier, and the file, are passed on
        to it as soon as it listens.
        """
        wished, over, parent = threading.Event(), threading.Event(), os.getppid()

        def note(number: int, frame: FrameType | None) -> None:
            wished.set()

        def watch() -> None:
            passed_on = None
            while not over.wait(_TO_STOP):
                if self._asked() or (self.follows_parent and os.getppid() != parent):
                    wished.set()
                handler = signal.getsignal(signal.SIGUSR1)
                # One that is no function any more would end the process: the training has heard of a signal already.
                if wished.is_set() and handler not in (note, passed_on) and callable(handler):
                    passed_on = handler
                    os.kill(os.getpid(), signal.SIGUSR1)

        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGUSR1)}
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield wished.is_set
        finally:
            over.set()
            watcher.join()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _asked(self) -> bool:
        """Whether the file is there, or the whole folder was taken away."""
        try:
            return STOP_FILE in os.listdir(self.folder)
        except FileNotFoundError:
            return True
        except OSError:
            return False  # a file system that does not answer for a while


def train_order(order: Order, channel: Channel | None, stopped: Callable[[], bool]) -> Trouble | None:
    """The ordinary training, which asks at every rung how far it goes. Only the first process has a channel."""
    from ringflow.train.run import train
    from ringflow.train.settings import TrainSettings
    from ringflow.tune.record import measure_extras

    until, extras = order.until, dict[str, float]()

    def pace(events: int, figures: Mapping[str, float | None]) -> int:
        """How far to go, after a validation. An error if the wait for the answer is to be stopped."""
        nonlocal until, extras
        if channel is not None and 0 < until <= events:
            extras = extras or measure_extras(order.extras, order.run)
            channel.send(kind="report", resource=events, figures={**figures, **extras})
            answer = _wait(channel.receive, stopped)
            if answer is None:
                raise StoppedError(f"stopped while it waited for an answer after {events} events; all is saved")
            until = answer["until"]
        return until

    if channel is not None:
        channel.send(kind="begun")
    trouble: Trouble | None = None
    reason = ""
    try:
        train(TrainSettings.model_validate(order.settings), order.run, pace=pace)
        if channel is not None and until:
            trouble, reason = "failed", f"the training ended before the {until} events that it was to show"
    except RingflowError as error:
        trouble = next((trouble for kind, trouble in TROUBLES.items() if isinstance(error, kind)), "failed")
        reason = str(error)
        if not error.told:
            complain(f"ringflow: error: {error}")
    except Exception as error:  # a study of days does not end for one trial; the next start may do better
        trouble, reason = "failed", " ".join(f"{type(error).__name__}: {error}".split())[:300]
        traceback.print_exc()
    if channel is not None:
        channel.send(kind="ended", trouble=trouble, reason=reason)
    return trouble


def main(words: str) -> None:
    """A process on this machine, as `executors` starts it."""
    wait_without_spinning()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # typed at a terminal it is meant for the driver, which tells us
    told = json.loads(words)
    folder = Path(told.pop("folder"))
    lock = os.open(folder.parents[1] / LOCK_FILE, os.O_RDONLY | os.O_CREAT, 0o644)
    fcntl.flock(lock, fcntl.LOCK_SH)
    Worker(folder, follows_parent=True, **told).work()


if __name__ == "__main__":
    main(sys.argv[1])
