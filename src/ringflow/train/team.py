"""Processes that train one network together: who I am among them, what we add up, and who speaks.

    with joined(device) as team:
        team.rank, team.size
        events, = team.add([batch.num_events])

Whoever starts the processes (torchrun, Ray, Spark, MPI, Slurm) says so in the environment: RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR and MASTER_PORT. Without them a process is alone, and nothing here costs anything.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from ringflow.base.errors import FailureError, RingflowError, UsageError
from ringflow.launch.environment import STORE_KEPT, changed, is_loopback, loopback_store, loopback_variables

T = TypeVar("T")

#: Seconds after which a process that does not answer is taken for dead.
DEFAULT_TIMEOUT = 600.0
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Team:
    """A process alone: it is the first of one, and what it says to the others it says to nobody."""

    rank, size = 0, 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    def add(self, values: Sequence[float]) -> list[float]:
        """The sums, over all processes, of numbers on the host."""
        return list(values)

    def add_(self, tensor: Tensor) -> None:
        """Put the sum over all processes in the place of a tensor on the device."""

    def tell_(self, tensor: Tensor, by: int = 0) -> None:
        """Put one process's tensor, the first one's unless given, in the place of everybody's."""

    def tell(self, thing: T, by: int = 0) -> T:
        """What one process has, the first one unless given."""
        return thing

    def gather(self, thing: T) -> list[T]:
        """What every process has, by rank."""
        return [thing]

    def bring(self, thing: T) -> list[T]:
        """What every process has, by rank, in the first process; nothing elsewhere."""
        return [thing]

    def gather_(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor on the device, all of one shape, by rank."""
        return [tensor]

    def send(self, tensor: Tensor, to: int) -> Sending:
        """Begin to send a tensor to another process."""
        raise AssertionError("a process alone has nobody to send to")

    def receive_(self, tensor: Tensor, by: int) -> None:
        """Put what another process sends into a tensor."""
        raise AssertionError("a process alone hears from nobody")

    def split(self, parts: int) -> tuple[Team, Team]:
        """Cut the team into teams of `parts` neighbours; this process's own, and the one of all in its place."""
        return ALONE, ALONE

    def first(self, work: Callable[[], T]) -> T:
        """Let the first process do something; all get the result, or its error."""
        outcome: Any = None
        if self.is_first:
            try:
                outcome = (work(), None)
            except RingflowError as error:
                outcome = (None, error)
        result, failure = self.tell(outcome)
        if failure is not None:
            failure.told = not self.is_first
            raise failure
        return result  # type: ignore[no-any-return]

    @contextmanager
    def first_holds(self, holding: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Let the first process hold something while all work; its error when it cannot is everybody's."""
        with ExitStack() as held:
            self.first(lambda: held.enter_context(holding()))
            yield

    def agree(self, what: str, mine: object) -> None:
        """An error if the processes differ in something."""
        self.agree_on({f"another {what}": mine})

    def agree_on(self, mine: Mapping[str, object]) -> None:
        """An error if the processes differ in one of several things, by what a process that does is told to have."""
        said = self.gather(dict(mine))
        for rank, theirs in enumerate(said):
            if found := next((name for name in mine if theirs[name] != said[0][name]), None):
                error = UsageError(f"process {rank} has {found} than process 0; give all of them the same")
                error.told = not self.is_first
                raise error


class Sending(NamedTuple):
    """A tensor on its way; it must stay as it is until it is there."""

    tensor: Tensor
    work: Any

    def wait(self) -> None:
        """Until it is there."""
        self.work.wait()


class Together(Team):
    """One of several processes that torch has brought together; `group` are those meant, all unless given."""

    def __init__(self, device: torch.device, group: Any = None) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._device, self._group = device, group
        # Numbers on the host travel apart, so that an accelerator need not be waited for. None is the group of all: held here,
        # that one would outlive its end in the frames of an error, and abort the process.
        self._host = None
        if device.type != "cpu" and group is None:
            self._host = dist.new_group(backend="gloo")

    def add(self, values: Sequence[float]) -> list[float]:
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums, group=self._host or self._group)
        return sums.tolist()

    def add_(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, group=self._group)

    def tell_(self, tensor: Tensor, by: int = 0) -> None:
        dist.broadcast(tensor, group=self._group, group_src=by)

    def tell(self, thing: T, by: int = 0) -> T:
        carried = [thing if self.rank == by else None]
        dist.broadcast_object_list(carried, group=self._host or self._group, group_src=by)
        return carried[0]  # type: ignore[return-value]

    def gather(self, thing: T) -> list[T]:
        everybody: list[Any] = [None] * self.size
        dist.all_gather_object(everybody, thing, group=self._host or self._group)
        return everybody

    def bring(self, thing: T) -> list[T]:
        everybody: list[Any] = [None] * self.size if self.is_first else []
        dist.gather_object(thing, everybody or None, group=self._host or self._group, group_dst=0)
        return everybody

    def gather_(self, tensor: Tensor) -> list[Tensor]:
        everybody = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(everybody, tensor.contiguous(), group=self._group)
        return everybody

    def send(self, tensor: Tensor, to: int) -> Sending:
        return Sending(tensor, dist.isend(tensor, group=self._group, group_dst=to))

    def receive_(self, tensor: Tensor, by: int) -> None:
        dist.recv(tensor, group=self._group, group_src=by)

    def split(self, parts: int) -> tuple[Team, Team]:
        neighbours = [list(range(first, first + parts)) for first in range(0, self.size, parts)]
        return self._own_of(neighbours), self._own_of(list(map(list, zip(*neighbours, strict=True))))

    def _own_of(self, rows: list[list[int]]) -> Team:
        """The team of the row that this process is in; all processes make all of them, in the same order."""
        groups = [dist.new_group(row) if len(row) > 1 else None for row in rows]
        own = next(group for group, row in zip(groups, rows, strict=True) if self.rank in row)
        return ALONE if own is None else Together(self._device, own)


#: A process that knows of no others.
ALONE = Team()


def started_as_team() -> bool:
    """Whether the environment names other processes."""
    size = os.environ.get("WORLD_SIZE", "1")
    if not size.isdecimal():
        raise UsageError(f"WORLD_SIZE={size} is no number of processes; start with `ringflow launch`, or unset it")
    return int(size) > 1


@contextmanager
def joined(device: torch.device, timeout: float = DEFAULT_TIMEOUT) -> Iterator[Team]:
    """The team that the environment names, until the context is left."""
    if not started_as_team():
        yield ALONE
        return
    if missing := [name for name in _NEEDED if name not in os.environ]:
        raise UsageError(
            f"WORLD_SIZE is set but {missing[0]} is not; start with `ringflow launch`, or unset WORLD_SIZE"
        )
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    with changed(os.environ, loopback_variables(os.environ["MASTER_ADDR"])):
        yield from _together(device, timeout, address)


def _together(device: torch.device, timeout: float, address: str) -> Iterator[Team]:
    try:
        _meet(device, timedelta(seconds=timeout))
    except (RuntimeError, ValueError, OSError) as error:  # what torch raises depends on where it waits
        reason = " ".join(str(error).split())[:160]
        if "EADDRINUSE" in reason or "already in use" in reason:
            raise FailureError(f"something else listens at {address}; give another MASTER_PORT") from None
        raise FailureError(f"the processes did not meet at {address} ({reason}); are all of them started?") from None
    try:
        yield Together(device)
    except RingflowError as error:
        traceback.clear_frames(error.__traceback__)
        raise
    except RuntimeError as error:
        if not _is_lost_peer(error):
            raise
        traceback.clear_frames(error.__traceback__)
        reason = " ".join(str(error).split())[:160]
        raise FailureError(
            f"another process of this training ended ({reason}); start it again: it goes on from the last checkpoint"
        ) from None
    finally:
        # A network that outlives its group, in the frames of an error or in a cycle, aborts the process at its end.
        gc.collect()
        dist.destroy_process_group()


_meetings = count()


def _meet(device: torch.device, timeout: timedelta) -> None:
    """Bring the processes together. What they tell each other on the way is kept apart from what those before them told."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0 and is_loopback(host) and os.environ.get(STORE_KEPT) != "True":
        store = loopback_store(host, port, size)
        store.set_timeout(timeout)
    else:
        store = next(rendezvous("env://", timeout=timeout))[0]
    own = PrefixStore(f"ringflow-{next(_meetings)}", store)
    backend = dist.get_default_backend_for_device(device)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=timeout)


def _is_lost_peer(error: RuntimeError) -> bool:
    words = str(error).lower()
    return any(sign in words for sign in ("connection closed", "connection reset", "timed out", "broken pipe", "gloo"))
