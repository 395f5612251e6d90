"""What a profile measures, tells apart, writes down and says."""

from __future__ import annotations

import json
import re
import socket
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.tiny_training import TINY, make_dataset
from ringflow.base.errors import UsageError
from ringflow.train.profile import (
    COLUMNS,
    KINDS,
    PHASES,
    Bucket,
    Profiler,
    Span,
    StepRecord,
    StepTable,
    Traffic,
    clock_offset,
    read_table,
    split,
    stragglers,
    summarize,
    write_report,
)
from ringflow.train.run import resolved, train
from ringflow.train.settings import TrainSettings
from ringflow.train.world import ALONE

MS = 1_000_000
ROUND = st.tuples(*(st.integers(0, 1000) for _ in range(2)), *(st.integers(1, 50) for _ in range(2)))


def made_step(
    ready: int, handed: tuple[int, ...] = (), there: tuple[int, ...] = (), step: int = 1, start: int = 0
) -> StepRecord:
    """One step of one rank, in milliseconds: data, a meeting until 22, forward, backward with buckets, optimizer."""
    borders = [
        ("data", 0, ready),
        ("idle", ready, 22),
        ("forward", 22, 40),
        ("backward", 40, 90),
        ("optimizer", 90, 95),
    ]
    spans = [Span(name, (start + a) * MS, (start + b) * MS, (b - a) * MS) for name, a, b in borders]
    buckets = [Bucket(1000, (start + a) * MS, (start + b) * MS) for a, b in zip(handed, there, strict=True)]
    return StepRecord(step, 10, start * MS, (start + 98) * MS, 1000, 1010, spans, buckets)


def milliseconds(spans: list[Span]) -> dict[str, float]:
    times = {phase: sum(span.own for span in spans if span.phase == phase) / MS for phase in PHASES}
    return {phase: time for phase, time in times.items() if time}


def test_who_comes_early_waits_and_then_all_communicate():
    (early, _, in_time), (late, _, too_late) = split([made_step(ready=4), made_step(ready=20)])
    same = {"communication": 2, "forward": 18, "backward": 50, "optimizer": 5}
    assert milliseconds(early) == {"data": 4, "idle": 16, **same}
    assert milliseconds(late) == {"data": 20, **same}
    assert [(span.phase, span.waits_for) for span in early[1:3]] == [("idle", 1), ("communication", None)]
    assert (in_time, too_late) == (0, 16 * MS)


def test_only_what_is_left_after_the_last_gradient_holds_a_step_up():
    fast = made_step(ready=20, handed=(50, 60), there=(75, 88))
    slow = made_step(ready=20, handed=(55, 80), there=(75, 88))
    (first, *of_first), (second, *of_second) = split([fast, slow])
    # The last bucket is handed over at 60 and at 80, and the backward ends at 90.
    other = {"data": 20, "forward": 18, "optimizer": 5, "communication": 12}
    assert milliseconds(first) == {**other, "backward": 20, "idle": 20}
    assert milliseconds(second) == {**other, "backward": 40}
    # The first bucket travels from 55, when both have handed it over: 5 ms until 60 are hidden in one, 20 ms in the other.
    assert (of_first, of_second) == ([5 * MS, 0], [20 * MS, 20 * MS])
    [(_, hidden, _)] = split([made_step(ready=20, handed=(45, 50, 80), there=(70, 72, 88))])
    assert hidden == 27 * MS, "those that travel together are not counted twice"


def test_lateness_is_against_the_middle_one_of_the_others():
    steps = split([made_step(ready=ready) for ready in (1, 2, 3, 21)])
    assert [late / MS for _, _, late in steps] == [0, 0, 1, 19]


Meetings = tuple[str, list[int], list[int]]


def meetings(rounds: list[tuple[int, int, int, int]], skew: int, machines: tuple[str, str]) -> list[Meetings]:
    """Two processes that came so late to every round, and left so long after the last one had come."""
    found: list[Meetings] = [(machine, [], []) for machine in machines]
    for number, (first, second, slow, slower) in enumerate(rounds):
        start = 10_000 * number
        for rank, (here, out) in enumerate(((first, slow), (second, slower))):
            found[rank][1].append(start + here + skew * rank)
            found[rank][2].append(start + max(first, second) + out + skew * rank)
    return found


