from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ringflow.base.output import finish, print_json, show_rows, show_summary
from ringflow.base.words import size_in_words, time_in_words

ROWS = [{"gate": "finite", "ok": True, "observed": 1.0}, {"gate": "links", "ok": False, "observed": 0.123456}]


def test_rows_for_people_go_to_stderr_and_for_machines_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_rows("Gates", ROWS, as_json=False) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.split() for line in captured.err.splitlines()[1:]] == [
        ["gate", "verdict", "observed"],
        ["finite", "PASS", "1"],
        ["links", "FAIL", "0.1235"],
        ["1", "of", "2", "passed"],
    ]
    assert show_rows("Gates", ROWS[:1], as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == ROWS[:1]


def test_json_has_no_word_for_not_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("nan"), float("inf"), 1.5], "path": Path("x")})
    assert json.loads(capsys.readouterr().out) == {"a": [None, None, 1.5], "path": "x"}


def test_people_read_names_times_and_sizes_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    measured = {"events_per_second": 12345.6, "seconds": 200.4, "device_seconds": 4000, "bytes": 1_200_000_000}
    others = {"num_events": 1234567, "peak_mb": 1.5, "profile": None, "early": False, "rows": [{"num_pions": 5}]}
    sections = {"best": {"optimizer.weight_decay": 0.01}, "per_event": {"tracks": 40.25}, "names": ["a", "b"]}
    show_summary("Work", {**measured, **others, **sections}, as_json=False)
    lines = [re.split(r"  +", line.strip()) for line in capsys.readouterr().err.splitlines()[2:]]
    assert dict(lines) == {
        "events per second": "12,346",
        "time": "3 min 20 s",
        "device time": "1 h 6 min",
        "size": "1.2 GB",
        "number of events": "1,234,567",
        "peak MB": "1.5",
        "profile": "-",
        "early": "no",
        "rows": "number of pions 5",
        "best: optimizer.weight_decay": "0.01",
        "per event: tracks": "40.25",
        "names": "a, b",
    }


def test_times_and_sizes_are_as_people_say_them() -> None:
    times = {0: "0 s", 0.42: "0.42 s", 42.3: "42 s", 59.7: "1 min 0 s", 200: "3 min 20 s", 183_600: "2 d 3 h"}
    assert {seconds: time_in_words(seconds) for seconds in times} == times
    sizes = {0: "0 B", 999: "999 B", 8123: "8.12 kB", 999_999: "1 MB", 120e6: "120 MB", 1.2e9: "1.2 GB"}
    assert {count: size_in_words(count) for count in sizes} == sizes


def test_a_command_ends_with_what_it_made_and_what_is_next(capsys: pytest.CaptureFixture[str]) -> None:
    finish(Path("data/x"), "ringflow check data/x")
    finish(None, "ringflow demo")
    captured = capsys.readouterr()
    assert captured.err == "made: data/x\nnext: ringflow check data/x\nnext: ringflow demo\n"
    assert captured.out == ""
