"""Ending well when asked to: a signal is taken note of, and the training stops after the step it is in.

Slurm sends SIGUSR1 before the time of a job is up, a terminal SIGINT at Ctrl-C, and everybody SIGTERM to what shall end.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ringflow.base.errors import StoppedError
from ringflow.base.log import speaks

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Wish:
    """Whether the end is wished for, and by which signal."""

    signal_name: str | None = None


@contextmanager
def heeding_signals() -> Iterator[Wish]:
    """Take note of the first signal, instead of dying of it; the second one has its usual effect."""
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():  # Python lets no other thread set handlers
        yield wish
        return

    def heed(number: int, frame: FrameType | None) -> None:
        wish.signal_name = signal.Signals(number).name
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if number == signal.SIGINT and speaks():  # a step that waits for data can take long; print is not for handlers
            os.write(2, b"stopping after this step; Ctrl-C again stops at once\n")

    # What is ignored was not meant for this process: a shell gives SIGINT to those in the foreground only.
    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, heed) for number in heeded}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopped(signal_name: str, events: int) -> StoppedError:
    """The error of a training that a signal has ended, after its checkpoint."""
    error = StoppedError(
        f"stopped by {signal_name} after {events} events, and all is saved; the same command goes on from there"
    )
    if signal_name == signal.SIGINT.name:  # nobody who types Ctrl-C wants a batch system to start it again
        error.exit_code = 130
    return error