@given(st.lists(ROUND, min_size=1, max_size=8), st.integers(-(10**9), 10**9))
def test_the_offset_of_a_clock_is_within_its_error(rounds: list[tuple[int, int, int, int]], skew: int):
    value, error = clock_offset(*meetings(rounds, skew, ("a", "b")))
    assert abs(value - skew) <= error + 1 <= 1051


def test_one_machine_has_one_clock_unless_it_cannot_be():
    assert clock_offset(*meetings([(0, 7, 5, 9)], 0, ("a", "a"))) == (0, 0)
    value, error = clock_offset(*meetings([(0, 7, 5, 9)], 10**6, ("a", "a")))
    assert abs(value - 10**6) <= error


def test_a_phase_has_neither_the_time_of_those_within_nor_of_what_is_between_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    clock = [0]
    monkeypatch.setattr(Profiler, "_now", lambda self: clock[0] * MS)
    phases = Profiler(tmp_path / "profile", ALONE, torch.device("cpu"), "replicate")

    def spend(name: str, time: int) -> None:
        with phases(name):
            clock[0] += time

    spend("idle", 100)  # a validation
    for step in range(1, 60):
        spend("data", 10)
        clock[0] += 5
        with phases("forward"):
            clock[0] += 5
            spend("communication", 8)
            clock[0] += 2
        phases.end_step(step, 7)
        clock[0] += 1000
    assert len(read_table(tmp_path / "profile" / "steps.csv")["step"]) == 50
    phases.hand_in()
    table = read_table(tmp_path / "profile" / "steps.csv")
    assert table["step"].tolist() == [[step] for step in range(1, 60)]
    expected = {"events": 7, "step_ms": 30, "data_ms": 10, "forward_ms": 7, "communication_ms": 8, "other_ms": 5}
    assert {name: float(table[name].mean()) for name in expected} == expected
    assert phases.facts()["no_bytes_because"] == "a process alone sends nothing"
    before = (tmp_path / "profile" / "steps.csv").read_text()
    Profiler(tmp_path / "profile", ALONE, torch.device("cpu"), "replicate").hand_in()  # a start without a step
    assert (tmp_path / "profile" / "steps.csv").read_text() == before


FACTS = {
    "processes": 2,
    "strategy": "replicate",
    "device": "cpu",
    "gradient_bytes": None,
    "no_bytes_because": "",
    "clock_error_ms": 0.0,
    "handing_in_seconds": 0.3,
}


def test_table_trace_and_summary_have_every_rank(tmp_path: Path):
    folder = tmp_path / "profile"
    folder.mkdir()
    (folder / "old").touch()
    by_rank = [
        [made_step(ready, (50, 60, 80), (76, 85, 88), step, 100 * step) for step in range(1, 31)] for ready in (4, 20)
    ]
    gathered = {list: by_rank}  # of steps; of clocks what is given
    pair = SimpleNamespace(size=2, rank=0, is_first=True, all_reduce=list)
    pair.all_gather = lambda mine, kind=None: gathered.get(type(mine), [mine, mine])
    profiler = Profiler(folder, pair, torch.device("cpu"), "replicate")  # type: ignore[arg-type]
    profiler._steps = by_rank[0]
    profiler.hand_in()
    table = read_table(folder / "steps.csv")
    assert not (folder / "old").exists()
    assert table["step"][:, 1].tolist() == list(range(1, 31))
    assert table["idle_ms"][:, 0] == pytest.approx(16.0, abs=1e-3)
    assert sum(table[f"{kind}_ms"] for kind in KINDS) == pytest.approx(table["step_ms"], abs=1e-3)
    said = write_report(folder, FACTS)
    summary = json.loads((folder / "summary.json").read_text())
    assert said == [summary["stragglers"][0]["text"], f"profile: {folder / 'report.html'}"]
    assert (summary["steps"], summary["warmup_steps_left_out"], summary["stragglers"][0]["rank"]) == (30, 5, 1)
    assert_valid(profiler.trace)
    named = [(event["pid"], event["args"]["name"]) for event in profiler.trace if event["name"].endswith("_name")]
    assert named == [(rank, name) for rank in (0, 1) for name in (f"rank {rank} of 2", "steps", "phases", "buckets")]
    blocks = [event for event in profiler.trace if event["ph"] == "X" and event["pid"] == 0]
    assert [event["name"] for event in blocks if event["tid"] == 1] == [f"step {step}" for step in range(6, 31)]
    idle = next(event for event in blocks if event["name"] == "idle")
    assert (idle["args"], idle["dur"]) == ({"waits_for": "rank 1"}, pytest.approx(16000.0, abs=1))
    # Those under way together are in rows of their own.
    buckets = {event["name"]: event["tid"] for event in blocks if "bucket" in event["name"]}
    assert buckets == {"bucket 1": 3, "bucket 2": 4, "bucket 3": 3}
    counts = [event["args"] for event in profiler.trace if event["ph"] == "C"]
    assert counts == 50 * [{"sent": 1000, "received": 1010}]


