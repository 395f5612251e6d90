"""Waiting told apart from communicating, from what all processes wrote down of one step.

Processes meet in a step: when they add up counts, and when they add up gradients. Whoever comes early is idle until the last
one is there; from then on until the sum is known it communicates. Gradients travel in buckets while the backward computes:
only what is left of it after the last bucket was handed over holds the step up; what travelled before was hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from ringflow.train.phases import PHASES
from ringflow.train.profile.records import Bucket, Span, StepRecord


class Segment(NamedTuple):
    """A stretch of a step that is one thing; `waits_for` is the process that came last, if that is what it waits for."""

    phase: str
    start: int
    end: int
    own: int
    waits_for: int | None = None


class RankStep(NamedTuple):
    """What one process did in one step; times are nanoseconds of one clock."""

    record: StepRecord
    segments: list[Segment]
    #: Communication behind which the backward went on.
    hidden: int
    #: How much later than others it came where all meet, all meetings together.
    late: int

    def time(self, phase: str) -> int:
        """All of its time in a phase."""
        return sum(segment.own for segment in self.segments if segment.phase == phase)

    @property
    def other(self) -> int:
        """Time of the step in no phase."""
        return self.record.end - self.record.start - sum(self.time(phase) for phase in PHASES)


class _Meeting(NamedTuple):
    """When every process came."""

    came: list[int]

    @property
    def last(self) -> int:
        return max(self.came)

    @property
    def last_rank(self) -> int:
        return self.came.index(self.last)

    def lateness(self, rank: int) -> int:
        """How much later than the middle one of the others."""
        others = [came for other, came in enumerate(self.came) if other != rank]
        return max(self.came[rank] - round(median(others)), 0) if others else 0


def split(records: Sequence[StepRecord]) -> list[RankStep]:
    """One step of all processes, by rank."""
    waits = [[span for span in record.spans if span.phase == "idle"] for record in records]
    meetings = [_Meeting([span.start for span in spans]) for spans in zip(*waits, strict=True)]
    handovers = [
        _Meeting([bucket.handed for bucket in buckets]) for buckets in zip(*(r.buckets for r in records), strict=True)
    ]
    steps = []
    for rank, record in enumerate(records):
        met = iter(meetings)
        segments: list[Segment] = []
        for span in record.spans:
            if span.phase == "idle":
                segments += _waited(span, next(met), rank)
            elif span.phase == "backward" and handovers and span.start <= handovers[-1].came[rank] <= span.end:
                segments += _exposed(span, handovers[-1], rank)
            else:
                segments.append(Segment(*span))
        attended = [*meetings, *handovers[-1:]]
        late = sum(meeting.lateness(rank) for meeting in attended)
        steps.append(RankStep(record, segments, _hidden(record.buckets, handovers), late))
    return steps


def _waited(span: Span, meeting: _Meeting, rank: int) -> list[Segment]:
    """Idle until the last one came, communication from then on."""
    border = min(max(meeting.last, span.start), span.end)
    waits_for = meeting.last_rank if meeting.last_rank != rank else None
    parts = [
        Segment("idle", span.start, border, border - span.start, waits_for),
        Segment("communication", border, span.end, span.end - border),
    ]
    return [part for part in parts if part.own]


def _exposed(span: Span, handover: _Meeting, rank: int) -> list[Segment]:
    """A backward, and what is left of it when the last gradient is computed."""
    rest = _waited(Span("idle", handover.came[rank], span.end, 0), handover, rank)
    return [Segment("backward", span.start, span.end, span.own - sum(part.own for part in rest)), *rest]


def _hidden(buckets: Sequence[Bucket], handovers: Sequence[_Meeting]) -> int:
    """Time in which buckets travelled while a process computed further gradients."""
    if not buckets:
        return 0
    until, total = buckets[-1].handed, 0
    free_from = buckets[0].handed
    for bucket, handover in zip(buckets, handovers, strict=True):
        start, end = max(handover.last, free_from), min(bucket.there, until)
        total += max(end - start, 0)
        free_from = max(free_from, end)
    return total
