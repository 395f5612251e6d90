"""What mpiexec is told, whichever it is, and what is made of how it ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import FailureError, UsageError
from ringflow.launch import mpi

Tools = Callable[[str, str], None]
#: What those in use answer to --version.
VERSIONS = {
    "mpich": "HYDRA build details:\n    Version:  5.0.2",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.13",
    "open mpi 4": "mpiexec (OpenRTE) 4.1.4",
    "open mpi 5": "mpiexec (Open MPI) 5.0.5",
}
BANNER = "===\n=   BAD TERMINATION\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)"


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Python that no mpiexec lies beside but that of the test."""
    path = str(tmp_path / "bin" / "python")
    monkeypatch.setattr(mpi.sys, "executable", path)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    return path


def make_mpiexec(tools: Tools, version: str, lines: str = "") -> None:
    tools("mpiexec", f'if [ "$1" = --version ]; then echo "{version}"; exit; fi\n{lines}')


@pytest.mark.parametrize("kind", VERSIONS)
@pytest.mark.parametrize("hosts", [(), ("a", "b")])
def test_mpiexec_is_told_how_many_where_and_what(
    kind: str, hosts: tuple[str, ...], tools: Tools, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    make_mpiexec(tools, VERSIONS[kind], f'printf "%s\\n" "$@" "$MASTER_ADDR" "$MASTER_PORT" "$RANK" > {told}; exit 3')
    monkeypatch.setenv("RANK", "5")
    assert mpi.run(["train", "data=a b"], 3, hosts) == 3
    *words, address, port, rank = told.read_text().splitlines()
    assert words[:2] == ["-n", "3"]
    assert words[-5:] == [python, "-m", "ringflow.cli", "train", "data=a b"]
    options = words[2:-5]
    where = ["a:2,b:2"] if hosts else []
    if kind.startswith("open"):
        names = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "TORCH_CPP_LOG_LEVEL")
        passed = [word for name in names for word in ("-x", name)]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        assert options == ["--oversubscribe", *root, *passed, *(["--host", *where] if hosts else [])]
    else:
        assert options == (["-hosts", *where] if hosts else [])
    assert address == ("a" if hosts else "127.0.0.1"), "they meet where the first of them is"
    assert (int(port) > 0, rank) == (True, "")


def test_a_port_that_is_in_use_is_refused(tools: Tools, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_mpiexec(tools, VERSIONS["mpich"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(UsageError, match=r"MASTER_PORT=\d+ cannot be used \(address already in use\)"):
            mpi.run(["train"], 2)


def test_its_stdout_is_that_of_the_command(tools: Tools, python: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_mpiexec(tools, VERSIONS["mpich"], 'echo "{}"; echo hello >&2')
    assert mpi.run(["train"], 2) == 0
    assert capsys.readouterr().out == "{}\n"


@pytest.mark.parametrize(
    ("kind", "lines", "name"),
    [
        ("mpich", f'echo "{BANNER}"; exit 9', "SIGKILL"),
        ("open mpi 5", "exit 137", "SIGKILL"),
        ("open mpi 4", "exit 139", "SIGSEGV"),
    ],
)
def test_a_killed_process_is_one_line(
    kind: str, lines: str, name: str, tools: Tools, python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_mpiexec(tools, VERSIONS[kind], lines)
    with pytest.raises(FailureError, match=f"a process was ended by {name}, and the others with it; start again"):
        mpi.run(["train"], 2)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("code", [1, 2, 75])
def test_what_the_command_said_itself_is_not_said_again(code: int, tools: Tools, python: str) -> None:
    make_mpiexec(tools, VERSIONS["mpich"], f"exit {code}")
    assert mpi.run(["train"], 2) == code


def test_it_is_started_again(tools: Tools, python: str, tmp_path: Path, command: Callable[..., Any]) -> None:
    count = tmp_path / "count"
    make_mpiexec(tools, VERSIONS["mpich"], f'echo x >> {count}; [ "$(cat {count})" = "$(printf "x\\nx")" ] || exit 9')
    done = command("launch", "mpi", "--restarts", 3, "--", "train")
    assert (done.code, done.stderr) == (0, "ringflow: starting again, 1 of 3\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_signal_is_passed_on(number: signal.Signals, tools: Tools, python: str) -> None:
    name = number.name.removeprefix("SIG")
    # The shell looks at signals between two short sleeps.
    make_mpiexec(
        tools,
        VERSIONS["mpich"],
        f'trap "exit 75" {name}; kill -{name} $PPID; for i in {{1..600}}; do sleep 0.05; done',
    )
    before = signal.getsignal(number)
    assert mpi.run(["train"], 2) == 75
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("hosts", "workers", "expected"),
    [
        (("a:2", "b"), 4, "4 workers do not fit on a:2, b, which take 3; use --workers 3, or name more"),
        (("a:0",), 1, "--hosts 'a:0' is no machine; give NAME or NAME:PROCESSES"),
        (("a", "-x"), 1, "--hosts '-x' is no machine"),
        (("a,b",), 1, "--hosts 'a,b' is no machine"),
    ],
)
def test_hosts_that_cannot_be_are_refused(hosts: tuple[str, ...], workers: int, expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        mpi.command(["train"], workers, hosts)
    assert str(refused.value).startswith(expected)


def test_without_mpiexec_it_is_one_line(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    done = command("launch", "mpi", "--", "train")
    expected = "mpiexec is not installed; pip install 'ringflow[mpi]', or load the MPI module of your cluster"
    assert (done.code, done.stdout, done.stderr) == (1, "", f"ringflow: error: {expected}\n")
