"""Steps made up by hand, and a table of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ringflow.train.profile.records import Bucket, Span, StepRecord
from ringflow.train.profile.table import COLUMNS, KINDS, StepTable

MS = 1_000_000
MakeStep = Callable[..., StepRecord]
MakeTable = Callable[..., StepTable]


@pytest.fixture
def make_step() -> MakeStep:
    """One step of one rank, in milliseconds: data, a meeting, forward, backward with buckets, optimizer."""

    def make(
        ready: int,
        met: int = 22,
        handed: tuple[int, ...] = (),
        there: tuple[int, ...] = (),
        done: int = 90,
        step: int = 1,
    ) -> StepRecord:
        borders = [("data", 0, ready), ("idle", ready, met), ("forward", met, 40), ("backward", 40, done)]
        borders.append(("optimizer", done, done + 5))
        spans = tuple(Span(name, start * MS, end * MS, (end - start) * MS) for name, start, end in borders)
        buckets = tuple(Bucket(1000, start * MS, end * MS) for start, end in zip(handed, there, strict=True))
        return StepRecord(step, 10, 0, (done + 8) * MS, 1000, 1010, spans, buckets)

    return make


@pytest.fixture
def make_table() -> MakeTable:
    """Steps of 100 ms; rank `slow` takes `delay` ms longer for its data in a `share` of them, the others wait for it."""

    def make(
        steps: int = 100, ranks: int = 4, slow: int = 2, delay: float = 0.0, share: float = 1.0, jitter: float = 5.0
    ) -> StepTable:
        drawn = np.random.default_rng(1)
        columns = {name: np.zeros((steps, ranks)) for name in COLUMNS}
        columns["step"] += np.arange(1, steps + 1)[:, None]
        columns["rank"] += np.arange(ranks)
        columns["events"] += 10.0
        work = drawn.uniform(0.0, jitter, (steps, ranks))
        work[:, slow] += delay * (drawn.random(steps) < share)
        columns["data_ms"] = work
        columns["forward_ms"] += 30.0
        columns["backward_ms"] += 60.0
        columns["idle_ms"] = work.max(axis=1, keepdims=True) - work
        columns["step_ms"] = sum(columns[f"{kind}_ms"] for kind in KINDS)
        columns["start_ms"] = columns["step_ms"].cumsum(axis=0) - columns["step_ms"]
        for rank in range(ranks) if ranks > 1 else ():
            others = np.median(np.delete(work, rank, axis=1), axis=1)
            columns["late_ms"][:, rank] = (work[:, rank] - others).clip(min=0.0)
        columns["sent_bytes"] += 1505.0
        columns["received_bytes"] += 1500.0
        return StepTable(columns)

    return make
