from __future__ import annotations

import io
import re
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


#: What would colour, retitle or clear a terminal, go back in a line, or turn around how it reads; and what is shown of it.
STEERING = {
    "\x1b[31mred": r"\x1b[31mred",
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x9b2J": r"\x9b2J",
    "over\rwritten": r"over\rwritten",
    "a\x08b\x7f": r"a\x08b\x7f",
    "exe.\u202etxt\u2066": r"exe.\u202etxt\u2066",
    "\udcff": r"\udcff",
    "[red]x[/red] :smile: [/]": "[red]x[/red] :smile: [/]",
    "Étude\u00a0π": "Étude\u00a0π",
}


def _say_all(name: str) -> None:
    log.say(f"made: {name}")
    log.complain(f"no file {name}")
    log.table(f"Of {name}", ["column", name], [["cell", name]])
    with log.progress(1, name) as advance:
        advance(1)


def _steering(text: str) -> set[str]:
    return set(re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text))


@pytest.mark.parametrize("watched", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("name", STEERING)
def test_nothing_that_is_said_steers_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, watched: bool
) -> None:
    told = []
    for one in ("plain", name):
        terminal = sit_at_a_terminal(monkeypatch) if watched else None
        _say_all(one)
        told.append(terminal.getvalue() if terminal else capsys.readouterr().err)
    assert _steering(told[1]) == _steering(told[0])  # rich has colours of its own
    assert f"made: {STEERING[name]}" in told[1]


def test_a_line_of_what_went_wrong_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    log.complain("ringflow: error: no\nring\tflow")
    assert capsys.readouterr().err == "ringflow: error: no ring flow\n"
