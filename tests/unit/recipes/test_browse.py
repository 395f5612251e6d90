"""The page of runs: all that lies under a folder, in its true state, in one file that loads nothing."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import InputFileError, UsageError
from ringflow.recipes.browse import run_view, scan
from ringflow.recipes.browse.commands import browse_command
from ringflow.recipes.browse.page import beside, collect, render
from ringflow.recipes.browse.run_view import MOST_POINTS, locked_folders, view_run

LONG_AGO = 1_000_000_000

WriteRun = Callable[..., Path]


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    def write(name: str, losses: list[float | None], length: int = 100, patience: int = 0, **settings: Any) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        told = {**settings, "length": {"events": length, "patience": patience}, "optimizer": {"name": "adamw"}}
        record = {"code": {"commit": "abcdef0123456789", "dirty": True}, "settings": told}
        (folder / "run.json").write_text(json.dumps(record))
        lines = [
            {"kind": "validation", "step": n, "events": 10 * (n + 1), "loss": loss, "particle_f1": 0.1 * n}
            for n, loss in enumerate(losses)
        ]
        (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for path in folder.iterdir():
            os.utime(path, (LONG_AGO, LONG_AGO))
        return folder

    return write


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def named(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {run["name"]: run for run in data["runs"]}


def write_study(folder: Path, rows: list[tuple[str, int, dict[str, Any]]]) -> None:
    folder.mkdir(parents=True)
    (folder / "study.toml").write_text('trials = 3\nobjectives = ["loss"]\nsearch = "tpe"\nscheduler = "asha"\n')
    (folder / "settings.toml").write_text("[length]\nevents = 100\n")
    with sqlite3.connect(folder / "study.db") as file:
        file.execute("CREATE TABLE log (number INTEGER PRIMARY KEY, time REAL, kind TEXT, trial INTEGER, data TEXT)")
        for kind, trial, told in rows:
            told_text = json.dumps(told)
            file.execute("INSERT INTO log (time, kind, trial, data) VALUES (0, ?, ?, ?)", (kind, trial, told_text))
    file.close()


def test_runs_are_found_at_any_depth_with_their_best_figures(write_run: WriteRun, top: Path) -> None:
    write_run("a", [3.0, 1.0, 2.0], seed=1)
    write_run("deep/er/b", [None, 5.0], seed=2)
    (top / "a" / "checkpoints" / "inner").mkdir(parents=True)
    shutil.copy(top / "a" / "run.json", top / "a" / "checkpoints" / "inner" / "run.json")
    (top / ".hidden").mkdir()
    shutil.copy(top / "a" / "run.json", top / ".hidden" / "run.json")
    runs = named(collect(top, beside(top)))
    assert set(runs) == {"a", "deep/er/b"}
    assert runs["a"]["best"] == {"loss": 1.0, "f1": pytest.approx(0.2)}
    assert runs["a"]["curves"]["loss"] == [[10, 20, 30], [3.0, 1.0, 2.0]]
    assert runs["deep/er/b"]["curves"]["loss"] == [[20], [5.0]]
    assert runs["a"]["commit"] == "abcdef012345*"


def test_settings_that_all_share_are_told_once(write_run: WriteRun, top: Path) -> None:
    write_run("a", [1.0], seed=1, model={"width": 16})
    write_run("b", [1.0], seed=2, model={"width": 16, "heads": 2})
    data = collect(top, beside(top))
    assert data["common"] == {
        "model.width": 16,
        "length.events": 100,
        "length.patience": 0,
        "optimizer.name": "adamw",
    }
    runs = named(data)
    assert (runs["a"]["settings"], runs["b"]["settings"]) == ({"seed": 1}, {"seed": 2, "model.heads": 2})


@pytest.mark.parametrize(
    ("losses", "options", "state"),
    [
        ([1.0] * 10, {}, "finished"),
        ([1.0] * 9, {}, "interrupted"),
        ([], {}, "begun"),
        ([3.0, 1.0, 2.0, 2.0], {"patience": 2}, "finished"),
        ([3.0, 1.0, 2.0], {"patience": 2}, "interrupted"),
    ],
)
def test_the_state_follows_from_the_history(
    write_run: WriteRun, top: Path, losses: list[float | None], options: dict[str, int], state: str
) -> None:
    assert view_run(write_run("a", losses, **options), top, frozenset())["state"] == state


def test_a_run_that_is_locked_or_was_just_written_is_running(write_run: WriteRun, top: Path) -> None:
    folder = write_run("a", [1.0])
    if not Path("/proc/locks").exists():
        pytest.skip("this system does not list locks")
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert view_run(folder, top, locked_folders())["state"] == "running"
    finally:
        os.close(lock)
    assert view_run(folder, top, locked_folders())["state"] == "interrupted"
    os.utime(folder / "history.jsonl")
    assert view_run(folder, top, frozenset())["state"] == "running"


def test_what_changes_is_read_again_and_what_is_broken_is_left_out(write_run: WriteRun, top: Path) -> None:
    folder = write_run("a", [1.0])
    assert view_run(folder, top, frozenset())["best"]["loss"] == 1.0
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"kind": "validation", "step": 9, "events": 90, "loss": 0.5}\n{"kind": "valid')
    assert view_run(folder, top, frozenset())["best"]["loss"] == 0.5
    (folder / "run.json").write_text("no JSON")
    told = view_run(folder, top, frozenset())
    assert (told["settings"], told["best"]["loss"]) == ({}, 0.5)


def test_a_long_curve_is_thinned_out_to_its_ends(write_run: WriteRun, top: Path) -> None:
    told = view_run(write_run("a", [float(n) for n in range(1000)]), top, frozenset())
    xs, ys = told["curves"]["loss"]
    assert len(xs) == len(ys) == MOST_POINTS
    assert (xs[0], xs[-1], ys[-1]) == (10, 10_000, 999.0)


def test_studies_tell_their_best_trial(write_run: WriteRun, top: Path) -> None:
    added = [("added", n, {"point": {}}) for n in range(3)]
    said = [
        ("reported", n, {"value": value, "resource": 100 if n else 25, "verdict": "continue" if n else "stop"})
        for n, value in enumerate([0.1, 0.5, None])
    ]
    write_study(top / "study", [*added, *said])
    write_run("study/trials/0000", [0.1])
    write_run("study/trials/0001", [0.5])
    (top / "study" / "report").mkdir()
    (top / "study" / "report" / "index.html").write_text("")
    data = collect(top, beside(top / "page"))
    (study,) = data["studies"]
    assert (study["trials"], study["best"], study["best_trial"]) == (3, 0.5, 1)  # trial 0 did not live to the end
    assert (study["state"], study["pages"]) == ("unfinished", [["report", "../study/report/index.html"]])
    assert named(data)["study/trials/0001"]["study"] == "study"
    assert [named(data)[f"study/trials/000{n}"]["state"] == "stopped" for n in range(2)] == [True, False]
    (top / "study" / "study.db").write_bytes(b"no database at all")
    (study,) = collect(top, beside(top))["studies"]
    assert study["problem"]


def test_the_page_is_one_file_that_loads_nothing(write_run: WriteRun, top: Path, tmp_path: Path) -> None:
    write_run("<script>alert(1)<", [1.0])
    browse_command(top, static=tmp_path / "page")
    text = (tmp_path / "page" / "index.html").read_text()
    assert [path.name for path in (tmp_path / "page").iterdir()] == ["index.html"]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "connect-src" not in policy[1]
    assert "alert(1)<" not in text.replace("\\u003c", "")
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']*["']""", text.split('id="data"')[0])
    assert "connect-src 'self'" in render(collect(top, beside(top)), live=True)


