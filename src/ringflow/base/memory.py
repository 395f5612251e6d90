"""Memory of long-running number crunching."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20
_LARGEST_INT = (1 << 31) - 1


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
