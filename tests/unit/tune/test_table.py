"""What a terminal and a log file show of a study that runs."""

from __future__ import annotations

import io
from itertools import count
from pathlib import Path

import pytest
from rich.console import Console

from fixtures.synthetic_study import make_study
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import JournalRow, StudyRecord, read_rows
from ringflow.tune.table import LiveTable, PlainLines, study_table


def row(kind: str, trial: int, time: float, **data: object) -> JournalRow:
    return JournalRow(0, time, kind, trial, data)


def added(trial: int, time: float = 0.0) -> JournalRow:
    point = {"optimizer.rate": 0.001, "model.backbone": "graph"}
    return row("added", trial, time, point=point, verdict="continue", until=1000, workers=1)


def reported(trial: int, time: float, resource: int, value: float | None, verdict: str, workers: int = 1) -> JournalRow:
    told = {"resource": resource, "value": value, "figures": {}, "verdict": verdict, "until": 4000, "workers": workers}
    return row("reported", trial, time, **told)


@pytest.fixture
def record() -> StudyRecord:
    """Trial 0 was stopped, 1 goes on, on more processes, 2 is put aside, 3 failed, 4 runs."""
    rows = [
        *(added(trial) for trial in range(5)),
        *(row("begun", trial, 10.0, workers=1) for trial in range(5)),
        reported(0, 20.0, 1000, 5.25, "stop"),
        reported(1, 21.0, 1000, 3.5, "resize", 4),
        reported(2, 22.0, 1000, 4.0, "pause"),
        row("gone", 3, 23.0, reason="out of memory"),
        row("begun", 1, 30.0, workers=4),
    ]
    return StudyRecord(16_000, rows)


def drawn(record: StudyRecord, width: int = 100, now: float = 75.0) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(study_table(record, 8, "loss", now))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_tells_how_things_stand(record: StudyRecord) -> None:
    shown = drawn(record)
    assert "2 of 8 trials done" in shown
    assert "2 running  1 paused  1 stopped  1 failed" in shown
    assert "1 min 15 s elapsed, about 3 min 45 s left" in shown
    assert "best loss 3.5  trial 1 after 1,000 events  rate=0.001 backbone=graph" in shown
    line = next(line for line in shown.splitlines() if "1,000 / 4,000" in line)
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        "1", "1,000 / 4,000", "3.5", "4", "56 s", "rate=0.001 backbone=graph",
    ]  # fmt: skip
    assert next(line for line in shown.splitlines() if "0 / 1,000" in line).count("–") == 1
    narrow = drawn(record, width=70)
    assert "1,000 / 4,000" in narrow
    assert max(map(len, narrow.splitlines())) <= 70
    assert "0 of 8 trials done" in drawn(StudyRecord(1000))


def test_many_running_trials_do_not_fill_the_screen() -> None:
    rows = [entry for trial in range(30) for entry in (added(trial), row("begun", trial, 1.0, workers=1))]
    shown = drawn(StudyRecord(1000, rows))
    assert "and 14 more that run" in shown
    assert len(shown.splitlines()) < 26


def test_plain_lines_tell_every_end_once(record: StudyRecord) -> None:
    lines: list[str] = []
    plain = PlainLines(8, "loss", lines.append)
    plain.show(record)
    plain.show(record)
    assert lines == [
        "trial 0 stopped at 1,000 events: loss 5.25 (best 3.5, trial 1); 1 of 8 trials done",
        "trial 3 failed: out of memory (best 3.5, trial 1); 2 of 8 trials done",
        "trial 1 at 1,000 events: loss 3.5, goes on to 4,000 on 4 processes instead of 1",
        "trial 2 at 1,000 events: loss 4, put aside",
    ]
    record.apply(reported(1, 90.0, 16_000, 2.9, "stop"))
    record.apply(reported(4, 91.0, 1000, None, "stop"))
    plain.show(record)
    assert lines[4:] == [
        "trial 1 complete after 16,000 events: loss 2.9 (best so far); 3 of 8 trials done",
        "trial 4 stopped at 1,000 events: loss diverged (best 2.9, trial 1); 4 of 8 trials done",
    ]


def test_a_log_file_of_many_trials_stays_readable(tmp_path: Path) -> None:
    folder = StudyFolder(make_study(tmp_path / "large", 300, processes=32))
    lines: list[str] = []
    plain = PlainLines(300, "loss", lines.append)
    record = StudyRecord(folder.training.length.events)
    for number, entry in enumerate(rows := read_rows(folder.journal)):
        record.apply(entry)
        if number % 50 == 0 or number == len(rows) - 1:
            plain.show(record)
    assert 100 <= len(lines) < 140
    assert lines[-1].endswith("300 of 300 trials done")
    assert record.best is not None
    assert any(line.startswith(f"trial {record.best.number} complete") and "(best so far)" in line for line in lines)


@pytest.fixture
def ticking() -> list[float]:
    """A clock that stands still until it is set."""
    return [0.0]


def test_the_table_does_not_draw_more_often_than_anybody_reads(
    record: StudyRecord, ticking: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with LiveTable(8, "loss", clock=lambda: ticking[0]) as table:
        table.show(record)
        first = capsys.readouterr().err
        assert first.count("\n") == 4
        record.apply(reported(4, 91.0, 1000, 9.0, "stop"))
        ticking[0] = 0.2
        table.show(record)
        assert capsys.readouterr().err == ""
        ticking[0] = 0.3
        table.show(record)
        assert "trial 4 stopped" in capsys.readouterr().err
        record.apply(reported(1, 92.0, 16_000, 2.0, "stop"))
        table.show(record)
        assert capsys.readouterr().err == ""
    assert "trial 1 complete" in capsys.readouterr().err


def test_a_slow_terminal_is_left_alone_for_longer(record: StudyRecord, capsys: pytest.CaptureFixture[str]) -> None:
    clock = count(0.0, 1.0)  # every look takes a second
    with LiveTable(8, "loss", clock=lambda: next(clock)) as table:
        table.show(record)
        capsys.readouterr()
        record.apply(reported(4, 91.0, 1000, 9.0, "stop"))
        for _ in range(40):
            table.show(record)
        assert capsys.readouterr().err == ""


def test_on_a_terminal_the_last_state_stays(
    record: StudyRecord, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ringflow.tune.table.interactive", lambda: True)
    with LiveTable(8, "loss") as table:
        table.show(record)
        record.apply(reported(1, 92.0, 16_000, 2.0, "stop"))
        table.show(record)
    shown = capsys.readouterr().err
    assert "best loss 2 " in shown
    assert "3 of 8 trials done" in shown
