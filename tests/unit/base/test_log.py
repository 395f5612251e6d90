from __future__ import annotations

import io
import sys

import pytest

from ringflow.base import log


@pytest.fixture
def no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in log.BATCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def sit_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Called in the test, because pytest sets stderr anew after the fixtures."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


@pytest.mark.usefixtures("no_batch")
@pytest.mark.parametrize("variable", log.BATCH_VARIABLES)
def test_a_terminal_of_a_batch_job_is_nobodys(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    sit_at_a_terminal(monkeypatch)
    assert log.interactive()
    monkeypatch.setenv(variable, "1")
    assert not log.interactive()


@pytest.mark.usefixtures("no_batch")
def test_a_pipe_is_not_interactive(capsys: pytest.CaptureFixture[str]) -> None:
    assert not log.interactive()


def test_sparse_progress_speaks_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    progress = log.SparseProgress(1000, "events", clock=lambda: 0.0)
    for _ in range(1000):
        progress.advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"events: {done}/1000" for done in range(100, 1001, 100)]


def test_sparse_progress_speaks_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    progress = log.SparseProgress(1_000_000, "events", clock=lambda: now)
    for _ in range(7):
        now += 10.0
        progress.advance(1)
    assert capsys.readouterr().err.splitlines() == ["events: 3/1000000", "events: 6/1000000"]


@pytest.mark.usefixtures("no_batch")
def test_progress_in_a_pipe_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    with log.progress(2, "shards") as advance:
        advance(1)
        advance(1)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["shards: 1/2", "shards: 2/2"]
    assert captured.out == ""


@pytest.mark.usefixtures("no_batch")
def test_progress_on_a_terminal_is_a_bar_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = sit_at_a_terminal(monkeypatch)
    with log.progress(2, "shards") as advance:
        advance(2)
    assert "2/2" in terminal.getvalue()
    assert "━" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_a_table_in_a_pipe_is_aligned_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    log.table("Gates", ("gate", "verdict"), [("finite", "PASS"), ("a longer name", "FAIL")])
    captured = capsys.readouterr()
    assert captured.err == "Gates\n  gate           verdict\n  finite         PASS\n  a longer name  FAIL\n"
    assert captured.out == ""


@pytest.mark.usefixtures("no_batch")
def test_a_table_on_a_terminal_is_drawn_and_coloured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = sit_at_a_terminal(monkeypatch)
    log.table("Gates", ("gate", "verdict"), [("[links] in range", "FAIL")])
    assert "[links] in range" in terminal.getvalue()
    assert "\x1b[1;31mFAIL" in terminal.getvalue()
    assert capsys.readouterr().out == ""
