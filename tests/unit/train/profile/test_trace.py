"""A trace obeys the trace event format."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringflow.train.profile.records import StepRecord
from ringflow.train.profile.split import split
from ringflow.train.profile.trace import TRACED_STEPS, TraceWriter

MS = 1_000_000
MakeStep = Callable[..., StepRecord]
Events = list[dict[str, Any]]


def written(path: Path, make_step: MakeStep, steps: int = 3, **more: Any) -> Events:
    writer = TraceWriter(path, 2)
    for number in range(steps):
        ranks = (make_step(ready=4, step=number, **more), make_step(ready=20, step=number, **more))
        writer.add([split([record.shifted(-100 * MS * number) for record in ranks])], zero=0)
    writer.close()
    return json.loads(path.read_text())


def assert_valid(events: Events) -> None:
    """What the format asks for; blocks of one row are within each other or apart."""
    rows: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        assert event["ph"] in "MXC"
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["args"]
            continue
        assert event["ts"] >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        else:
            assert event["dur"] >= 0
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for blocks in rows.values():
        open_until: list[float] = []
        for start, end in sorted(blocks, key=lambda block: (block[0], -block[1])):
            while open_until and open_until[-1] <= start + 1e-6:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-6
            open_until.append(end)


def test_every_rank_has_named_rows_of_steps_phases_and_buckets(tmp_path: Path, make_step: MakeStep):
    events = written(tmp_path / "trace.json", make_step, handed=(50, 80), there=(76, 88))
    assert_valid(events)
    named = [(event["pid"], event["args"]["name"]) for event in events if event["name"].endswith("_name")]
    assert named == [(rank, name) for rank in (0, 1) for name in (f"rank {rank} of 2", "steps", "phases", "buckets")]
    blocks = [event for event in events if event["ph"] == "X" and event["pid"] == 0]
    assert [event["name"] for event in blocks if event["tid"] == 1] == ["step 0", "step 1", "step 2"]
    phases = [event["name"] for event in blocks if event["tid"] == 2][:7]
    assert phases == ["data", "idle", "communication", "forward", "backward", "communication", "optimizer"]
    (idle, *_) = [event for event in blocks if event["name"] == "idle"]
    assert idle["args"] == {"waits_for": "rank 1"}
    assert (idle["ts"], idle["dur"]) == (4000.0, 16000.0)
    counts = [event["args"] for event in events if event["ph"] == "C"]
    assert counts == 6 * [{"sent": 1000, "received": 1010}]


def test_buckets_under_way_together_are_in_rows_of_their_own(tmp_path: Path, make_step: MakeStep):
    events = written(tmp_path / "trace.json", make_step, steps=1, handed=(50, 60, 80), there=(76, 85, 88))
    assert_valid(events)
    rows = {event["name"]: event["tid"] for event in events if event["name"].startswith("bucket ")}
    assert rows == {"bucket 1": 3, "bucket 2": 4, "bucket 3": 3}


def test_a_trace_does_not_grow_for_ever(tmp_path: Path, make_step: MakeStep):
    events = written(tmp_path / "trace.json", make_step, steps=TRACED_STEPS + 30)
    steps = [event["name"] for event in events if event["name"].startswith("step ") and event["pid"] == 0]
    assert steps == [f"step {number}" for number in range(TRACED_STEPS)]


def test_a_killed_training_leaves_a_trace_without_its_last_bracket(tmp_path: Path, make_step: MakeStep):
    writer = TraceWriter(tmp_path / "trace.json", 2)
    writer.add([split([make_step(ready=4), make_step(ready=20)])], zero=0)
    assert_valid(json.loads((tmp_path / "trace.json").read_text() + "]"))
    writer.close()
