"""Trouble before there is a session of Spark, and watchers of processes that work together. No Spark is needed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore

from fixtures.process_tree import descendants
from ringflow.base.errors import FailureError, UsageError
from ringflow.launch import spark
from ringflow.launch.spark import Ended, outcome

WATCHER = """
import sys
from ringflow.launch import spark
spark._SECONDS_OF_GRACE = 0.5
ended = spark.together(["-c", sys.argv[1]], b"given", sys.argv[2], False)
print([tuple(one) for one in ended] if ended else ended)
"""


def watched(code: str, folder: Path | str) -> tuple[list[Any], str]:
    """What the first of two watchers says of two processes that run this code; and what both wrote on stderr."""
    with_server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(with_server.port)}
    meeting["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WATCHER, code, str(folder)],
            env={**os.environ, **meeting, "RANK": rank, "GROUP_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        said = [process.communicate(timeout=60) for process in started]
    finally:
        left = [pid for process in started for pid in (*descendants(process.pid), process.pid)]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert [process.returncode for process in started] == [0, 0], said
    assert said[1][0].strip() == "None"
    return eval(said[0][0]), "".join(error for _, error in said)


def test_answers_come_back_by_rank(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['RANK'], sys.stdin.read(), os.getcwd())"
    ended, _ = watched(code, tmp_path)
    assert ended == [(rank, 0, f"{rank} given {tmp_path}\n".encode(), 0, False) for rank in range(2)]


def test_the_death_of_one_ends_the_other(tmp_path: Path) -> None:
    code = (
        "import os, signal, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)"
    )
    ended, _ = watched(code, tmp_path)
    assert ended == [(0, -signal.SIGTERM, b"", 2, True), (1, -signal.SIGKILL, b"", 1, False)]


def test_a_folder_that_a_worker_does_not_see_is_told(tmp_path: Path) -> None:
    ended, said = watched("pass", tmp_path / "elsewhere")
    assert [code for _, code, *_ in ended] == [1, 1]
    assert said.count("elsewhere; start in a folder that all workers see") == 2


@pytest.mark.parametrize(
    ("ended", "rank"),
    [
        ([Ended(0, 0), Ended(1, 0)], None),
        ([Ended(0, 2, order=2), Ended(1, 2, order=1)], 1),
        ([Ended(0, -15, order=2, stopped=True), Ended(1, 1, order=1)], 1),
    ],
    ids=["none", "first", "stopped"],
)
def test_what_the_others_failed_with(ended: list[Ended], rank: int | None) -> None:
    found = spark.first_failure(ended)
    assert (found.rank if found else None) == rank


def test_an_error_of_a_function_can_travel() -> None:
    def fail(error: Exception) -> None:
        raise error

    assert outcome(lambda a, b: a + b, (1,), {"b": 2}) == (3, None)
    ours = UsageError("our own")
    assert outcome(fail, (ours,), {}) == (None, ours)
    _, theirs = outcome(fail, (KeyError("a\nb"),), {})
    assert isinstance(theirs, FailureError)
    assert str(theirs) == "KeyError in process 0: 'a\\nb'; the traceback follows"
    assert "in fail" in theirs.__notes__[0]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the processes end in some way, without any."""

    def choose(*ended: Ended) -> None:
        monkeypatch.setattr(spark, "_distribute", lambda *words: list(ended))

    return choose


def test_a_command_has_the_code_and_the_output_of_its_processes(ends: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ends(Ended(0, 0, b'{"a": 1}\n'), Ended(1, 0, b""))
    assert spark.run(["train"], 2) == 0
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    ends(Ended(0, 2, b"", 1), Ended(1, 2, b"", 2))
    assert spark.run(["train"], 2) == 2
    ends(Ended(0, 1, b"", 2), Ended(1, -9, b"", 1))
    with pytest.raises(
        FailureError, match="process 1 was ended by SIGKILL, and the others with it; start again: it goes"
    ):
        spark.run(["train"], 2)


def test_all_are_started_again_after_a_death(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = [[Ended(0, 1, b"", 2), Ended(1, -9, b"", 1)], [Ended(0, 0, b"{}\n"), Ended(1, 0)]]
    monkeypatch.setattr(spark, "_distribute", lambda *words: starts.pop(0))
    done = command("launch", "spark", "--restarts", 1, "--", "train", "--out", "run")
    assert (done.code, done.stdout, starts) == (0, "{}\n", [])
    killed, again = done.stderr.splitlines()
    assert killed.startswith("ringflow: process 1 was ended by SIGKILL")
    assert again == "ringflow: starting again, 1 of 1"


def test_a_function_gives_results_or_its_error(ends: Any) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyspark import cloudpickle

    ends(*(Ended(rank, 0, cloudpickle.dumps((rank * 10, None))) for rank in range(2)))
    assert spark.run_function(print, workers=2) == [0, 10]
    told = UsageError("wrong number")
    told.told = True
    ends(Ended(0, 0, cloudpickle.dumps((0, None))), Ended(1, 1, cloudpickle.dumps((None, told)), 1))
    with pytest.raises(UsageError, match="wrong number") as caught:
        spark.run_function(print, workers=2)
    assert not caught.value.told
    ends(Ended(0, 0), Ended(1, 3, b"", 1))
    with pytest.raises(FailureError, match="process 1 ended with code 3; see what it says above"):
        spark.run_function(print, workers=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("...ModuleNotFoundError: No module named 'ringflow'", "the workers' Python has no ringflow"),
        ("ExecutorLostFailure (executor 0 exited", "it died"),
        ("something\n  else", "it failed"),
    ],
)
def test_what_spark_says_becomes_one_line(text: str, said: str) -> None:
    assert str(spark.explained(text, "it died", "it failed")).startswith(said)


@pytest.mark.parametrize("master", ["nonsense", "spark://host", "spark://host:x", "http://host:80"])
def test_no_master(master: str):
    with pytest.raises(UsageError, match=f"{master} is no Spark master; give spark://HOST:PORT"):
        spark.require_master(master)


def test_nobody_answers(closed_port: int):
    address = f"127.0.0.1:{closed_port}"
    with pytest.raises(FailureError, match=rf"no Spark master answers at {address} \(Connection refused\); start it"):
        spark.require_master(f"spark://{address}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        spark.require_master(f"spark://{address},127.0.0.1:{server.getsockname()[1]}")  # one of two is enough


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(FailureError, match=f"needs Java 17 or later, and JAVA_HOME={tmp_path} has none; install"):
        spark.require_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FailureError, match="needs Java 17 or later, and there is none; install a Java runtime"):
        spark.require_java()
