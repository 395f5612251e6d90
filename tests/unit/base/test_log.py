from __future__ import annotations

import io
import sys
import time

import pytest

from ringflow.base import log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in log.BATCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def sit_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Called in the test, because pytest sets stderr anew after the fixtures."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


@pytest.mark.parametrize("variable", log.BATCH_VARIABLES)
def test_a_terminal_of_a_batch_job_is_nobodys(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    sit_at_a_terminal(monkeypatch)
    assert log.interactive()
    monkeypatch.setenv(variable, "1")
    assert not log.interactive()


@pytest.mark.parametrize(
    ("total", "steps", "seconds", "said"),
    [(1000, 1000, 0.0, range(100, 1001, 100)), (1_000_000, 7, 10.0, (3, 6)), (2, 2, 0.0, (1, 2))],
    ids=["every tenth", "every half minute", "few"],
)
def test_progress_in_a_pipe_is_a_few_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], total, steps, seconds, said
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with log.progress(total, "events") as advance:
        for _ in range(steps):
            now += seconds
            advance(1)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [f"events: {done}/{total}" for done in said]
    assert captured.out == ""


def test_on_a_terminal_progress_is_a_bar_and_a_table_is_coloured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = sit_at_a_terminal(monkeypatch)
    with log.progress(2, "shards") as advance:
        advance(2)
    log.table("Gates", ("gate", "verdict"), [("[links] in range", "FAIL")])
    for drawn in ("2/2", "━", "[links] in range", "\x1b[1;31mFAIL"):
        assert drawn in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_a_table_in_a_pipe_is_aligned_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    log.table("Gates", ("gate", "verdict"), [("finite", "PASS"), ("a longer name", "FAIL")])
    captured = capsys.readouterr()
    assert captured.err == "Gates\n  gate           verdict\n  finite         PASS\n  a longer name  FAIL\n"
    assert captured.out == ""
