"""One way for all executors to train trials: a worker claims an order, trains, reports, and hears how far to go.

A worker is a number of processes that live together: started on this machine, in a job of Slurm or as actors of Ray. They take
one order of their size after the other, so that Python and torch load once. What is said are small files in the study, each
written once and whole, so whoever is killed finds everything when it comes back:

STUDY/work/queue-2/00000012      an order for two processes that nobody has; holds the path of its folder
           orders/000007-2/      order.json    what to train (driver)
                                 claimed-W     the file of the queue, once worker W has taken it
                                 said-0.json   it has begun, then its reports, then its end (first process of the worker)
                                 answer-1.json resource of the next report, 0 to end, in answer to said-1 (driver)
           workers/W/            stop          asks the worker to end, after a checkpoint (driver)
                                 task-0.json   the first order that it claimed, and where its processes meet
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from ringflow.base.errors import DiskFullError, DivergenceError, RingflowError, StoppedError, UsageError
from ringflow.base.log import complain
from ringflow.base.processes import wait_without_spinning
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.launch.environment import OURS, free_port

#: The processes died; an error that another start may not meet again; the loss is not finite; settings or data are wrong; no
#: room on the disk; told to stop by a signal.
Trouble = Literal["lost", "failed", "diverged", "refused", "full", "interrupted"]
#: Held by every process of a worker on this machine as long as it lives, in the folder of the study.
LOCK_FILE = "workers.lock"
_STOP = "stop"
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
#: Between two looks: for an answer, for an order, and whether to stop.
_TO_ANSWER, _TO_CLAIM, _TO_STOP = 0.02, 0.05, 0.1


@dataclass(frozen=True)
class Order:
    """A trial is to be trained on so many processes, from where it is, until somebody says otherwise."""

    trial: int
    #: Folder of the order, made by the driver, different for every start of a trial.
    folder: Path
    #: Folder of the trial's run.
    run: Path
    #: Of the training, complete, as JSON.
    settings: dict[str, Any]
    #: Resource of its next report.
    until: int
    workers: int
    #: Figures beside those of a validation that its reports are to hold, see `objective`.
    extras: tuple[str, ...] = ()

    def write(self) -> None:
        """Lay it into its folder."""
        with write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        words = {**asdict(self), "folder": str(self.folder), "run": str(self.run)}
        write_atomic(self.folder / "order.json", json.dumps(words))

    @classmethod
    def read(cls, folder: Path) -> Order:
        """The order that lies in a folder."""
        words = json.loads((folder / "order.json").read_text(encoding="utf-8"))
        paths = {"folder": Path(words["folder"]), "run": Path(words["run"]), "extras": tuple(words["extras"])}
        return cls(**{**words, **paths})


@dataclass(frozen=True)
class Begun:
    """An order has its processes, those of a worker."""

    trial: int
    worker: str = ""


@dataclass(frozen=True)
class Said:
    """A trial came to the resource it was to report at, and waits for an answer."""

    trial: int
    resource: int
    figures: dict[str, float | None]


@dataclass(frozen=True)
class Ended:
    """The processes of an order are done with it, as they were told (no trouble), or because something went wrong."""

    trial: int
    trouble: Trouble | None = None
    reason: str = ""


Message = Begun | Said | Ended


class Mail:
    """The driver's side of an order: what has come since it was looked at, and answers."""

    def __init__(self, order: Order) -> None:
        self.order, self._heard = order, 0
        self.ended: Ended | None = None

    def look(self) -> Iterator[Message]:
        """What is new."""
        while (said := _read(self.order.folder / f"said-{self._heard}.json")) is not None:
            self._heard += 1
            match said.pop("kind"):
                case "begun":
                    yield Begun(self.order.trial, **said)
                case "report":
                    yield Said(self.order.trial, **said)
                case _:
                    self.ended = Ended(self.order.trial, **said)
                    yield self.ended

    def answer(self, until: int) -> None:
        """Answer the last report."""
        write_atomic(self.order.folder / f"answer-{self._heard - 1}.json", json.dumps({"until": until}))


