"""Trials in processes of this machine. They are started once and take one order after the other; a trial of several processes
takes several of them. If one of a trial's dies, the others are ended with it, and new ones take their places."""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.threads import usable_cores
from ringflow.tune.desk import DESK_FOLDER, Tray
from ringflow.tune.executor import Ended, Message, Order
from ringflow.tune.executors.worker import DONE, LOCK_FILE

#: Seconds to write a checkpoint at the end; and between two looks at the desk where nobody rang.
_TO_END, _BETWEEN_LOOKS = 30.0, 1.0
#: Seconds that the processes of a trial have to notice that one of them ended; and that one takes to die.
_TO_FOLLOW, _TO_DIE = 30.0, 5.0


class _Slot:
    """A place for a process."""

    def __init__(self, number: int, log: Path, variables: dict[str, str]) -> None:
        self._number, self._log, self._variables = number, log, variables
        self.process: subprocess.Popen[str] | None = None

    def send(self, order: Order, place: dict[str, str]) -> IO[str] | None:
        """Give an order to the process; its bell, if it had to be started."""
        bell = None
        if self.process is None:
            self.process = self._spawn()
            bell = self.process.stdout
        rank = place.get("RANK", "0")
        output = order.run.with_suffix(".log" if rank == "0" else f".{rank}.log")
        told = {"ticket": str(order.ticket), "output": str(output), "place": place}
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it died idle; its bell tells
            self.process.stdin.write(json.dumps(told) + "\n")
            self.process.stdin.flush()
        return bell

    def _spawn(self) -> subprocess.Popen[str]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "ringflow.tune.executors.worker", str(self._log.parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self._variables},
                process_group=0,  # what is typed at the terminal is not for it
            )

    def kill(self, patience: float = 0.0) -> int:
        """End the process if it has not ended within so many seconds; its exit code."""
        assert self.process is not None
        process, self.process = self.process, None
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                _close(pipe)
        return code


def _close(pipe: IO[str]) -> None:
    with suppress(BrokenPipeError):  # it had not read all
        pipe.close()


@dataclass
class _Running:
    """An order on its slots."""

    tray: Tray
    slots: list[_Slot]
    busy: set[int] = field(default_factory=set)  # numbers of ranks that have not finished
    first_done: float | None = None
    told: Ended | None = None


class LocalExecutor:
    """So many processes, on the accelerators that there are, or else on the cores."""

    def __init__(self, study: Path, workers: int, accelerators: int = 0) -> None:
        threads = max(usable_cores() // workers, 1)
        variables = {"OMP_NUM_THREADS": str(threads)} if "OMP_NUM_THREADS" not in os.environ else {}
        desk = study / DESK_FOLDER
        _wait_for_orphans(desk)
        self._accelerators = accelerators
        self._free = [_Slot(number, desk / f"worker-{number}.log", variables) for number in range(workers)]
        self._number = {id(slot): number for number, slot in enumerate(self._free)}
        self._all = list(self._free)
        self._running: dict[int, _Running] = {}
        self._bells = selectors.DefaultSelector()
        self._looked = 0.0

    def room(self, workers: int) -> bool:
        """Whether so many places are free."""
        if workers > len(self._all):
            raise UsageError(f"a trial of {workers} processes does not fit on --workers {len(self._all)}; give more")
        return len(self._free) >= workers

    def start(self, order: Order) -> None:
        """On free places, those with a process first."""
        self._free.sort(key=lambda slot: slot.process is None)
        slots, self._free = self._free[: order.workers], self._free[order.workers :]
        self._running[order.trial] = _Running(Tray(order), slots, set(range(order.workers)))
        meeting = _free_port() if order.workers > 1 else 0
        for rank, slot in enumerate(slots):
            bell = slot.send(order, self._place(slot, rank, order.workers, meeting))
            if bell is not None:
                self._bells.register(bell, selectors.EVENT_READ, slot)

    def _place(self, slot: _Slot, rank: int, size: int, meeting: int) -> dict[str, str]:
        place = {"LOCAL_RANK": str(self._number[id(slot)] % self._accelerators)} if self._accelerators else {}
        if size > 1:
            place |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(meeting),
            }
            place.setdefault("LOCAL_RANK", str(rank))
        return place

    def answer(self, trial: int, until: int) -> None:
        """Through the desk."""
        self._running[trial].tray.answer(until)

    def poll(self, seconds: float) -> Sequence[Message]:
        """Wait for a bell, then look at the desk."""
        rung = self._bells.select(min(seconds, _BETWEEN_LOOKS)) if self._bells.get_map() else []
        for key, _ in rung:
            self._hear(key.data)
        messages: list[Message] = []
        for running in list(self._running.values()):
            messages += self._look(running)
        return messages

    def _hear(self, slot: _Slot) -> None:
        assert slot.process is not None
        assert slot.process.stdout is not None
        words = os.read(slot.process.stdout.fileno(), 4096).decode()
        running = next((running for running in self._running.values() if slot in running.slots), None)
        if not words:
            self._bells.unregister(slot.process.stdout)
            code = slot.kill(_TO_DIE)  # its bell is silent, so it is about to be gone
            if running is not None:
                self._lose(running, slot, code)
        elif running is not None:
            for _ in range(words.split().count(DONE)):
                running.busy.discard(running.slots.index(slot))
                running.first_done = running.first_done or time.monotonic()

    def _lose(self, running: _Running, dead: _Slot, code: int) -> None:
        """One process of a trial is gone: the others cannot go on without it."""
        rank = running.slots.index(dead)
        if rank not in running.busy:
            return  # it had finished
        self._end_processes(running)
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        hint = ", perhaps for want of memory" if code == -signal.SIGKILL else ""
        trial = running.tray.order.trial
        running.told = Ended(trial, "lost", f"process {rank} of the trial was ended {how}{hint}")

    def _end_processes(self, running: _Running) -> None:
        for slot in running.slots:
            if slot.process is not None and slot.process.stdout is not None:
                self._bells.unregister(slot.process.stdout)
                slot.kill()
        running.busy.clear()

    def _look(self, running: _Running) -> Sequence[Message]:
        messages: list[Message] = []
        for message in running.tray.look():
            if isinstance(message, Ended):
                running.told = running.told or message
            else:
                messages.append(message)
        if running.busy and running.first_done and time.monotonic() - running.first_done > _TO_FOLLOW:
            self._end_processes(running)
        if not running.busy:
            trial = running.tray.order.trial
            messages.append(running.told or Ended(trial, "lost", "the processes of the trial ended without a word"))
            self._free += running.slots
            del self._running[trial]
        return messages

    def close(self) -> None:
        """Let all processes write a checkpoint and end."""
        processes = [slot.process for slot in self._all if slot.process is not None]
        for process in processes:
            if process.stdin is not None:
                _close(process.stdin)
        end = time.monotonic() + _TO_END
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(end - time.monotonic(), 0.0))
        for slot in self._all:
            if slot.process is not None:
                slot.kill()
        self._bells.close()


def _wait_for_orphans(desk: Path) -> None:
    """Processes that outlived a killed driver are writing their checkpoints."""
    desk.mkdir(parents=True, exist_ok=True)
    lock = os.open(desk / LOCK_FILE, os.O_RDONLY | os.O_CREAT, 0o644)
    end = time.monotonic() + _TO_END
    try:
        while time.monotonic() < end:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:
                return  # a file system without locks
        raise FailureError(f"processes of an earlier start still run in {desk.parent}; end them, or wait")
    finally:
        os.close(lock)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
