"""Who the processes are, what they tell each other, and how the error of one ends all."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ringflow.base.errors import FailureError, RingflowError, StoppedError, UsageError
from ringflow.train.asynchronous import crew as crew_module
from ringflow.train.asynchronous.crew import Crew, joined
from ringflow.train.asynchronous.messages import Post
from ringflow.train.settings import TrainSettings

Tiny = Callable[..., TrainSettings]


class Mail:
    """What mpi4py does, for processes that take turns in one."""

    def __init__(self, rank: int, size: int, boxes: dict[Any, deque[Any]]) -> None:
        self.rank, self.size, self._boxes = rank, size, boxes

    def isend(self, letter: Any, dest: int, tag: int) -> Any:
        self._boxes[dest, self.rank, tag].append(letter)
        return SimpleNamespace(Test=lambda: True)

    def Isend(self, row: Any, dest: int, tag: int) -> Any:
        return self.isend(row.copy(), dest, tag)

    def iprobe(self, source: int, tag: int, status: Any) -> bool:
        senders = range(self.size) if source < 0 else [source]
        found = next((sender for sender in senders if self._boxes[self.rank, sender, tag]), None)
        if found is not None:
            status.Set_source(found)
        return found is not None

    def recv(self, source: int, tag: int) -> Any:
        return self._boxes[self.rank, source, tag].popleft()

    def Irecv(self, row: Any, source: int, tag: int) -> Any:
        row[:] = self.recv(source, tag)
        return SimpleNamespace(Test=lambda: True)


@pytest.fixture
def mails(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Mail]]:
    class Status:
        def Set_source(self, source: int) -> None:
            self.source = source

        def Get_source(self) -> int:
            return self.source

    fake = SimpleNamespace(MPI=SimpleNamespace(Status=Status, ANY_SOURCE=-1, Exception=ZeroDivisionError))
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", fake)
    monkeypatch.setitem(__import__("sys").modules, "mpi4py.MPI", fake.MPI)

    def make(size: int) -> list[Mail]:
        boxes: dict[Any, deque[Any]] = defaultdict(deque)
        return [Mail(rank, size, boxes) for rank in range(size)]

    return make


def test_letters_and_rows_arrive_and_rows_are_counted(mails: Callable[[int], list[Mail]]):
    first, second = (Post(mail, 1.0) for mail in mails(2))
    row, into = torch.arange(3.0), torch.empty(3)
    second.send(0, "hello", row)
    assert first.receive(into) == (1, "hello")
    assert torch.equal(into, row)
    assert (second.bytes_sent, first.bytes_received, first.bytes_sent) == (12, 12, 0)


def test_nobody_is_waited_for_longer_than_the_timeout(mails: Callable[[int], list[Mail]]):
    post = Post(mails(2)[0], 0.001)
    with pytest.raises(FailureError, match=r"^nothing from a worker since 0.001 s; start it again"):
        post.receive()
    with pytest.raises(FailureError, match=r"^nothing from process 1 since"):
        post.receive(by=1)


def test_what_one_tells_all_hear(mails: Callable[[int], list[Mail]]):
    crew = [Crew(mail, 1.0) for mail in mails(3)]
    assert [crew[rank].tell(f"by {rank}", by=2) for rank in (2, 0, 1)] == ["by 2"] * 3


@pytest.mark.parametrize(("size", "expected"), [(2, [[], [0, 1, 2, 3]]), (3, [[], [0, 1], [2, 3]])])
def test_workers_share_the_lanes_and_the_master_has_none(
    size: int, expected: list[list[int]], mails: Callable[[int], list[Mail]]
):
    assert [list(Crew(mail, 1.0).lanes(4)) for mail in mails(size)] == expected


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch, mails: Callable[[int], list[Mail]]) -> Callable[[int], list[Any]]:
    """What is to be done at the exit of the process of a rank, of two."""

    def become(rank: int) -> list[Any]:
        registered: list[Any] = []
        monkeypatch.setattr(crew_module, "_world", lambda sync: mails(2)[rank])
        monkeypatch.setattr(crew_module.atexit, "register", registered.append)
        monkeypatch.setenv("RANK", str(rank))
        return registered

    return become


def told(error: RingflowError) -> RingflowError:
    error.told = True
    return error


@pytest.mark.parametrize(
    ("error", "ends_all"),
    [
        (FailureError("no"), True),
        (ValueError("a mistake of ours"), True),
        (told(UsageError("known to all")), False),
        (StoppedError("known to all"), False),
    ],
)
def test_an_error_of_one_ends_all_unless_all_have_it(
    error: Exception, ends_all: bool, tiny: Tiny, at_exit: Callable[[int], list[Any]]
):
    registered = at_exit(1)
    with pytest.raises(type(error)), joined(tiny("sync=easgd")):
        raise error
    assert bool(registered) == ends_all


def test_what_mpi_says_of_a_lost_process_is_one_line(
    tiny: Tiny, at_exit: Callable[[int], list[Any]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(crew_module, "_SECONDS_OF_GRACE", 0.0)
    registered = at_exit(1)
    with pytest.raises(FailureError, match=r"another process of this training ended \(lost it\)"), joined(tiny()):
        raise ZeroDivisionError("lost\nit, by a stack of frames")
    assert registered


@pytest.mark.parametrize("rank", [0, 1])
def test_other_strategies_are_refused_by_the_master(rank: int, tiny: Tiny, at_exit: Callable[[int], list[Any]]):
    at_exit(rank)
    with pytest.raises(UsageError, match=r"use compute.strategy=replicate, not shard, or sync=allreduce") as caught:
        joined(tiny("sync=downpour", "compute.strategy=shard")).__enter__()
    assert caught.value.told == (rank == 1)


def world(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]) -> None:
    """mpi4py as it would be found."""
    parts = {"mpi4py": lambda: SimpleNamespace(rc=SimpleNamespace()), "mpi4py.MPI": make}
    monkeypatch.setattr(crew_module, "framework", lambda module, extra: parts[module]())


def test_an_mpi_that_is_not_there_is_one_line(tiny: Tiny, monkeypatch: pytest.MonkeyPatch):
    def missing() -> Any:
        raise RuntimeError("cannot load MPI library\nlibmpi.so")

    world(monkeypatch, missing)
    with pytest.raises(FailureError, match=r"finds no MPI \(cannot load MPI library libmpi.so\); pip install"):
        joined(tiny("sync=downpour")).__enter__()


def test_processes_that_do_not_see_each_other_are_told_why(tiny: Tiny, monkeypatch: pytest.MonkeyPatch):
    world(monkeypatch, lambda: SimpleNamespace(COMM_WORLD=SimpleNamespace(rank=0, size=1)))
    with pytest.raises(UsageError, match="sync=downpour needs a master and at least one worker; start it with"):
        joined(tiny("sync=downpour")).__enter__()
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(
        FailureError, match="mpiexec has started 3 processes, but mpi4py belongs to another MPI"
    ) as caught:
        joined(tiny("sync=downpour")).__enter__()
    assert caught.value.told
