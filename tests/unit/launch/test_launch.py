"""Starting a command in several processes: what they are told, how often they are started, and what is refused."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from ringflow.base.errors import FailureError, UsageError
from ringflow.launch import environment
from ringflow.launch.environment import (
    STOPPED,
    Hearing,
    adopt,
    connected,
    free_port,
    listening,
    meeting_store,
    require_free,
    with_restarts,
)
from ringflow.launch.frameworks import split_address

Command = Callable[..., Any]
MEETING = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}


def assert_one_line(done: Any, code: int, expected: str) -> None:
    assert (done.code, done.stderr.count("\n"), done.stdout) == (code, 1, "")
    assert done.stderr.startswith("ringflow: error: ")
    assert expected in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (MPICH, ("1", "4", "0")),
        (OPEN_MPI, ("2", "4", "1")),
        (SLURM, ("3", "4", "1")),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, ("1", "4", "1")),
        ({**OPEN_MPI, **SLURM}, ("2", "4", "1")),  # mpiexec inside a job of Slurm
    ],
    ids=["mpich", "open mpi", "slurm", "no local number", "both"],
)
def test_the_words_of_others_are_translated(words: dict[str, str], expected: tuple[str, ...]) -> None:
    variables = {**MEETING, **words}
    adopt(variables)
    assert tuple(variables[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")) == expected
    assert variables.items() >= {**MEETING, **words}.items()


@pytest.mark.parametrize(
    "variables",
    [
        {**SLURM},  # a shell inside a job, where nobody named a meeting place
        {**MEETING, **SLURM, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        {**MEETING, "PMI_RANK": "1"},
        {},
    ],
    ids=["no meeting place", "torch's own words", "half of the words", "nothing"],
)
def test_what_is_no_team_or_one_already_is_left_alone(variables: dict[str, str]) -> None:
    before = dict(variables)
    adopt(variables)
    assert variables == before


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x"])
def test_what_is_no_port_is_refused(port: str) -> None:
    with pytest.raises(UsageError, match=f"MASTER_PORT={port} is no port"):
        require_free(port)


def test_a_port_that_somebody_listens_on_is_refused() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = str(server.getsockname()[1])
        server.listen()
        with pytest.raises(UsageError, match=rf"MASTER_PORT={port} cannot be used \(address already in use\)"):
            require_free(port)
    require_free(port)


class Starts:
    """What a start comes to, one after the other."""

    def __init__(self, *outcomes: int | FailureError) -> None:
        self.left = list(outcomes)

    def __call__(self) -> int:
        outcome = self.left.pop(0)
        if isinstance(outcome, FailureError):
            raise outcome
        return outcome


@pytest.mark.parametrize("code", [0, 2, STOPPED, 130, 143])
def test_what_another_start_would_not_change_is_final(code: int) -> None:
    starts = Starts(1, code, 7)
    assert with_restarts(starts, 5) == code
    assert starts.left == [7]


def test_starts_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    starts = Starts(FailureError("process 1 was ended"), 1, 1, 0)
    assert with_restarts(starts, 2) == 1
    assert starts.left == [0]
    assert capsys.readouterr().err.splitlines() == [
        "ringflow: process 1 was ended",
        "ringflow: starting again, 1 of 2",
        "ringflow: starting again, 2 of 2",
    ]
    with pytest.raises(FailureError, match="ended again"):
        with_restarts(Starts(FailureError("ended again")), 0)


@pytest.mark.parametrize("how", ["local", "ray", "spark", "mpi", "slurm"])
@pytest.mark.parametrize(("words", "said"), [(["simulate", "ttbar"], "not 'simulate'"), ([], "but nothing was given")])
def test_a_command_that_cannot_be_shared_is_one_line(how: str, words: list[str], said: str, command: Command) -> None:
    done = command("launch", how, "--", *words)
    assert_one_line(done, 2, f"give a command that processes can share after `--` (train, bench scaling), {said}")


@pytest.mark.parametrize(
    ("option", "number", "expected"),
    [
        ("--workers", "0", 'Invalid value "0" for --workers. Must be >= 1.'),
        ("--workers", "two", 'Invalid value for --workers: unable to convert "two" into a whole number'),
        ("--restarts", "-1", 'Invalid value "-1" for --restarts. Must be >= 0.'),
    ],
)
def test_a_wrong_number_is_one_line(option: str, number: str, expected: str, command: Command) -> None:
    assert_one_line(command("launch", "mpi", option, number, "--", "train"), 2, expected)


@pytest.mark.parametrize("how", ["ray", "spark"])
def test_an_engine_that_is_not_installed_is_one_line(
    how: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"ray": "ray", "spark": "pyspark"}[how]
    monkeypatch.setitem(sys.modules, module, None)
    done = command("launch", how, "--", "train", "--out", "run")
    assert_one_line(done, 1, f"{module} is not installed; pip install 'ringflow[{how}]'")


def test_addresses():
    assert split_address("10.0.0.1:6379") == ("10.0.0.1", 6379)
    assert split_address("[::1]:80") == ("::1", 80)
    assert [split_address(word) for word in ("host", "host:", ":80", "host:port", "host:70000", "")] == [None] * 6


def test_who_knows_the_secret_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    with listening("127.0.0.1") as place:
        for number in range(2):
            with connected(place) as connection:
                connection.sendall(f"line {number}\n\x1b[2J\udcff\n".encode(errors="replace"))
    lines = capsys.readouterr().err.splitlines()
    assert sorted(lines) == ["\\x1b[2J?", "\\x1b[2J?", "line 0", "line 1"]


@pytest.mark.parametrize(
    "said",
    [
        *(b"", b"\n", b"hello\n", b"\x80\x04cos\nsystem\n", b"x" * 10**6, b"GET / HTTP/1.1\r\n\r\n"),
        *("{secret}", "{secret} \n", "{other}\nhello\n", "{short}\nhello\n"),
    ],
    ids=lambda said: repr(said[:12]),
)
def test_nobody_else_is_heard(said: bytes | str, capsys: pytest.CaptureFixture[str]) -> None:
    with listening("127.0.0.1") as place:
        assert socket.inet_aton(place.host) == bytes([127, 0, 0, 1])
        if isinstance(said, str):
            other = f"{int(place.secret, 16) ^ 1:064x}"
            said = said.format(secret=place.secret, other=other, short=place.secret[:-1]).encode()
        with socket.create_connection(place[:2]) as stranger, suppress(ConnectionError):
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b"", "nothing is answered"
    assert capsys.readouterr().err == ""


def test_one_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_SECONDS_TO_BE_KNOWN", 0.1)
    with listening("127.0.0.1") as place, socket.create_connection(place[:2], 10.0) as stranger:
        assert stranger.recv(1) == b""


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_nobody_listens_everywhere(host: str) -> None:
    with pytest.raises(FailureError, match="at every address of this machine"), listening(host):
        pass


def test_every_start_has_a_secret_of_its_own() -> None:
    with listening("127.0.0.1") as one, listening("127.0.0.1") as other:
        assert isinstance(one, Hearing)
        assert one.secret != other.secret
        assert len(one.secret) == 64


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has all of 127.0.0.0/8")
def test_a_store_is_at_one_address() -> None:
    port = free_port()
    store = meeting_store.__wrapped__("127.0.0.2", port, 1)
    socket.create_connection(("127.0.0.2", port), 10.0).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 10.0)
    del store
