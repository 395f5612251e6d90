"""The files of a profile: what goes in comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ringflow.base.errors import InputFileError
from ringflow.train.profile.folder import ProfileFolder
from ringflow.train.profile.records import Circumstances, Meetings, RankLog, StepRecord
from ringflow.train.profile.summary import Costs, ring_bytes, summarize
from ringflow.train.profile.table import KINDS, StepTable, read_table

MS = 1_000_000
MakeStep = Callable[..., StepRecord]
MakeTable = Callable[..., StepTable]
FOUR = Circumstances(4, "replicate", "cpu", 1000, "")


def logs(make_step: MakeStep, steps: range, skew: int = 0) -> list[RankLog]:
    """What two ranks hand in, whose clocks are apart."""
    meetings = (Meetings("a", (0, 100), (50, 101)), Meetings("b", (49 + skew, 10 + skew), (51 + skew, 101 + skew)))
    return [
        RankLog(
            meetings[rank],
            tuple(make_step(ready=ready, step=step).shifted(-100 * MS * step - skew * rank) for step in steps),
        )
        for rank, ready in enumerate((4, 20))
    ]


def test_the_table_has_every_rank_and_step(tmp_path: Path, make_step: MakeStep):
    folder = ProfileFolder(tmp_path)
    two = Circumstances(2, "replicate", "cpu", None, "")
    folder.keep(two, logs(make_step, range(1, 4), skew=10**9))
    folder.keep(two, logs(make_step, range(4, 31), skew=10**9))
    folder.close()
    table = read_table(tmp_path / "profile" / "steps.csv")
    assert (table.num_steps, table.num_ranks) == (30, 2)
    assert table["step"][:, 1].tolist() == list(range(1, 31))
    assert table["idle_ms"][:, 0] == pytest.approx(16.0, abs=1e-3)  # clocks that are a second apart do not matter
    assert table["start_ms"][0] == pytest.approx([0.0, 0.0], abs=1e-3)
    assert sum(table[f"{kind}_ms"] for kind in KINDS) == pytest.approx(table["step_ms"], abs=1e-3)
    summary = folder.finish(0.3)
    assert summary == json.loads((tmp_path / "profile" / "summary.json").read_text())
    assert (summary["steps"], summary["warmup_steps_left_out"]) == (30, 5)
    assert [rank["sent_over_ring"] for rank in summary["ranks"]] == [None, None]
    assert 0 < summary["clock_error_ms"] < 1e-3
    assert [one["rank"] for one in summary["stragglers"]] == [1]
    steps = {
        event["name"]
        for event in json.loads((tmp_path / "profile" / "trace.json").read_text())
        if "step " in event["name"]
    }
    assert steps == {f"step {step}" for step in range(6, 31)}


def test_a_start_that_takes_a_step_begins_anew_and_another_leaves_all(tmp_path: Path, make_step: MakeStep):
    for first in (1, 50):
        folder = ProfileFolder(tmp_path)
        folder.keep(FOUR, logs(make_step, range(first, first + 2)))
        folder.close()
    before = (tmp_path / "profile" / "steps.csv").read_text()
    assert read_table(tmp_path / "profile" / "steps.csv")["step"][:, 0].tolist() == [50.0, 51.0]
    idle = ProfileFolder(tmp_path)
    idle.close()
    assert idle.finish(0.0) is None
    assert (tmp_path / "profile" / "steps.csv").read_text() == before


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "step,rank\n1,x\n", "\x00\x01"])
def test_what_is_no_table_is_one_line(tmp_path: Path, text: str):
    (tmp_path / "steps.csv").write_text(text)
    with pytest.raises(InputFileError, match=r"steps.csv is no table of steps.*; profile again"):
        read_table(tmp_path / "steps.csv")


def test_a_step_that_was_cut_short_is_left_out(tmp_path: Path, make_step: MakeStep):
    folder = ProfileFolder(tmp_path)
    folder.keep(FOUR, logs(make_step, range(1, 4)))
    folder.close()
    path = tmp_path / "profile" / "steps.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert read_table(path).num_steps == 2


def test_bytes_are_compared_with_a_ring(make_table: MakeTable):
    assert ring_bytes(FOUR) == 1500.0
    summary = summarize(make_table(), FOUR, Costs(0, 0.1))
    assert [rank["sent_over_ring"] for rank in summary["ranks"]] == pytest.approx(4 * [1505 / 1500])
    assert [rank["received_over_ring"] for rank in summary["ranks"]] == pytest.approx(4 * [1.0])
    assert sum(summary["ranks"][0][f"{kind}_share"] for kind in KINDS) == pytest.approx(1.0)
    assert summary["stragglers"] == []


def test_bytes_that_nobody_counted_are_empty(make_table: MakeTable):
    table = make_table()
    table["sent_bytes"][:] = table["received_bytes"][:] = float("nan")
    summary = summarize(table, FOUR._replace(no_bytes_because="no Linux"), Costs(0, 0.1))
    assert {rank["sent_bytes"] for rank in summary["ranks"]} == {None}
    assert {rank["received_over_ring"] for rank in summary["ranks"]} == {None}
    json.dumps(summary, allow_nan=False)
