"""Benchmarks. How things are measured: processor time and clock, memory, a fresh process; and records of what was found.

A number is worth nothing without the machine, the commit and the settings it was measured with: `train.device.hardware` tells.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

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


def median_milliseconds(work: Callable[[], object], least_seconds: float | None = None) -> tuple[float, float]:
    """Processor time of all threads and time by the clock, medians of repeated calls."""
    taken: list[tuple[float, float]] = []
    end = time.perf_counter() + (_LEAST_SECONDS if least_seconds is None else least_seconds)
    while len(taken) < _LEAST_REPEATS or time.perf_counter() < end:
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        taken.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpu, wall = (1000.0 * statistics.median(seconds) for seconds in zip(*taken, strict=True))
    return cpu, wall


def growth(rows: Sequence[Mapping[str, Any]], size: str, cost: str) -> float:
    """The exponent with which one figure of rows grows with another: the slope of their logarithms."""
    x, y = (np.log([row[name] for row in rows]) for name in (size, cost))
    return round(float(np.polyfit(x, y, 1)[0]), 3)


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
    found = re.search(rf"^{name}:\s*(\d+)", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1])
