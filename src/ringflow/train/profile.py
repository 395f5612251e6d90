"""What the steps of a training cost: time by phase, bytes on the wire, and who is waited for.

    with profiled(folder, world, device, "replicate") as phases:
        trainer.train(..., phases=phases)

Every process writes down when it enters and leaves the phases of a step, and from time to time hands that in to the first one,
between steps: it is in no step's time, and its bytes are in no step's bytes. The first one tells waiting apart from
communicating, see `split`, and writes `steps.csv` (a line per rank and step) and `trace.json` (for https://ui.perfetto.dev). Of
the table come `summary.json`, who is waited for, and `report.html`, which needs nothing else. Kineto sees one process, and
cannot say which rank another one waits for. Times are nanoseconds unless a name says otherwise.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ringflow.base.errors import StoppedError
from ringflow.base.log import say
from ringflow.base.page import Shown, inline, render
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.base.words import size_in_words
from ringflow.evaluate.plots import panels, png, styled
from ringflow.train.device import Phases, is_accelerator, synchronize
from ringflow.train.runs import PROFILE_FOLDER, PROFILE_PAGE
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
STEPS_FILE, TRACE_FILE, SUMMARY_FILE = "steps.csv", "trace.json", "summary.json"
_TEMPLATE = Path(__file__).parent / "templates" / "profile.html.j2"
#: First steps, in which memory is taken and things are compiled.
WARMUP_STEPS = 5
#: Steps in a trace: more make it slow to look at. Steps between two times of handing in. Meetings per look at the clocks.
_TRACED, _STEPS_HELD, _MEETINGS = 200, 50, 8


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


@contextmanager
def profiled(run: Path, world: World, device: torch.device, strategy: str) -> Iterator[Phases]:
    """Phases that measure a training in the folder of a run; reported when it ends or is stopped."""
    profiler = Profiler(run / PROFILE_FOLDER, world, device, strategy)
    stopped: StoppedError | None = None
    try:
        yield profiler
    except StoppedError as error:  # all processes stop together, and can still talk
        stopped = error
    profiler.hand_in()
    if profiler.trace:
        write_atomic(profiler.folder / TRACE_FILE, json.dumps(profiler.trace, separators=(",", ":")) + "\n")
        for line in write_report(profiler.folder, profiler.facts()):
            say(line)
    if stopped is not None:
        raise stopped


class Profiler(Phases):
    """Phases with a clock; on an accelerator it waits for the device at every border of a phase."""

    def __init__(self, folder: Path, world: World, device: torch.device, strategy: str) -> None:
        self.folder, self._world, self._device, self._strategy = folder, world, device, strategy
        self.trace: list[dict[str, Any]] = []
        self._steps: list[StepRecord] = []
        self._spans: list[Span] = []
        self._inner = [0]  # time that phases took within those that are open
        self._begun: tuple[int, tuple[int, int] | None] | None = None
        self._traffic = Traffic()
        self._no_bytes_because = self._traffic.reason
        if world.size == 1:
            self._no_bytes_because = "a process alone sends nothing"
        elif is_accelerator(device):
            self._no_bytes_because = "what accelerators send each other does not go through sockets"
        self._gradient_bytes: int | None = None
        self._under_way: list[tuple[int, Any, list[Any]]] = []
        self._buckets: list[Bucket] = []
        self._backward: tuple[int, Any] = (0, None)
        self._zero = self._written = self._clock_error = 0
        self._seconds = 0.0  # spent on handing in
        self._compare_clocks()

    def facts(self) -> dict[str, Any]:
        """What is the same in all steps."""
        return {
            "processes": self._world.size,
            "strategy": self._strategy,
            "device": str(self._device),
            "gradient_bytes": self._gradient_bytes,
            "no_bytes_because": self._no_bytes_because,
            "clock_error_ms": self._clock_error / 1e6,
            "handing_in_seconds": self._seconds,
        }

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
                for size, handed, there in self._under_way:
                    self._buckets.append(Bucket(size, self._read(handed), self._read(there[0])))
                self._under_way.clear()

    def handed_over(self, size: int) -> Callable[[], object]:
        there: list[Any] = []  # filled in by another thread
        self._under_way.append((size, self._mark(), there))
        return lambda: there.append(self._mark())

    def end_step(self, step: int, events: int) -> None:
        assert self._begun is not None, "a step begins with its data"
        end, after = self._now(), self._traffic.look()
        start, before = self._begun
        sent, received = None, None
        if before and after and not self._no_bytes_because:
            sent, received = after[0] - before[0], after[1] - before[1]
        if self._buckets:
            self._gradient_bytes = sum(bucket.size for bucket in self._buckets)
        self._steps.append(StepRecord(step, events, start, end, sent, received, self._spans, self._buckets))
        self._spans, self._buckets, self._begun = [], [], None
        if len(self._steps) >= _STEPS_HELD:
            self.hand_in()

    def hand_in(self) -> None:
        """Give all that was measured to the first process, which writes it down; all processes have to."""
        begun = time.perf_counter()
        by_rank = self._world.all_gather(self._steps, list[StepRecord])
        if self._steps and self._world.is_first:
            with write_errors(self.folder):
                self._write(by_rank)
        self._steps = []
        self._compare_clocks()
        self._seconds += time.perf_counter() - begun

    def _compare_clocks(self) -> None:
        """Meet a few times, and show from now on what the clock of the first process shows."""
        came, left = [], []
        for _ in range(_MEETINGS if self._world.size > 1 else 0):
            came.append(time.perf_counter_ns())
            self._world.all_reduce([0.0])
            left.append(time.perf_counter_ns())
        boot = Path("/proc/sys/kernel/random/boot_id")  # new with every start of a machine
        everybody = self._world.all_gather((boot.read_text().strip() if boot.exists() else "", came, left))
        offsets = [clock_offset(everybody[0], other) for other in everybody]
        self._offset = offsets[self._world.rank][0]
        self._clock_error = max(self._clock_error, *(error for _, error in offsets))

    def _now(self) -> int:
        synchronize(self._device)
        return time.perf_counter_ns() - self._offset

    def _mark(self) -> Any:
        """This moment, without waiting for anything: the time of the host, or an event in the stream of the device."""
        if not is_accelerator(self._device):
            return time.perf_counter_ns() - self._offset
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def _read(self, mark: Any) -> int:
        start, first = self._backward
        return mark if isinstance(mark, int) else start + round(1e6 * first.elapsed_time(mark))

    def _write(self, by_rank: Sequence[Sequence[StepRecord]]) -> None:
        """Add steps of all ranks, the same ones of each, to the table, and the first of them to the trace."""
        if not self.trace:
            self._begin(min(steps[0].start for steps in by_rank))
        with (self.folder / STEPS_FILE).open("a", encoding="utf-8", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            for records in zip(*by_rank, strict=True):
                for rank, (record, (spans, hidden, late)) in enumerate(zip(records, split(records), strict=True)):
                    own = [sum(span.own for span in spans if span.phase == phase) for phase in PHASES]
                    length = record.end - record.start
                    times = [record.start - self._zero, length, *own, length - sum(own), hidden, late]
                    counts = ["" if count is None else count for count in (record.sent, record.received)]
                    lines.writerow([record.step, rank, record.events, *(f"{t / 1e6:.4f}" for t in times), *counts])
                    if WARMUP_STEPS <= self._written < WARMUP_STEPS + _TRACED:
                        self._trace_step(rank, record, spans, late)
                self._written += 1

    def _begin(self, zero: int) -> None:
        """Begin anew with the first step; a start that takes none leaves what is there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        (self.folder / STEPS_FILE).write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
        self._zero = zero
        for rank in range(self._world.size):
            names = (f"rank {rank} of {self._world.size}", "steps", "phases", "buckets")
            for row, name in enumerate(names):
                kind, place = ("thread", row) if row else ("process", rank)
                for what, value in (("name", name), ("sort_index", place)):
                    self._trace_event("M", f"{kind}_{what}", rank, row, args={what: value})

    def _trace_step(self, rank: int, record: StepRecord, spans: Sequence[Span], late: int) -> None:
        """A step in the trace event format: rows of steps, of phases, of buckets under way, and a curve of bytes."""

        def block(name: str, row: int, start: int, end: int, **more: Any) -> None:
            times = {"ts": max(start - self._zero, 0) / 1e3, "dur": (end - start) / 1e3}
            self._trace_event("X", name, rank, row, **times, args=more)

        block(f"step {record.step}", 1, record.start, record.end, events=record.events, late_ms=late / 1e6)
        for span in sorted(spans, key=lambda span: (span.start, -span.end)):
            waits = {} if span.waits_for is None else {"waits_for": f"rank {span.waits_for}"}
            block(span.phase, 2, span.start, span.end, **waits)
        busy_until: list[int] = []  # blocks of one row may not overlap
        for number, bucket in enumerate(record.buckets, start=1):
            row = next((row for row, until in enumerate(busy_until) if until <= bucket.handed), len(busy_until))
            busy_until[row : row + 1] = [bucket.there]
            block(f"bucket {number}", 3 + row, bucket.handed, bucket.there, bytes=bucket.size)
        if record.sent is not None:
            counts = {"sent": record.sent, "received": record.received}
            start = max(record.start - self._zero, 0) / 1e3
            self._trace_event("C", "bytes per step", rank, 0, ts=start, args=counts)

    def _trace_event(self, kind: str, name: str, rank: int, row: int, **more: Any) -> None:
        # A colour by a name that viewers of the format know.
        color = {"cname": "grey"} if name == "idle" else {}
        self.trace.append({"ph": kind, "name": name, "pid": rank, "tid": row, **color, **more})