def test_a_browser_draws_it_without_complaint(write_run: WriteRun, top: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium here")
    write_run("good", [2.0, 1.0], seed=1)
    write_run("worse", [3.0, 2.5] * 5, seed=2)
    browse_command(top, static=tmp_path / "page")
    words = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    words += ["--enable-logging=stderr", "--virtual-time-budget=500", "--dump-dom"]
    page = (tmp_path / "page" / "index.html").as_uri()
    done = subprocess.run([*words, page], capture_output=True, text=True, timeout=100, check=True)
    assert "CONSOLE" not in done.stderr
    assert '<h1 id="title">2 runs</h1>' in done.stdout
    assert "1 finished, 1 interrupted." in done.stdout
    assert done.stdout.count('class="spark"') == 2
    assert f"tensorboard --logdir {top}" in done.stdout


def test_the_number_of_folders_is_bounded(
    write_run: WriteRun, top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(6):
        write_run(f"run{n}", [1.0])
    monkeypatch.setattr(scan, "MOST_FOLDERS", 4)
    assert len(scan.scan(top).runs) == 3  # and the folder itself
    assert "more than 4 folders" in capsys.readouterr().err


def test_mistakes_are_told_in_one_line(top: Path, tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="no folder at"):
        browse_command(top)
    with pytest.raises(UsageError, match="--port 1 is for a live page"):
        browse_command(top, static=tmp_path, port=1)


def test_figures_are_those_of_a_history() -> None:
    """Names of the page's figures are those that a validation writes."""
    from ringflow.recipes.origin.cards import FIGURES

    assert {name for _, name, _, _ in run_view.FIGURES.values()} <= set(FIGURES)
