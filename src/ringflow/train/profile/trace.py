"""The first steps as a trace to look at, in the trace event format: https://ui.perfetto.dev opens it.

Every process is a group of rows: its steps, its phases, the buckets of gradients that are under way, and the bytes of a step.
Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.rundir import write_errors
from ringflow.train.profile.records import Bucket
from ringflow.train.profile.split import RankStep, Segment

#: Steps in a trace. More make it slow to look at; the table has all.
TRACED_STEPS = 200

_STEPS, _PHASES, _BUCKETS = 1, 2, 3
_ROWS = {_STEPS: "steps", _PHASES: "phases", _BUCKETS: "buckets"}
#: Names of colours that viewers of the format know.
_COLORS = {
    "data": "thread_state_iowait",
    "forward": "thread_state_running",
    "backward": "thread_state_runnable",
    "communication": "rail_load",
    "optimizer": "rail_animation",
    "idle": "grey",
}

Event = dict[str, Any]


class TraceWriter:
    """Writes events as they come. The format allows its last bracket to be missing, should a training be killed."""

    def __init__(self, path: Path, processes: int) -> None:
        self._path, self._steps = path, 0
        with write_errors(path):
            self._file = path.open("w", encoding="utf-8")
            self._file.write("[\n")
        self._separator = ""
        self._write(event for rank in range(processes) for event in _named(rank, processes))

    def add(self, steps: Sequence[Sequence[RankStep]], zero: int) -> None:
        """Add steps, each of all processes, while there is room; times are counted from `zero`."""
        room = TRACED_STEPS - self._steps
        for step in steps[:room]:
            self._write(event for rank, done in enumerate(step) for event in _events(rank, done, zero))
        self._steps += len(steps[:room])

    def close(self) -> None:
        """All is written."""
        with write_errors(self._path):
            self._file.write("\n]\n")
            self._file.close()

    def _write(self, events: Iterable[Event]) -> None:
        with write_errors(self._path):
            for event in events:
                self._file.write(self._separator + json.dumps(event, separators=(",", ":")))
                self._separator = ",\n"
            self._file.flush()


def _named(rank: int, processes: int) -> Iterator[Event]:
    """Names and order of the rows of a process."""
    yield _about("process_name", rank, 0, name=f"rank {rank} of {processes}")
    yield _about("process_sort_index", rank, 0, sort_index=rank)
    for row, name in _ROWS.items():
        yield _about("thread_name", rank, row, name=name)
        yield _about("thread_sort_index", rank, row, sort_index=row)


def _about(what: str, rank: int, row: int, **values: object) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": row, "args": values}


def _events(rank: int, done: RankStep, zero: int) -> Iterator[Event]:
    record = done.record
    late = {"late_ms": done.late / 1e6} if done.late else {}
    yield _block(f"step {record.step}", rank, _STEPS, record.start, record.end, zero, events=record.events, **late)
    for segment in sorted(done.segments, key=lambda segment: (segment.start, -segment.end)):
        yield _phase(rank, segment, zero)
    yield from _bucket_rows(rank, record.buckets, zero)
    if record.sent is not None and record.received is not None:
        counts = {"sent": record.sent, "received": record.received}
        yield {
            "ph": "C",
            "name": "bytes per step",
            "pid": rank,
            "tid": 0,
            "ts": _time(record.start, zero),
            "args": counts,
        }


def _phase(rank: int, segment: Segment, zero: int) -> Event:
    waits = {} if segment.waits_for is None else {"waits_for": f"rank {segment.waits_for}"}
    block = _block(segment.phase, rank, _PHASES, segment.start, segment.end, zero, **waits)
    return {**block, "cname": _COLORS[segment.phase]}


def _bucket_rows(rank: int, buckets: Sequence[Bucket], zero: int) -> Iterator[Event]:
    """Buckets under way at the same time are in rows of their own, for blocks of one row may not overlap."""
    busy_until: list[int] = []
    for number, bucket in enumerate(buckets, start=1):
        row = next((row for row, until in enumerate(busy_until) if until <= bucket.handed), len(busy_until))
        busy_until[row : row + 1] = [bucket.there]
        place = (rank, _BUCKETS + row, bucket.handed, bucket.there, zero)
        yield _block(f"bucket {number}", *place, bytes=bucket.size)


def _block(name: str, rank: int, row: int, start: int, end: int, zero: int, **values: object) -> Event:
    block = {"ph": "X", "name": name, "pid": rank, "tid": row, "ts": _time(start, zero), "dur": (end - start) / 1e3}
    return {**block, "args": values} if values else block


def _time(moment: int, zero: int) -> float:
    return max(moment - zero, 0) / 1e3