def assert_valid(events: list[dict[str, Any]]) -> None:
    """What the format asks for; blocks of one row are within each other or apart."""
    rows: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        assert event["ph"] in "MXC"
        if event["ph"] == "X":
            assert min(event["ts"], event["dur"]) >= 0
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for blocks in rows.values():
        open_until: list[float] = []
        for start, end in sorted(blocks, key=lambda block: (block[0], -block[1])):
            while open_until and open_until[-1] <= start + 1e-6:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-6
            open_until.append(end)


def made_table(
    steps: int = 100, ranks: int = 4, slow: int = 2, delay: float = 0.0, share: float = 1.0, jitter: float = 5.0
) -> StepTable:
    """Steps of 100 ms; rank `slow` takes `delay` ms longer for its data in a `share` of them, the others wait for it."""
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
    return columns


def test_a_slow_rank_is_named_with_what_it_costs():
    (found,) = stragglers(made_table(slow=2, delay=12.0))
    assert (found["rank"], found["slower_in"]) == (2, "data")
    assert found["share"] == pytest.approx(1.0, abs=0.02)
    assert found["late_ms"] == pytest.approx(12.0, abs=1.0)
    assert found["slower_ms"] == pytest.approx(12.0, abs=1.0)
    assert found["others_wait"] == pytest.approx(0.12, abs=0.02)
    assert re.fullmatch(
        r"rank 2 is late in \d+ % of the steps, by 1\d(\.\d)? ms on average; the others wait 1\d % of the time. Per step it "
        r"needs 1\d(\.\d)? ms more than they for 'data'",
        found["text"],
    )


@pytest.mark.parametrize(
    "what",
    [
        pytest.param({"slow": 0, "ranks": 2}, id="chance"),
        pytest.param({"slow": 0, "ranks": 16}, id="chance of many"),
        pytest.param({"delay": 1.0, "jitter": 0.1}, id="too little to matter"),
        pytest.param({"delay": 30.0, "share": 0.1}, id="too seldom"),
        pytest.param({"delay": 30.0, "steps": 9}, id="too few steps"),
        pytest.param({"ranks": 1, "slow": 0}, id="nobody else"),
    ],
)
def test_what_is_not_significant_is_not_told(what: dict[str, float]):
    assert stragglers(made_table(**what)) == []


def test_two_slow_ranks_are_both_named():
    table = made_table(ranks=8, slow=1, delay=20.0, jitter=2.0)
    for name in ("late_ms", "data_ms"):
        table[name][:, 6] = table[name][::-1, 1]
    assert {one["rank"] for one in stragglers(table)} == {1, 6}


def test_bytes_are_compared_with_a_ring_where_somebody_counts_them():
    four, table = {**FACTS, "processes": 4, "gradient_bytes": 1000}, made_table()
    summary = summarize(table, four)
    assert summary["ring_bytes_per_step"] == 1500.0
    assert [rank["sent_over_ring"] for rank in summary["ranks"]] == pytest.approx(4 * [1505 / 1500])
    assert sum(summary["ranks"][0][f"{kind}_share"] for kind in KINDS) == pytest.approx(1.0)
    table["sent_bytes"][:] = table["received_bytes"][:] = float("nan")
    summary = summarize(table, {**four, "no_bytes_because": "no Linux"})
    assert {rank[name] for rank in summary["ranks"] for name in ("sent_bytes", "received_over_ring")} == {None}
    json.dumps(summary, allow_nan=False)


