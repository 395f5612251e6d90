"""How things are measured: processor time and clock, memory, a fresh process; and records of what was found.

A number is worth nothing without the machine, the commit and the settings it was measured with: `train.device.hardware` tells.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ringflow.base.rundir import write_atomic

P = ParamSpec("P")
R = TypeVar("R")

_LEAST_REPEATS, _LEAST_SECONDS = 3, 1.0


def write_record(result: Mapping[str, Any], path: Path) -> Path:
    """Keep a result as JSON; its path."""
    write_atomic(path, json.dumps(result, indent=2) + "\n")
    return path


def in_fresh_process(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What a function of a module returns in a process of its own, which profits from no memory or cache of another."""
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads and the memory of this process
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *args, **kwargs).result()


def median_milliseconds(work: Callable[[], object]) -> tuple[float, float]:
    """Processor time of all threads and time by the clock, medians of repeated calls."""
    cpu: list[float] = []
    wall: list[float] = []
    end = time.perf_counter() + _LEAST_SECONDS
    while len(cpu) < _LEAST_REPEATS or time.perf_counter() < end:
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        work()
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - wall_start)
    return 1000.0 * statistics.median(cpu), 1000.0 * statistics.median(wall)


def peak_megabytes(work: Callable[[], object]) -> float:
    """How far the resident memory of this process rises above where it is now while the work is done."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again from here
    except OSError:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    resident = _status_kilobytes("VmRSS")
    work()
    return max(_status_kilobytes("VmHWM") - resident, 0) / 1024


def _status_kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
