"""What a process writes down of its steps. Times are nanoseconds of the clock of that process."""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """A phase from its beginning to its end; `own` is the time that no phase within it took."""

    phase: str
    start: int
    end: int
    own: int


class Bucket(NamedTuple):
    """Gradients that travel together: their bytes, when they were handed over, and when their sum was there."""

    size: int
    handed: int
    there: int


class StepRecord(NamedTuple):
    """One step of one process; bytes are None where nobody counts them."""

    step: int
    events: int
    start: int
    end: int
    sent: int | None
    received: int | None
    spans: tuple[Span, ...]
    buckets: tuple[Bucket, ...]

    def shifted(self, by: int) -> StepRecord:
        """The same on a clock that shows less by so much."""
        spans = tuple(Span(span.phase, span.start - by, span.end - by, span.own) for span in self.spans)
        buckets = tuple(Bucket(bucket.size, bucket.handed - by, bucket.there - by) for bucket in self.buckets)
        return self._replace(start=self.start - by, end=self.end - by, spans=spans, buckets=buckets)


class Meetings(NamedTuple):
    """When a process came to some meetings of all, and when it left them, on the machine it runs on."""

    machine: str
    came: tuple[int, ...]
    left: tuple[int, ...]


class RankLog(NamedTuple):
    """What a process hands in from time to time."""

    meetings: Meetings
    steps: tuple[StepRecord, ...]


class Circumstances(NamedTuple):
    """What does not change from step to step."""

    processes: int
    strategy: str
    device: str
    #: Bytes of all gradients, if every process has all of them and they are added up.
    gradient_bytes: int | None
    #: Why no bytes are counted; empty if they are.
    no_bytes_because: str