def page(folder: Path, ranks: int, delay: float = 0.0) -> str:
    table = made_table(40, ranks, ranks - 1, delay, jitter=1.0)
    if ranks == 1:
        table["sent_bytes"][:] = table["received_bytes"][:] = float("nan")
    lines = [",".join(COLUMNS)]
    for step in range(40):
        numbers = [[table[name][step, rank] for name in COLUMNS] for rank in range(ranks)]
        lines += [",".join(f"{number:g}".replace("nan", "") for number in row) for row in numbers]
    (folder / "steps.csv").write_text("\n".join(lines) + "\n")
    facts = {"processes": ranks, "gradient_bytes": 1500 if ranks > 1 else None}
    write_report(folder, {**FACTS, **facts, "no_bytes_because": "" if ranks > 1 else "a process alone sends nothing"})
    return (folder / "report.html").read_text()


def test_the_page_says_what_the_numbers_say_and_needs_nothing_else(tmp_path: Path):
    text = page(tmp_path, 2, delay=12.0)
    assert "<h1>The others wait for rank 1</h1>" in text
    assert re.search(r"Rank 1 is late in 100 % of the steps, by 1\d(\.\d)? ms on average", text)
    assert "1.003 times the 2(N-1)K/N = 1.5 kB" in text
    assert text.count('<img src="data:image/png;base64,') == 4
    assert re.findall(r'(?:src|href)="(?!data:|#)', text) == []
    text = page(tmp_path, 40)
    assert re.search(r"<h1>A step takes 9\d\.?\d* ms, 9\d % of it to compute</h1>", text)
    assert "No rank is waited for" in text
    text = page(tmp_path, 1)
    assert 'id="bytes"' not in text
    assert "waited for" not in text.split("<main>")[1].split('id="figures"')[0]
    assert text.count("<figure>") == 3


def test_a_training_without_steps_of_all_is_not_measured(tmp_path: Path):
    settings = TrainSettings.resolve(None, ["profile=true", "sync=downpour"])
    with pytest.raises(UsageError, match="profile=true measures the steps of sync=allreduce, and sync=downpour has"):
        resolved(settings, tmp_path / "run", 2, overwrite=False)


counted = pytest.mark.skipif(bool(Traffic().reason), reason=f"no bytes are counted here: {Traffic().reason}")


def talk(near: socket.socket, far: socket.socket, size: int) -> None:
    near.sendall(b"x" * size)
    while size:
        size -= len(far.recv(size))


@counted
def test_bytes_are_counted_from_the_beginning_also_of_connections_that_come_and_go():
    with socket.create_server(("127.0.0.1", 0)) as server:
        near, before = (socket.create_connection(server.getsockname()) for _ in range(2))
        far, far_before = (server.accept()[0] for _ in range(2))
        with near, far, before, far_before:
            talk(before, far_before, 5000)
            traffic = Traffic()
            assert (traffic.sent, traffic.received) == (0, 0)
            talk(near, far, 70_000)  # both ends are ours
            here, there = socket.socketpair()
            with here, there:  # other kinds are left alone
                talk(here, there, 100)
                assert (traffic.sent, traffic.received) == (70_000, 70_000)
        with socket.create_connection(server.getsockname()) as near, server.accept()[0] as far:
            talk(near, far, 44)
            assert traffic.sent == 70_044


def test_where_nothing_is_counted_the_reason_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.platform", "darwin")
    traffic = Traffic()
    assert (traffic.sent, traffic.received) == (None, None)
    assert traffic.reason == "darwin does not count the bytes of a socket"


def test_a_training_is_measured(tmp_path: Path):
    """Of one process, for real; of several in tests/distributed."""
    settings = TrainSettings.resolve(None, [f"data={make_dataset(tmp_path)}", *TINY, "profile=true"])
    result = train(settings, tmp_path / "run")
    steps = read_table(tmp_path / "run" / "profile" / "steps.csv")
    assert 0 < len(steps["step"]) <= result["steps"]
    assert (steps["forward_ms"] > 0.0).all()
    assert steps["communication_ms"].min() < 0.1 * steps["backward_ms"].min()  # nobody to talk to
    assert (tmp_path / "run" / "profile" / "report.html").is_file()
    assert json.loads((tmp_path / "run" / "profile" / "trace.json").read_text())
