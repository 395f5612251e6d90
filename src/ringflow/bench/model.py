"""`ringflow bench model`: what a network costs on a CPU, and how the cost grows with the number of elements of an event.

Batch 1, two threads, float32. Every row is measured in a process of its own, so that no row profits from memory or caches of
another. `peak_mb` is how far the resident memory of that process rises in the first forward of the measured event, after a
small one: buffers that are freed on the way count, weights and the event itself do not. `cpu_ms_per_event` is the processor
time of all threads, the median of repeated forwards; `wall_ms_per_event` is what a clock on the wall says.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringflow.base.errors import UsageError
from ringflow.base.processes import keep_freed_memory
from ringflow.bench.record import hardware
from ringflow.infer import shipped
from ringflow.models.settings import ModelSettings

if TYPE_CHECKING:
    from ringflow.models.model import Model

SHIPPED = "shipped"
BACKBONES = ("graph", "kernel", "attention", "mlp", SHIPPED)
ELEMENTS = (128, 256, 512, 1024, 4096, 8192, 16_384, 50_000)
#: The exponents are fitted between these numbers of elements, if at least three were measured.
FITTED = (1_000, 50_000)
_QUADRATIC_UP_TO = 16_384
_THREADS = 2
_WARM_UP_ELEMENTS = 32
_LEAST_REPEATS = 3
_LEAST_SECONDS = 1.0


def run(backbones: Sequence[str] = (), elements: Sequence[int] = ()) -> dict[str, Any]:
    """Rows of backbone and number of elements, and the exponents of the growth of the processor time."""
    if unknown := sorted(set(backbones) - set(BACKBONES)):
        raise UsageError(f"no backbone named {unknown[0]!r}; choose from {', '.join(BACKBONES)}")
    notes = ["attention is quadratic: by default up to 16,384 elements"] if not elements else []
    names = list(backbones or BACKBONES)
    if SHIPPED in names and not shipped.is_there():
        names.remove(SHIPPED)
        notes.append(f"no shipped model at {shipped.MODEL.name}: not measured")
    rows = [_measured_apart(name, count) for name in names for count in elements or _elements_of(name)]
    return {
        "benchmark": "model",
        "batch": 1,
        "threads": _THREADS,
        "precision": "float32",
        "rows": rows,
        "exponents": {name: slope for name in names if (slope := exponent(rows, name)) is not None},
        "notes": notes,
        **hardware("cpu"),
    }


def exponent(rows: Sequence[dict[str, Any]], backbone: str) -> float | None:
    """Slope of log processor time over log elements; None if fewer than three rows are in the fitted range."""
    low, high = FITTED
    chosen = [row for row in rows if row["backbone"] == backbone and low <= row["num_elements"] <= high]
    if len(chosen) < 3:
        return None
    import numpy as np

    sizes, times = ([row[key] for row in chosen] for key in ("num_elements", "cpu_ms_per_event"))
    return round(float(np.polyfit(np.log(sizes), np.log(times), 1)[0]), 3)


def measure(backbone: str, num_elements: int) -> dict[str, Any]:
    """One row, in this process, which must be fresh for the memory to be right."""
    import torch

    from ringflow.elements.batch import random_elements

    torch.set_num_threads(_THREADS)
    keep_freed_memory()  # one event after the other needs the same buffers; else half the time goes into page faults
    model = _network(backbone)
    event = random_elements([num_elements], model.settings.calorimeter)
    with torch.inference_mode():
        model.predict(random_elements([_WARM_UP_ELEMENTS], model.settings.calorimeter))
        peak = peak_megabytes(lambda: model.predict(event))
        cpu: list[float] = []
        wall: list[float] = []
        end = time.perf_counter() + _LEAST_SECONDS
        while len(cpu) < _LEAST_REPEATS or time.perf_counter() < end:
            cpu_start, wall_start = time.process_time(), time.perf_counter()
            model.predict(event)
            cpu.append(time.process_time() - cpu_start)
            wall.append(time.perf_counter() - wall_start)
    return {
        "backbone": backbone,
        "num_elements": num_elements,
        "parameters": model.num_parameters,
        "cpu_ms_per_event": round(1000.0 * statistics.median(cpu), 3),
        "wall_ms_per_event": round(1000.0 * statistics.median(wall), 3),
        "peak_mb": round(peak, 1),
    }


def _elements_of(backbone: str) -> list[int]:
    quadratic = backbone == "attention" or (backbone == SHIPPED and _shipped_backbone() == "attention")
    return [count for count in ELEMENTS if not quadratic or count <= _QUADRATIC_UP_TO]


def _measured_apart(backbone: str, num_elements: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads and the memory of this process
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, backbone, num_elements).result()


def _network(backbone: str) -> Model:
    import torch

    from ringflow.models.file import load_model
    from ringflow.models.model import Model

    if backbone == SHIPPED:
        return load_model(shipped.MODEL).model
    torch.manual_seed(1)
    return Model(ModelSettings.model_validate({"backbone": backbone, "activation": "relu"})).eval()


def _shipped_backbone() -> str:
    from ringflow.models.file import load_model

    return load_model(shipped.MODEL).model.settings.backbone


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
