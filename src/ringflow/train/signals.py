"""Ending well when asked to: a signal is taken note of, and the training stops after the step it is in.

Slurm sends SIGUSR1 before the time of a job is up, and everybody SIGTERM to what shall end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


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
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, heed) for number in _SIGNALS}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
