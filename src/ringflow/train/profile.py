"""What the steps of a training cost: time by phase, bytes on the wire, and who is waited for.

    with profiled(folder, world, device, "replicate") as phases:
        trainer.train(..., phases=phases)

Every process writes down when it enters and leaves the phases of a step, and from time to time hands that in to the first one,
between steps: it is in no step's time, and its bytes are in no step's bytes. The first one tells waiting apart from
communicating, see `split`, and writes `steps.csv` (a line per rank and step) and `trace.json` (for https://ui.perfetto.dev).
`profile_report` makes the summary and the page. Times are nanoseconds unless a name says otherwise.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ringflow.base.errors import StoppedError
from ringflow.base.log import say
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.train.device import is_accelerator, synchronize
from ringflow.train.world import World

#: Waiting for events, network and loss, gradients, sums over processes, moving the weights, waiting for other processes.
PHASES = ("data", "forward", "backward", "communication", "optimizer", "idle")
#: What the time of a step is made of: the phases, and what is in none of them.
KINDS = (*PHASES, "other")
COLUMNS = (
    *("step", "rank", "events", "start_ms", "step_ms"),
    *(f"{kind}_ms" for kind in KINDS),
    *("hidden_ms", "late_ms", "sent_bytes", "received_bytes"),
)
PROFILE_FOLDER, STEPS_FILE, TRACE_FILE = "profile", "steps.csv", "trace.json"
#: First steps, in which memory is taken and things are compiled.
WARMUP_STEPS = 5
#: Steps in a trace: more make it slow to look at. Steps between two times of handing in. Meetings per look at the clocks.
_TRACED, _STEPS_HELD, _MEETINGS = 200, 50, 8
#: Names of colours that viewers of the trace format know.
_COLORS = {
    "data": "thread_state_iowait",
    "forward": "thread_state_running",
    "backward": "thread_state_runnable",
    "communication": "rail_load",
    "optimizer": "rail_animation",
    "idle": "grey",
}


class Phases:
    """What the time of a step goes into; this one is free, since nobody measures."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """While the context is open, a process is in this phase; contexts may be within each other.

        In an `idle` one all processes meet: it is opened by each when it is there, and ends when what they add up is known.
        """
        return nullcontext()

    def watch(self, network: nn.Module) -> None:
        """A network whose sums over processes torch begins by itself."""

    def end_step(self, step: int, events: int) -> None:
        """A step is done, and showed so many events to all processes together."""


UNMEASURED = Phases()


class Span(NamedTuple):
    """A phase from its beginning to its end; `own` is the time that no phase within it took."""

    phase: str
    start: int
    end: int
    own: int
    #: The rank that came last, if that is what it waits for.
    waits_for: int | None = None


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
    spans: Sequence[Span]
    buckets: Sequence[Bucket]

    def shifted(self, by: int) -> StepRecord:
        """The same on a clock that shows less by so much."""
        spans = [span._replace(start=span.start - by, end=span.end - by) for span in self.spans]
        buckets = [Bucket(bucket.size, bucket.handed - by, bucket.there - by) for bucket in self.buckets]
        return self._replace(start=self.start - by, end=self.end - by, spans=spans, buckets=buckets)


class Meetings(NamedTuple):
    """When a process came to some meetings of all, and when it left them, on the machine it runs on."""

    machine: str
    came: Sequence[int]
    left: Sequence[int]


class Circumstances(NamedTuple):
    """What does not change from step to step."""

    processes: int
    strategy: str
    device: str
    #: Bytes of all gradients, if every process has all of them and they are added up.
    gradient_bytes: int | None
    #: Why no bytes are counted; empty if they are.
    no_bytes_because: str


@contextmanager
def profiled(run: Path, world: World, device: torch.device, strategy: str) -> Iterator[Phases]:
    """Phases that measure a training in the folder of a run; reported when it ends or is stopped."""
    from ringflow.train.profile_report import write_summary

    with ProfileWriter(run / PROFILE_FOLDER) as writer:
        profiler = Profiler(world, device, strategy, writer)
        stopped: StoppedError | None = None
        try:
            yield profiler
        except StoppedError as error:  # all processes stop together, and can still talk
            stopped = error
        profiler.hand_in()
    if writer.began:
        for line in write_summary(writer.folder, profiler.circumstances, writer.clock_error, profiler.seconds):
            say(line)
    if stopped is not None:
        raise stopped


class Profiler(Phases):
    """Phases with a clock; on an accelerator it waits for the device at every border of a phase."""

    def __init__(self, world: World, device: torch.device, strategy: str, writer: ProfileWriter) -> None:
        self._world, self._device, self._strategy, self._writer = world, device, strategy, writer
        self._steps: list[StepRecord] = []
        self._spans: list[Span] = []
        self._inner = [0]  # time that phases took within those that are open
        self._begun: tuple[int, Bytes | None] | None = None
        self._traffic = Traffic()
        self._gradient_bytes: int | None = None
        self._under_way: list[tuple[int, Any, list[Any]]] = []
        self._buckets: list[Bucket] = []
        self._backward: tuple[int, Any] = (0, None)
        #: Seconds spent on handing in.
        self.seconds = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self._begun is None and name == "data":  # what is done between steps belongs to none
            before = self._traffic.look()
            self._begun = self._now(), before
        start = self._now()
        if name == "backward":
            self._backward = start, self._mark()
        self._inner.append(0)
        try:
            yield
        finally:
            end = self._now()
            if self._begun is not None:
                self._spans.append(Span(name, start, end, end - start - self._inner[-1]))
            self._inner.pop()
            self._inner[-1] += end - start
            if name == "backward":
                self._buckets += [
                    Bucket(size, self._read(handed), self._read(there[0])) for size, handed, there in self._under_way
                ]
                self._under_way.clear()

    def end_step(self, step: int, events: int) -> None:
        assert self._begun is not None, "a step begins with its data"
        end, after = self._now(), self._traffic.look()
        start, before = self._begun
        sent, received = None, None
        if before and after and not self._no_bytes_because:
            sent, received = after.sent - before.sent, after.received - before.received
        self._steps.append(StepRecord(step, events, start, end, sent, received, self._spans, self._buckets))
        self._spans, self._buckets, self._begun = [], [], None
        if len(self._steps) >= _STEPS_HELD:
            self.hand_in()

    def hand_in(self) -> None:
        """Give all that was measured to the first process; all processes have to."""
        start = time.perf_counter()
        logs = self._world.gather((meet(self._world), self._steps))
        if logs and self._steps:
            self._writer.add(self.circumstances, [meetings for meetings, _ in logs], [steps for _, steps in logs])
        self._steps = []
        self.seconds += time.perf_counter() - start

    @property
    def circumstances(self) -> Circumstances:
        """What is the same in all steps."""
        size, device = self._world.size, str(self._device)
        return Circumstances(size, self._strategy, device, self._gradient_bytes, self._no_bytes_because)

    @property
    def _no_bytes_because(self) -> str:
        if self._world.size == 1:
            return "a process alone sends nothing"
        if is_accelerator(self._device):
            return "what accelerators send each other does not go through sockets"
        return self._traffic.reason

    def watch(self, network: nn.Module) -> None:
        """Follow the buckets of DDP, which are then added up as torch does by itself, bit for bit; or the layers of FSDP."""
        if isinstance(network, DistributedDataParallel):
            self._gradient_bytes = sum(weight.nbytes for weight in network.parameters() if weight.requires_grad)
            network.register_comm_hook(self, lambda self, bucket: self._all_reduce(bucket))
            return
        from torch.distributed.fsdp import FSDPModule
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

        for module in network.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(_timed(DefaultAllGather, self))
                module.set_custom_reduce_scatter(_timed(DefaultReduceScatter, self))

    def _all_reduce(self, bucket: Any) -> Future[Tensor]:
        gradients: Tensor = bucket.buffer().mul_(1.0 / self._world.size)
        there: list[Any] = []  # filled in by another thread
        self._under_way.append((gradients.nbytes, self._mark(), there))

        def note(future: Future[list[Tensor]]) -> Tensor:
            there.append(self._mark())
            return future.value()[0]

        under_way: Future[list[Tensor]] = dist.all_reduce(gradients, async_op=True).get_future()
        return under_way.then(note)

    def _now(self) -> int:
        synchronize(self._device)
        return time.perf_counter_ns()

    def _mark(self) -> Any:
        """This moment, without waiting for anything: the time of the host, or an event in the stream of the device."""
        if not is_accelerator(self._device):
            return time.perf_counter_ns()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def _read(self, mark: Any) -> int:
        start, first = self._backward
        return mark if isinstance(mark, int) else start + round(1e6 * first.elapsed_time(mark))


def _timed(collective: type, phases: Phases) -> Any:
    """A collective of FSDP, which counts as communication."""

    class Timed(collective):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with phases("communication"):
                return super().__call__(*args, **kwargs)

    return Timed()


def meet(world: World) -> Meetings:
    """Meet a few times, so that clocks can be compared; all processes have to."""
    came, left = [], []
    for _ in range(_MEETINGS if world.size > 1 else 0):
        came.append(time.perf_counter_ns())
        world.all_reduce([0.0])
        left.append(time.perf_counter_ns())
    boot = Path("/proc/sys/kernel/random/boot_id")  # new with every start of a machine
    return Meetings(boot.read_text().strip() if boot.exists() else "", came, left)


def clock_offset(first: Meetings, other: Meetings) -> tuple[int, int]:
    """Nanoseconds that a clock shows more than that of the first process, and how much that may be off.

    Nobody leaves a meeting before everybody has come: came_r - left_0 <= o_r <= left_r - came_0, and many meetings leave a
    narrow range. Processes of one machine read the same clock: there it is 0.
    """
    least = max((came - left for came, left in zip(other.came, first.left, strict=True)), default=0)
    most = min((left - came for left, came in zip(other.left, first.came, strict=True)), default=0)
    if other.machine and other.machine == first.machine and least <= 0 <= most:
        return 0, 0
    return (least + most) // 2, (most - least) // 2


class RankStep(NamedTuple):
    """What one process did in one step; times are of one clock."""

    record: StepRecord
    spans: list[Span]
    #: Communication behind which the backward went on.
    hidden: int
    #: How much later than others it came where all meet, all meetings together.
    late: int

    def times(self) -> list[int]:
        """Time by kind."""
        phases = [sum(span.own for span in self.spans if span.phase == phase) for phase in PHASES]
        return [*phases, self.record.end - self.record.start - sum(phases)]


def split(records: Sequence[StepRecord]) -> list[RankStep]:
    """One step of all processes, by rank, with waiting told apart from communicating.

    Processes meet when they add up counts, and when they add up gradients. Whoever comes early is idle until the last one is
    there; from then on until the sum is known it communicates. Gradients travel in buckets while the backward computes: only
    what is left of it after the last bucket was handed over holds the step up; what travelled before was hidden.
    """
    waits = ([span.start for span in record.spans if span.phase == "idle"] for record in records)
    meetings = list(zip(*waits, strict=True))
    handovers = list(zip(*([bucket.handed for bucket in record.buckets] for record in records), strict=True))
    steps = []
    for rank, record in enumerate(records):
        met = iter(meetings)
        spans: list[Span] = []
        for span in record.spans:
            if span.phase == "idle":
                spans += _waited(span.start, span.end, next(met), rank)
            elif span.phase == "backward" and handovers and span.start <= handovers[-1][rank] <= span.end:
                rest = _waited(handovers[-1][rank], span.end, handovers[-1], rank)
                spans += [span._replace(own=span.own - sum(part.own for part in rest)), *rest]
            else:
                spans.append(span)
        late = sum(_lateness(came, rank) for came in [*meetings, *handovers[-1:]])
        steps.append(RankStep(record, spans, _hidden(record.buckets, [max(came) for came in handovers]), late))
    return steps


def _waited(start: int, end: int, came: Sequence[int], rank: int) -> list[Span]:
    """Idle until the last one came, communication from then on."""
    last = max(came)
    border, last_rank = min(max(last, start), end), came.index(last)
    idle = Span("idle", start, border, border - start, last_rank if last_rank != rank else None)
    return [span for span in (idle, Span("communication", border, end, end - border)) if span.own]


def _lateness(came: Sequence[int], rank: int) -> int:
    """How much later than the middle one of the others a process came to a meeting."""
    others = [*came[:rank], *came[rank + 1 :]]
    return max(came[rank] - round(median(others)), 0) if others else 0


def _hidden(buckets: Sequence[Bucket], complete: Sequence[int]) -> int:
    """Time in which buckets travelled while a process computed further gradients; `complete`: when all had handed them over."""
    total, free_from = 0, buckets[0].handed if buckets else 0
    for bucket, there in zip(buckets, complete, strict=True):
        start, end = max(there, free_from), min(bucket.there, buckets[-1].handed)
        total += max(end - start, 0)
        free_from = max(free_from, end)
    return total


class ProfileWriter(AbstractContextManager["ProfileWriter"]):
    """Writes the table of a profile while the training goes on, and its trace in the end; begun anew with the first step."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.began, self.clock_error = folder, False, 0
        self._zero, self._steps = 0, 0
        self._trace: list[dict[str, Any]] = []

    def add(
        self, circumstances: Circumstances, meetings: Sequence[Meetings], by_rank: Sequence[Sequence[StepRecord]]
    ) -> None:
        """Write down steps of all ranks; the same ones of each."""
        offsets = [clock_offset(meetings[0], other) for other in meetings]
        self.clock_error = max(self.clock_error, *(error for _, error in offsets))
        shifted = [[step.shifted(by) for step in steps] for steps, (by, _) in zip(by_rank, offsets, strict=True)]
        with write_errors(self.folder):
            if not self.began:
                self._begin(circumstances.processes, min(steps[0].start for steps in shifted))
            with (self.folder / STEPS_FILE).open("a", encoding="utf-8", newline="") as file:
                lines = csv.writer(file, lineterminator="\n")
                for records in zip(*shifted, strict=True):
                    for rank, done in enumerate(split(records)):
                        lines.writerow(_line(rank, done, self._zero))
                        if WARMUP_STEPS <= self._steps < WARMUP_STEPS + _TRACED:
                            self._trace += _events(rank, done, self._zero)
                    self._steps += 1

    def __exit__(self, *error: object) -> None:
        if self.began:
            write_atomic(self.folder / TRACE_FILE, json.dumps(self._trace, separators=(",", ":")) + "\n")

    def _begin(self, processes: int, zero: int) -> None:
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir()
        (self.folder / STEPS_FILE).write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
        self.began, self._zero = True, zero
        for rank in range(processes):
            rows = {0: ("process", f"rank {rank} of {processes}", rank)}
            rows |= {row: ("thread", name, row) for row, name in enumerate(("steps", "phases", "buckets"), start=1)}
            for row, (kind, name, place) in rows.items():
                self._trace.append(_event("M", f"{kind}_name", rank, row, args={"name": name}))
                self._trace.append(_event("M", f"{kind}_sort_index", rank, row, args={"sort_index": place}))


