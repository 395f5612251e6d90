"""What the table of steps comes to: `summary.json`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ringflow.train.profile.records import Circumstances
from ringflow.train.profile.stragglers import stragglers
from ringflow.train.profile.table import KINDS, Floats, StepTable

#: First steps, in which memory is taken and things are compiled: left out where enough others remain.
WARMUP_STEPS = 5
_ENOUGH = 4 * WARMUP_STEPS

_SEPARATED = {
    "replicate": (
        "Sums of gradients are followed bucket by bucket: what of them the backward hides, how long the step then waits for "
        "slower ranks (idle), and how long for the sum itself (communication)."
    ),
    "shard": (
        "Gathering layers and scattering gradients counts as communication, waiting for slower ranks there included; idle is "
        "what is waited where all ranks meet at the start and the end of a step."
    ),
    "tensor": (
        "Sums within layers count as communication, waiting for slower ranks there included; idle is what is waited where all "
        "ranks meet at the start and the end of a step."
    ),
    "pipeline": (
        "Receiving from the neighbouring stage counts as communication, the bubble of the pipeline included; idle is what is "
        "waited where all ranks meet at the start and the end of a step."
    ),
}


class Costs(NamedTuple):
    """What measuring itself was and took."""

    #: Nanoseconds by which the clocks of ranks may be off.
    clock_error: int
    #: Seconds in which measurements were handed in, between steps.
    seconds: float


def steady(table: StepTable) -> StepTable:
    """The steps after the warm-up."""
    return table.after(WARMUP_STEPS) if table.num_steps >= _ENOUGH else table


def summarize(table: StepTable, circumstances: Circumstances, costs: Costs) -> dict[str, Any]:
    """Means per rank, bytes against the ring, and who is waited for."""
    counted = steady(table)
    ranks = [_rank(counted, rank) for rank in range(counted.num_ranks)]
    expected = ring_bytes(circumstances)
    for rank in ranks:
        rank["sent_over_ring"] = _ratio(rank["sent_bytes"], expected)
        rank["received_over_ring"] = _ratio(rank["received_bytes"], expected)
    slow = stragglers(counted)
    span_ms = float((table["start_ms"] + table["step_ms"]).max() - table["start_ms"].min())
    return {
        **circumstances._asdict(),
        "steps": table.num_steps,
        "warmup_steps_left_out": table.num_steps - counted.num_steps,
        "events_per_second": 1e3 * float(table["events"][:, 0].sum()) / float(table["step_ms"][:, 0].sum()),
        "ring_bytes_per_step": expected,
        "separated": _SEPARATED[circumstances.strategy] if circumstances.processes > 1 else "",
        "stragglers": [{**one._asdict(), "text": str(one)} for one in slow],
        "ranks": ranks,
        "clock_error_ms": costs.clock_error / 1e6,
        "handing_in_share": 1e3 * costs.seconds / span_ms,
    }


def ring_bytes(circumstances: Circumstances) -> float | None:
    """Bytes that a ring all-reduce of the gradients sends, and receives, per rank and step: 2(N-1)K/N."""
    size, processes = circumstances.gradient_bytes, circumstances.processes
    return None if size is None else 2.0 * (processes - 1) * size / processes


def _rank(table: StepTable, rank: int) -> dict[str, Any]:
    def of(name: str) -> Floats:
        return np.asarray(table[name][:, rank])

    step = of("step_ms")
    return {
        "rank": rank,
        "step_ms": float(step.mean()),
        "step_ms_median": float(np.median(step)),
        "step_ms_95_percent": float(np.quantile(step, 0.95)),
        **{f"{kind}_ms": float(of(f"{kind}_ms").mean()) for kind in KINDS},
        **{f"{kind}_share": float(of(f"{kind}_ms").sum() / step.sum()) for kind in KINDS},
        "hidden_ms": float(of("hidden_ms").mean()),
        "late_ms": float(of("late_ms").mean()),
        "sent_bytes": _mean_or_none(of("sent_bytes")),
        "received_bytes": _mean_or_none(of("received_bytes")),
    }


def _mean_or_none(values: Floats) -> float | None:
    return None if np.isnan(values).any() else float(values.mean())


def _ratio(measured: float | None, expected: float | None) -> float | None:
    return None if measured is None or not expected else measured / expected
