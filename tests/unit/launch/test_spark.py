"""Trouble before there is a session of Spark, and tasks that look after processes that work together."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.wire import encode
from ringflow.launch import spark
from ringflow.launch.spark import Ended, outcome


def watched(code: str, monkeypatch: pytest.MonkeyPatch) -> list[Ended]:
    """How two processes of this code end, which two tasks look after."""
    monkeypatch.setattr(spark, "_SECONDS_OF_GRACE", 0.3)
    monkeypatch.setattr(spark, "_SECONDS_BETWEEN_LOOKS", 0.1)
    meeting, said = threading.Barrier(2), ["", ""]

    def watch(rank: int) -> Ended:
        def all_gather(mine: str) -> list[str]:
            said[rank] = mine
            meeting.wait(60)
            everybody = list(said)
            meeting.wait(60)
            return everybody

        start = [sys.executable, "-c", code, str(rank)]
        with subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            return spark._watched(child, b"given", rank, SimpleNamespace(allGather=all_gather))

    with ThreadPoolExecutor(2) as tasks:
        return list(tasks.map(watch, range(2)))


def test_answers_come_back_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = watched("import sys; print(sys.argv[1], sys.stdin.read())", monkeypatch)
    assert [one._replace(look=0) for one in ended] == [Ended(r, 0, f"{r} given\n".encode()) for r in range(2)]


def test_the_death_of_one_ends_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, sys, time\nif sys.argv[1] == '1': os.kill(os.getpid(), 9)\ntime.sleep(600)"
    ended = watched(code, monkeypatch)
    assert [(one.code, one.stopped) for one in ended] == [(-signal.SIGTERM, True), (-signal.SIGKILL, False)]
    assert ended[0].look > ended[1].look
    with pytest.raises(FailureError, match="process 1 was ended by SIGKILL, and the others with it; start again"):
        spark.first_failure(ended)


def test_an_error_of_a_function_can_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> None:
        raise error

    monkeypatch.chdir(tmp_path)
    assert outcome(str(tmp_path), lambda: 3) == 3
    ours = UsageError("our own")
    assert outcome(str(tmp_path), lambda: fail(ours)) is ours
    theirs = outcome(str(tmp_path), lambda: fail(KeyError("a\nb")))
    assert str(theirs) == "KeyError in process 0: 'a\\nb'; the traceback follows"
    assert "in fail" in theirs.__notes__[0]
    assert "nowhere; start from a folder on a file system that all" in str(outcome("/nowhere", dict))


def test_commands_and_functions_have_what_their_processes_gave(
    command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyspark import cloudpickle

    starts: list[list[Ended]] = []
    monkeypatch.setattr(spark, "_distribute", lambda *words: starts.pop(0))
    good, told = b'{"a": 1}\n', UsageError("wrong number")
    told.told = True
    starts += [[Ended(0, 0, made), Ended(1, 0, made)] for made in (good, cloudpickle.dumps({3.5}))]
    assert spark.run(["train"], 2) == 0
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    assert spark.run_function(print, workers=2) == [{3.5}] * 2
    starts += [[Ended(0, 2, look=2), Ended(1, 3, look=1)]] * 2
    assert spark.run(["train"], 2) == 3
    with pytest.raises(FailureError, match="process 1 ended with code 3; see what it says above"):
        spark.run_function(print, workers=2)
    starts.append([Ended(0, 0, good), Ended(1, 1, encode(told))])
    with pytest.raises(UsageError, match="wrong number") as caught:
        spark.run_function(print, workers=2)
    assert not caught.value.told
    starts += [[Ended(0, 1, look=2), Ended(1, -9, look=1)], [Ended(0, 0, good), Ended(1, 0, good)]]
    done = command("launch", "spark", "--restarts", 1, "--", "train", "--out", "run")
    assert (done.code, json.loads(done.stdout), starts) == (0, {"a": 1}, [])
    killed, again = done.stderr.splitlines()
    assert killed.startswith("ringflow: process 1 was ended by SIGKILL")
    assert again == "ringflow: starting again, 1 of 1"


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