def _line(rank: int, done: RankStep, zero: int) -> list[object]:
    record = done.record
    times = [record.start - zero, record.end - record.start, *done.times(), done.hidden, done.late]
    counts = ["" if count is None else count for count in (record.sent, record.received)]
    return [record.step, rank, record.events, *(f"{time / 1e6:.4f}" for time in times), *counts]


def _events(rank: int, done: RankStep, zero: int) -> Iterator[dict[str, Any]]:
    """A step in the trace event format: rows of steps, of phases, of buckets under way, and a curve of bytes."""

    def block(name: str, row: int, start: int, end: int, **more: Any) -> dict[str, Any]:
        return _event("X", name, rank, row, ts=max(start - zero, 0) / 1e3, dur=(end - start) / 1e3, **more)

    record = done.record
    late = {"late_ms": done.late / 1e6} if done.late else {}
    yield block(f"step {record.step}", 1, record.start, record.end, args={"events": record.events, **late})
    for span in sorted(done.spans, key=lambda span: (span.start, -span.end)):
        waits = {} if span.waits_for is None else {"args": {"waits_for": f"rank {span.waits_for}"}}
        yield block(span.phase, 2, span.start, span.end, cname=_COLORS[span.phase], **waits)
    busy_until: list[int] = []  # blocks of one row may not overlap
    for number, bucket in enumerate(record.buckets, start=1):
        row = next((row for row, until in enumerate(busy_until) if until <= bucket.handed), len(busy_until))
        busy_until[row : row + 1] = [bucket.there]
        yield block(f"bucket {number}", 3 + row, bucket.handed, bucket.there, args={"bytes": bucket.size})
    if record.sent is not None:
        counts = {"sent": record.sent, "received": record.received}
        yield _event("C", "bytes per step", rank, 0, ts=max(record.start - zero, 0) / 1e3, args=counts)