class Voice:
    """The worker's side of an order: its first process speaks."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._said = folder, 0

    def say(self, kind: Literal["begun", "report", "ended"], **words: Any) -> int:
        """Write down what happened; its number."""
        number, self._said = self._said, self._said + 1
        write_atomic(self._folder / f"said-{number}.json", json.dumps({"kind": kind, **words}, allow_nan=False))
        return number

    def report(self, resource: int, figures: Mapping[str, float | None], stopped: Callable[[], bool]) -> int:
        """Report, and wait for the answer. An error if the wait is to be stopped."""
        path = self._folder / f"answer-{self.say('report', resource=resource, figures=dict(figures))}.json"
        while (answer := _read(path)) is None:
            if stopped():
                raise StoppedError(f"stopped while it waited for an answer after {resource} events; all is saved")
            time.sleep(_TO_ANSWER)
        return int(answer["until"])


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def work_folder(study: Path) -> Path:
    """Where driver and workers of a study meet."""
    return study / "work"


def worker_folder(study: Path, name: str) -> Path:
    """Of one worker; without it, it ends."""
    return work_folder(study) / "workers" / name


def offer(study: Path, order: Order, number: int) -> None:
    """Let a worker of its size have an order; lower numbers are taken first."""
    queue = work_folder(study) / f"queue-{order.workers}"
    with write_errors(queue):
        queue.mkdir(parents=True, exist_ok=True)
    write_atomic(queue / f"{number:08d}", str(order.folder.absolute()))


def claim(study: Path, size: int, name: str) -> Path | None:
    """Take the oldest order of a size; its folder, or None if there is none. Of several workers that want it one gets it."""
    queue = work_folder(study) / f"queue-{size}"
    try:
        numbers = sorted(number for number in os.listdir(queue) if number.isdecimal())
    except FileNotFoundError:
        return None
    for number in numbers:
        try:
            folder = Path((queue / number).read_text(encoding="utf-8"))
            (queue / number).rename(folder / f"claimed-{name}")
        except FileNotFoundError:
            continue  # another worker was faster, or the driver took it back
        return folder
    return None


def is_claimed(order: Order, name: str) -> bool:
    """Whether a worker has taken an order."""
    return f"claimed-{name}" in os.listdir(order.folder)  # which sees what a network file system believes to be missing


def ask_to_stop(study: Path, name: str) -> None:
    """Have a worker end after a checkpoint."""
    write_atomic(worker_folder(study, name) / _STOP, "")


@dataclass(frozen=True)
class Worker:
    """One process of a worker: who it is, and what it does."""

    study: Path
    name: str
    rank: int = 0
    size: int = 1
    local_rank: int | None = None
    #: Where processes find the first one.
    host: str = "127.0.0.1"
    #: Seconds without an order after which it ends.
    idle: float = float("inf")
    #: Whether it ends with the process that started it.
    follows_parent: bool = False

    def work(self) -> None:
        """Carry out orders, in the main thread, until it is asked to stop or there were none for long."""
        with self._heeding() as stopped:
            for number in range(sys.maxsize):
                task = self._claim(number, stopped) if self.rank == 0 else self._join(number, stopped)
                if not task:
                    return
                self._take_place(task)
                self._carry_out(Path(task["order"]), stopped)

    def _claim(self, number: int, stopped: Callable[[], bool]) -> dict[str, Any] | None:
        """The next order, told to the other processes."""
        folder, until = None, time.monotonic() + self.idle
        while not stopped() and time.monotonic() < until:
            folder = claim(self.study, self.size, self.name)
            if folder is not None:
                break
            time.sleep(_TO_CLAIM)
        task = {"order": str(folder), "port": free_port() if self.size > 1 else 0} if folder else None
        if self.size > 1 and not (task is None and stopped()):  # otherwise they see for themselves
            write_atomic(worker_folder(self.study, self.name) / f"task-{number}.json", json.dumps(task or {}))
        return task

    def _join(self, number: int, stopped: Callable[[], bool]) -> dict[str, Any] | None:
        """What the first process has claimed."""
        path = worker_folder(self.study, self.name) / f"task-{number}.json"
        while (task := _read(path)) is None:
            if stopped():
                return None
            time.sleep(_TO_CLAIM)
        found: dict[str, Any] = task
        return found

    def _take_place(self, task: Mapping[str, Any]) -> None:
        for name in (*OURS, "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        if self.local_rank is not None or self.size > 1:
            os.environ["LOCAL_RANK"] = str(self.rank if self.local_rank is None else self.local_rank)
        if self.size > 1:
            os.environ |= {"RANK": str(self.rank), "WORLD_SIZE": str(self.size)}
            os.environ |= {"MASTER_ADDR": self.host, "MASTER_PORT": str(task["port"])}

    def _carry_out(self, folder: Path, stopped: Callable[[], bool]) -> None:
        """Train; what is written for people goes beside the run of the trial."""
        try:
            order = Order.read(folder)
            log = order.run.with_suffix(".log" if self.rank == 0 else f".{self.rank}.log")
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as said, redirect_stdout(said), redirect_stderr(said):
                trouble = train_order(order, self.name if self.rank == 0 else None, stopped)
        except Exception:
            if folder.is_dir():
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

        before = {number: signal.signal(number, note) for number in _SIGNALS}
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
            return _STOP in os.listdir(worker_folder(self.study, self.name))
        except FileNotFoundError:
            return True
        except OSError:
            return False  # a file system that does not answer for a while


def train_order(order: Order, worker: str | None, stopped: Callable[[], bool] = lambda: False) -> Trouble | None:
    """The ordinary training, which asks at every rung how far it goes. Only the first process, which has a name, speaks."""
    from ringflow.train.run import train
    from ringflow.train.settings import TrainSettings

    voice = Voice(order.folder)
    if worker is not None:
        voice.say("begun", worker=worker)
    pace = _Rungs(order, voice, stopped)
    trouble: Trouble | None = None
    reason = ""
    try:
        train(TrainSettings.model_validate(order.settings), order.run, pace=pace.ask)
        if worker is not None and not pace.ended:
            trouble, reason = "failed", f"the training ended before the {pace.until} events that it was to show"
    except RingflowError as error:
        trouble, reason = trouble_of(error), str(error)
        if not error.told:
            complain(f"ringflow: error: {error}")
    except Exception as error:  # a study of days does not end for one trial; the next start may do better
        trouble, reason = "failed", " ".join(f"{type(error).__name__}: {error}".split())[:300]
        traceback.print_exc()
    if worker is not None:
        voice.say("ended", trouble=trouble, reason=reason)
    return trouble


class _Rungs:
    """Reports the figures of a validation at a rung, and waits to be told how far to go."""

    def __init__(self, order: Order, voice: Voice, stopped: Callable[[], bool]) -> None:
        self._order, self._voice, self._stopped = order, voice, stopped
        self.until, self.ended = order.until, False
        self._extras: dict[str, float] = {}

    def ask(self, events: int, figures: Mapping[str, float | None]) -> int:
        """How far to go, after a validation."""
        if events < self.until or self.ended:
            return self.until
        if not self._extras:
            from ringflow.tune.objective import measure_extras

            self._extras = measure_extras(self._order.extras, self._order.run)
        self.until = self._voice.report(events, {**figures, **self._extras}, self._stopped)
        self.ended = self.until == 0
        return self.until


def trouble_of(error: RingflowError) -> Trouble:
    """What kind of trouble an error is."""
    kinds: tuple[tuple[type[RingflowError], Trouble], ...] = (
        (StoppedError, "interrupted"),
        (UsageError, "refused"),
        (DivergenceError, "diverged"),
        (DiskFullError, "full"),
    )
    return next((trouble for kind, trouble in kinds if isinstance(error, kind)), "failed")


def main(words: str) -> None:
    """A process on this machine, as `executors` starts it."""
    wait_without_spinning()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # typed at a terminal it is meant for the driver, which tells us
    told = json.loads(words)
    study = Path(told.pop("study"))
    lock = os.open(study / LOCK_FILE, os.O_RDONLY | os.O_CREAT, 0o644)
    fcntl.flock(lock, fcntl.LOCK_SH)
    Worker(study, follows_parent=True, **told).work()


if __name__ == "__main__":
    main(sys.argv[1])