#: A machine, and when a process on it came to some meetings of all and left them.
Meetings = tuple[str, Sequence[int], Sequence[int]]


def clock_offset(first: Meetings, other: Meetings) -> tuple[int, int]:
    """Nanoseconds that a clock shows more than that of the first process, and how much that may be off.

    Nobody leaves a meeting before everybody has come: came_r - left_0 <= o_r <= left_r - came_0, and many meetings leave a
    narrow range. Processes of one machine read the same clock: there it is 0.
    """
    (machine, first_came, first_left), (other_machine, came, left) = first, other
    least = max((here - there for here, there in zip(came, first_left, strict=True)), default=0)
    most = min((here - there for here, there in zip(left, first_came, strict=True)), default=0)
    if other_machine and other_machine == machine and least <= 0 <= most:
        return 0, 0
    return (least + most) // 2, (most - least) // 2


def split(records: Sequence[StepRecord]) -> list[tuple[list[Span], int, int]]:
    """One step of all processes, by rank, with waiting told apart from communicating: spans, time of communication that the
    backward hides, and how much later than others it came where all meet, all meetings together.

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
        late = 0
        for came in [*meetings, *handovers[-1:]] if len(records) > 1 else ():
            middle = median([*came[:rank], *came[rank + 1 :]])  # of the others
            late += max(came[rank] - round(middle), 0)
        hidden, free_from = 0, 0
        for bucket, everybody in zip(record.buckets, handovers, strict=True):
            start, end = max(*everybody, free_from), min(bucket.there, record.buckets[-1].handed)
            hidden += max(end - start, 0)
            free_from = max(free_from, end)
        steps.append((spans, hidden, late))
    return steps


def _waited(start: int, end: int, came: Sequence[int], rank: int) -> list[Span]:
    """Idle until the last one came, communication from then on."""
    last = max(came)
    border, last_rank = min(max(last, start), end), came.index(last)
    idle = Span("idle", start, border, border - start, last_rank if last_rank != rank else None)
    return [span for span in (idle, Span("communication", border, end, end - border)) if span.own]


class Traffic:
    """Bytes through the TCP sockets of this process since this was made, those of sockets closed meanwhile included.

    Linux counts the bytes of every connection (`TCP_INFO`), without headers and without what had to be sent twice. What travels
    otherwise (NCCL over NVLink or InfiniBand, shared memory) is not seen, nor what a socket carried between the last look and
    its end: look at borders that matter.
    """

    def __init__(self) -> None:
        #: Why nothing can be counted; empty where it can.
        self.reason = ""
        if not sys.platform.startswith("linux"):
            self.reason = f"{sys.platform} does not count the bytes of a socket"
        else:
            with socket.socket() as probe:
                if len(_tcp_info(probe)) < _INFO_LENGTH:
                    self.reason = "this kernel does not count the bytes of a socket"
        self._counts: dict[str, tuple[int, int]] = {}
        self._before = (0, 0)
        self._before = self.look() or (0, 0)

    def look(self) -> tuple[int, int] | None:
        """Bytes sent and received so far, or None where the kernel does not tell."""
        if self.reason:
            return None
        self._counts |= _connections()
        sent, received = (sum(counts) for counts in zip((0, 0), *self._counts.values(), strict=True))
        return sent - self._before[0], received - self._before[1]

    @property
    def sent(self) -> int | None:
        """Bytes that left so far."""
        return None if (now := self.look()) is None else now[0]

    @property
    def received(self) -> int | None:
        """Bytes that arrived so far."""
        return None if (now := self.look()) is None else now[1]


#: Where in `struct tcp_info` of Linux the counts are: bytes received (Linux 4.1), bytes sent and sent again (4.19).
_RECEIVED_AT, _SENT_AT, _INFO_LENGTH = 128, 200, 216


def _tcp_info(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_LENGTH)


def _connections() -> dict[str, tuple[int, int]]:
    """What every TCP socket of this process sent and received so far, by the name of the socket, which is never used again."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            name = os.readlink(link)  # several descriptors may lead to one socket
            borrowed = socket.socket(fileno=int(link.name)) if name.startswith("socket:") else None
        except OSError:  # closed meanwhile
            continue
        if borrowed is None:
            continue
        if borrowed.family in (socket.AF_INET, socket.AF_INET6) and borrowed.type == socket.SOCK_STREAM:
            information = _tcp_info(borrowed)
            (received,) = struct.unpack_from("=Q", information, _RECEIVED_AT)
            sent, again = struct.unpack_from("=QQ", information, _SENT_AT)
            found[name] = (sent - again, received)
        borrowed.detach()  # it belongs to somebody else
    return found