def _event(kind: str, name: str, rank: int, row: int, **more: Any) -> dict[str, Any]:
    return {"ph": kind, "name": name, "pid": rank, "tid": row, **more}


class Bytes(NamedTuple):
    """What went out and what came in."""

    sent: int
    received: int


class Traffic:
    """Bytes through the TCP sockets of this process since this was made, those of sockets closed meanwhile included.

    Linux counts the bytes of every connection (`TCP_INFO`), without headers and without what had to be sent twice. What travels
    otherwise (NCCL over NVLink or InfiniBand, shared memory) is not seen, nor what a socket carried between the last look and
    its end: look at borders that matter.
    """

    def __init__(self) -> None:
        #: Why nothing can be counted; empty where it can.
        self.reason = _why_uncounted()
        self._counts = {} if self.reason else _connections()
        self._before = self._total()

    def look(self) -> Bytes | None:
        """Bytes so far, or None where the kernel does not tell."""
        if self.reason:
            return None
        self._counts |= _connections()
        total = self._total()
        return Bytes(total.sent - self._before.sent, total.received - self._before.received)

    def _total(self) -> Bytes:
        counts = self._counts.values()
        return Bytes(sum(count.sent for count in counts), sum(count.received for count in counts))

    @property
    def sent(self) -> int | None:
        """Bytes that left so far."""
        return None if (now := self.look()) is None else now.sent

    @property
    def received(self) -> int | None:
        """Bytes that arrived so far."""
        return None if (now := self.look()) is None else now.received


#: Where in `struct tcp_info` of Linux the counts are: bytes received (Linux 4.1), bytes sent and sent again (4.19).
_RECEIVED_AT, _SENT_AT, _INFO_LENGTH = 128, 200, 216


def _why_uncounted() -> str:
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} does not count the bytes of a socket"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return "" if _counts(probe) is not None else "this kernel does not count the bytes of a socket"


def _connections() -> dict[str, Bytes]:
    """What every TCP socket of this process carried so far, by the name of the socket, which is never used again."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            name = os.readlink(link)
            borrowed = socket.socket(fileno=int(link.name)) if name.startswith("socket:") else None
        except OSError:  # closed meanwhile
            continue
        if borrowed is None:
            continue
        try:
            if (counts := _counts(borrowed)) is not None:
                found[name] = counts  # several descriptors may lead to one socket
        finally:
            borrowed.detach()  # it belongs to somebody else
    return found


def _counts(connection: socket.socket) -> Bytes | None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return None
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_LENGTH)
    if len(information) < _INFO_LENGTH:
        return None
    (received,) = struct.unpack_from("=Q", information, _RECEIVED_AT)
    sent, again = struct.unpack_from("=QQ", information, _SENT_AT)
    return Bytes(sent - again, received)
