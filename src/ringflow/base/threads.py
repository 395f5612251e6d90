"""How many cores there are for threads and processes, and how threads wait for each other."""

from __future__ import annotations

import os


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
