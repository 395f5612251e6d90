"""What is made small: figures of a validation by name, and the cost of the network.

    loss         of the validation
    jets         resolution of jets: interquartile range over median of their response
    cpu_ms       milliseconds of one core per event of 128 elements
    parameters   numbers in the network

Any other figure of a validation can be named as `history.jsonl` writes it, if less of it is better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ringflow.base.errors import UsageError

if TYPE_CHECKING:
    from ringflow.models.model import Model

ALIASES = {"jets": "jet_iqr_over_median"}
EXTRAS = ("cpu_ms", "parameters")
_ELEMENTS, _REPEATS = 128, 20


def values_of(figures: Mapping[str, float | None], objectives: Sequence[str]) -> list[float]:
    """The values of several objectives; NaN for one that is not finite. An error if a validation has no such figure."""
    values = []
    for name in objectives:
        key = ALIASES.get(name, name)
        if key not in figures:
            known = ", ".join(sorted({*figures, *ALIASES, *EXTRAS} - set(ALIASES.values())))
            raise UsageError(f"a validation has no figure {name!r} to make small; choose from {known}")
        value = figures[key]
        values.append(math.nan if value is None else float(value))
    return values


def extras_of(objectives: Sequence[str]) -> tuple[str, ...]:
    """Those of the objectives that a validation does not measure."""
    return tuple(name for name in objectives if name in EXTRAS)


def measure_extras(extras: Sequence[str], run: Path) -> dict[str, float]:
    """What the newest network of a run costs."""
    if not extras:
        return {}
    from ringflow.models.file import load_model
    from ringflow.train.runs import LAST_MODEL_FILE

    model = load_model(run / LAST_MODEL_FILE).model
    measured = {"parameters": float(model.num_parameters)}
    if "cpu_ms" in extras:
        measured["cpu_ms"] = cpu_milliseconds(model)
    return {name: measured[name] for name in extras}


def cpu_milliseconds(model: Model) -> float:
    """Processor time of one event; the fastest of several, because other trials may use the same cores and caches."""
    import torch

    from ringflow.elements.batch import random_elements

    event = random_elements([_ELEMENTS], model.settings.calorimeter)
    threads, times = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            for _ in range(_REPEATS):
                start = time.process_time()
                model.predict(event)
                times.append(time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    return 1000.0 * min(times)
