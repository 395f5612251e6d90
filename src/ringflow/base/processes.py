"""Worker processes neither answer Ctrl-C themselves nor outlive whoever started them, and keep memory for reuse. How many cores
there are for them, and how threads wait for each other."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20
_LARGEST_INT = (1 << 31) - 1


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Ctrl-C reaches the whole process group, but the parent ends its workers: what it starts in here is deaf.

    A child inherits what its parent's thread blocks. The parent's other threads still take the signal, and Python answers
    in the main thread: there it is noted and answered at the end.
    """
    resource_tracker.ensure_running()  # started later, by the first worker, it would lift the block
    noted: list[int] = []
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: noted.append(number)) if in_main_thread else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)
    if noted:
        signal.raise_signal(signal.SIGINT)


def die_with_parent() -> None:
    """A worker that outlived a killed parent could write into somebody else's production."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def keep_freed_memory() -> None:
    """Ask the C library to keep freed buffers for reuse instead of handing them back to the system.

    Work in blocks frees and takes the same megabytes again and again, and every return costs page faults: a tenth of the
    time of a simulation. Only glibc has the setting; elsewhere nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    mallopt(_TRIM_THRESHOLD, _LARGEST_INT)


def usable_cores() -> int:
    """Cores that this process may use; of macOS, which does not say, all that there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wait_without_spinning() -> None:
    """Let waiting threads sleep; to be called before torch is imported.

    By default they spin. Where another process wants the core, as on shared nodes, one spins through the time slice that
    the other needs: a network of 4 ms per event took 400 ms on two cores beside two busy processes, and 9 ms with this.
    Whoever sets OMP_WAIT_POLICY themselves keeps their choice.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
