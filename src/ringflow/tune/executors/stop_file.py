"""A file on a ticket that asks the processes of a trial to end after a checkpoint, on whatever machines they are.

ask_to_stop(order.ticket)                       # the executor, or who started the processes
with heeding_stop(ticket) as stopped:           # every process
    carry_out(ticket, stopped=stopped)
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ringflow.base.rundir import write_atomic

_STOP = "stop"
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_SECONDS_BETWEEN_LOOKS = 0.1


def ask_to_stop(ticket: Path) -> None:
    """Lay the file down."""
    write_atomic(ticket / _STOP, "")


def _asked(ticket: Path) -> bool:
    """Whether the file is there, or the whole order was taken away."""
    try:
        return _STOP in os.listdir(ticket)  # which sees what a network file system would still believe to be missing
    except FileNotFoundError:
        return True
    except OSError:
        return False  # a file system that does not answer for a while


@contextmanager
def heeding_stop(ticket: Path) -> Iterator[Callable[[], bool]]:
    """Whether the end is wished for, by the file or by a signal; to be used in the main thread.

    A training takes note of signals while its steps are under way only. One that comes earlier, and the file, are passed on to
    it as soon as it listens.
    """
    wished, over = threading.Event(), threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        wished.set()

    def watch() -> None:
        while not over.wait(_SECONDS_BETWEEN_LOOKS):
            if _asked(ticket):
                wished.set()
            handler = signal.getsignal(signal.SIGUSR1)
            # One that is no function any more would end the process: the training has heard of a signal already.
            if wished.is_set() and handler is not note and callable(handler):
                os.kill(os.getpid(), signal.SIGUSR1)
                return

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