#: Steps from which a straggler can be told; share of a step by which it is late; standard deviations by which it is the last
#: one more often than chance would have it; what a rank does by itself, where a straggler loses its time.
_FEWEST_STEPS, _MATTERS, _SIGNIFICANT = 10, 0.02, 4.0
_WORK = tuple(kind for kind in KINDS if kind not in ("communication", "idle"))

#: Columns by name, each an array of steps by ranks.
StepTable = Mapping[str, NDArray[np.float64]]


def read_table(path: Path) -> StepTable:
    """The table of all steps."""
    from pyarrow.csv import read_csv

    lines = read_csv(path)
    ranks = int(np.max(lines["rank"])) + 1
    return {name: lines[name].cast("float64").to_numpy().reshape(-1, ranks) for name in COLUMNS}


def write_report(folder: Path, facts: Mapping[str, Any]) -> list[str]:
    """Write the summary and the page of a profile; what to say of it."""
    table = read_table(folder / STEPS_FILE)
    summary = summarize(table, facts)
    write_atomic(folder / SUMMARY_FILE, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    drawn = [figure for figure in _FIGURES if figure[2] is not _lateness or summary["processes"] > 1]
    page = render(
        _TEMPLATE,
        summary=summary,
        mean={name: np.mean([rank[name] or 0.0 for rank in summary["ranks"]]) for name in summary["ranks"][0]},
        kinds=KINDS,
        colors=_COLORS,
        images=[Shown(title, caption, inline(png(draw(_steady(table))))) for title, caption, draw in drawn],
        size=size_in_words,
    )
    write_atomic(folder / PROFILE_PAGE, page)
    return [*(one["text"] for one in summary["stragglers"]), f"profile: {folder / PROFILE_PAGE}"]


def _steady(table: StepTable) -> StepTable:
    """The steps after the warm-up, where enough remain."""
    first = WARMUP_STEPS if len(table["step"]) >= 4 * WARMUP_STEPS else 0
    return {name: column[first:] for name, column in table.items()}


def summarize(table: StepTable, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Means per rank, bytes against the ring, and who is waited for."""
    counted = _steady(table)
    processes, size = facts["processes"], facts["gradient_bytes"]
    # A ring all-reduce sends, and receives, 2(N-1)K/N bytes per rank.
    ring = None if size is None else 2.0 * (processes - 1) * size / processes
    span_ms = float((table["start_ms"] + table["step_ms"]).max() - table["start_ms"].min())
    return {
        **{name: value for name, value in facts.items() if name != "handing_in_seconds"},
        "steps": len(table["step"]),
        "warmup_steps_left_out": len(table["step"]) - len(counted["step"]),
        "events_per_second": 1e3 * float(table["events"][:, 0].sum()) / float(table["step_ms"][:, 0].sum()),
        "ring_bytes_per_step": ring,
        "stragglers": stragglers(counted),
        "ranks": [_rank(counted, rank, ring) for rank in range(processes)],
        "handing_in_share": 1e3 * facts["handing_in_seconds"] / span_ms,
    }


def _rank(table: StepTable, rank: int, ring: float | None) -> dict[str, Any]:
    of = {name: column[:, rank] for name, column in table.items()}
    step = of["step_ms"]
    means = {name: float(of[name].mean()) for name in COLUMNS if name.endswith("_ms") and name != "start_ms"}
    found: dict[str, Any] = {
        "rank": rank,
        "step_ms_median": float(np.median(step)),
        "step_ms_95_percent": float(np.quantile(step, 0.95)),
        **means,
        **{f"{kind}_share": float(of[f"{kind}_ms"].sum() / step.sum()) for kind in KINDS},
    }
    for name in ("sent", "received"):
        mean = float(of[f"{name}_bytes"].mean())
        over = {f"{name}_bytes": mean, f"{name}_over_ring": mean / ring if ring else None}
        found |= dict.fromkeys(over) if np.isnan(mean) else over
    return found


def stragglers(table: StepTable) -> list[dict[str, Any]]:
    """Ranks that are waited for, the worst first: only where chance does not explain it and it costs something."""
    late, typical = table["late_ms"], float(np.median(table["step_ms"]))
    steps, ranks = late.shape
    if ranks == 1 or steps < _FEWEST_STEPS:
        return []
    found = []
    for rank in range(ranks):
        is_late = (late[:, rank] > _MATTERS * typical) & (late.argmax(axis=1) == rank)
        chance = 1.0 / ranks + _SIGNIFICANT * sqrt((1.0 - 1.0 / ranks) / ranks / steps)
        if is_late.mean() <= chance or late[:, rank].mean() < _MATTERS * typical:
            continue
        others = {name: np.delete(column, rank, axis=1) for name, column in table.items()}
        excess = {  # what it took longer than the middle one of the others
            kind: float((table[f"{kind}_ms"][:, rank] - np.median(others[f"{kind}_ms"], axis=1)).mean())
            for kind in _WORK
        }
        slower_in = max(excess, key=lambda kind: excess[kind])
        one: dict[str, Any] = {
            "rank": rank,
            "share": float(is_late.mean()),
            "late_ms": float(late[is_late, rank].mean()),
            "others_wait": float(others["idle_ms"].sum() / others["step_ms"].sum()),
            "slower_in": slower_in,
            "slower_ms": excess[slower_in],
        }
        text = (
            "rank {rank} is late in {share:.0%} of the steps, by {late_ms:.3g} ms on average; the others wait "
            "{others_wait:.0%} of the time. Per step it needs {slower_ms:.3g} ms more than they for '{slower_in}'"
        )
        found.append({**one, "text": text.format(**one).replace("%", " %")})
    return sorted(found, key=lambda one: -one["share"] * one["late_ms"])


#: Colours of Okabe and Ito; what holds a rank up is hatched too.
_COLORS = dict(zip(KINDS, ("#E69F00", "#56B4E9", "#0072B2", "#D55E00", "#009E73", "#DADADA", "#8A8A8A"), strict=True))
_HATCHES = {"communication": "///", "idle": "..."}
_LINES = {"communication": "--", "idle": ":", "other": "-."}
#: Ranks that have a name, or a curve, of their own; points of a curve.
_MOST_NAMED, _MOST_CURVES, _MOST_POINTS = 16, 7, 150


@styled
def _phase_bars(table: StepTable) -> Figure:
    figure, axes, ranks = _by_rank(table, "time per step [ms]", top=0.66)
    left = np.zeros(len(ranks))
    for kind in KINDS:
        width = table[f"{kind}_ms"].mean(axis=0)
        look: dict[str, Any] = {"color": _COLORS[kind], "hatch": _HATCHES.get(kind), "edgecolor": "white"}
        axes.barh(ranks, width, left=left, height=0.74, linewidth=0.6, label=kind, **look)
        left += width
    _legend(axes)
    return figure


@styled
def _lateness(table: StepTable) -> Figure:
    figure, axes, ranks = _by_rank(table, "later than the others, per step [ms]", top=0.2)
    axes.boxplot(
        table["late_ms"], positions=ranks, orientation="horizontal", whis=(5, 95), showfliers=False, manage_ticks=False
    )
    axes.set_xlim(0.0, max(axes.get_xlim()[1], 0.02 * float(np.median(table["step_ms"]))))
    return figure


@styled
def _phase_history(table: StepTable) -> Figure:
    figure, (axes,) = panels([3.3], top=0.66)
    groups = np.array_split(np.arange(len(table["step"])), min(len(table["step"]), _MOST_POINTS))
    for kind in KINDS:
        mean = table[f"{kind}_ms"].mean(axis=1)
        color = "#9A9A9A" if kind == "idle" else _COLORS[kind]  # grey lines need more ink than grey areas
        steps, medians = ([np.median(values[group]) for group in groups] for values in (table["step"][:, 0], mean))
        axes.plot(steps, medians, linewidth=1.5, color=color, linestyle=_LINES.get(kind, "-"), label=kind)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("step")
    axes.set_ylabel("time per step [ms]")
    _legend(axes)
    return figure


@styled
def _step_histogram(table: StepTable) -> Figure:
    figure, (axes,) = panels([3.0], top=0.5)
    times = table["step_ms"]
    steps, ranks = times.shape
    high = float(np.quantile(times, 0.99))
    rows = {f"rank {rank}": times[:, rank] for rank in range(ranks)} if ranks <= _MOST_CURVES else {"all ranks": times}
    edges = np.linspace(0.98 * float(times.min()), 1.02 * high, 1 + min(max(steps // 6, 8), 50)).tolist()
    for (label, values), color in zip(rows.items(), _COLORS.values(), strict=False):
        axes.hist(values.ravel().clip(max=high), edges, histtype="step", color=color, linewidth=1.5, label=label)
    axes.set_xlabel("time per step [ms]")
    axes.set_ylabel("steps")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes)
    return figure


def _by_rank(table: StepTable, label: str, top: float) -> tuple[Figure, Axes, NDArray[np.int64]]:
    ranks = np.arange(table["rank"].shape[1])
    figure, (axes,) = panels([min(0.9 + 0.42 * len(ranks), 6.0)], top=top)
    axes.set_yticks(ranks[:: -(-len(ranks) // _MOST_NAMED)])
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    axes.set_ylabel("rank")
    return figure, axes, ranks


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4, fontsize=10, columnspacing=1.2)


#: Title, caption and drawing.
_FIGURES = (
    (
        "Where the time goes",
        "Mean time of a step per rank. Idle: waiting until the last rank is there. Communication: only what holds the step up, "
        "not what the backward hides. Other: everything that is in no phase.",
        _phase_bars,
    ),
    (
        "Who is waited for",
        "How much later than the others a rank comes to where all meet. Mark: half of the steps are below; box: the middle "
        "half of the steps; line: nine of ten.",
        _lateness,
    ),
    ("Step after step", "Time per phase, the mean over all ranks.", _phase_history),
    ("How long steps take", "The slowest percent is in the last bin.", _step_histogram),
)
