"""Processes that train one network together: who I am among them, what we add up, and who speaks.

    with joined(device) as team:
        team.rank, team.size
        events, = team.add([batch.num_events])

Whoever starts the processes (torchrun, Ray, Spark, MPI, Slurm) says so in the environment: RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR and MASTER_PORT. Without them a process is alone, and nothing here costs anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ringflow.base.errors import FailureError, RingflowError, UsageError

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

    def tell_(self, tensor: Tensor) -> None:
        """Put the first process's tensor in the place of everybody's."""

    def tell(self, thing: T) -> T:
        """What the first process has."""
        return thing

    def gather(self, thing: T) -> list[T]:
        """What every process has, by rank."""
        return [thing]

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
        said = self.gather(mine)
        if other := next((rank for rank, theirs in enumerate(said) if theirs != said[0]), None):
            error = UsageError(f"process {other} has another {what} than process 0; give all of them the same")
            error.told = not self.is_first
            raise error


class Together(Team):
    """One of several processes that torch has brought together."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Numbers on the host travel apart, so that an accelerator need not be waited for. None is the group of all: held here,
        # that one would outlive its end in the frames of an error, and abort the process.
        self._host = None if device.type == "cpu" else dist.new_group(backend="gloo")

    def add(self, values: Sequence[float]) -> list[float]:
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums, group=self._host)
        return sums.tolist()

    def add_(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)

    def tell_(self, tensor: Tensor) -> None:
        dist.broadcast(tensor, src=0)

    def tell(self, thing: T) -> T:
        carried = [thing if self.is_first else None]
        dist.broadcast_object_list(carried, src=0, group=self._host)
        return carried[0]  # type: ignore[return-value]

    def gather(self, thing: T) -> list[T]:
        everybody: list[Any] = [None] * self.size
        dist.all_gather_object(everybody, thing, group=self._host)
        return everybody


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
    try:
        backend = dist.get_default_backend_for_device(device)
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as error:  # what torch raises depends on where it waits
        reason = " ".join(str(error).split())[:160]
        raise FailureError(f"the processes did not meet at {address} ({reason}); are all of them started?") from None
    try:
        yield Together(device)
    except RuntimeError as error:
        if not _is_lost_peer(error):
            raise
        reason = " ".join(str(error).split())[:160]
        raise FailureError(
            f"another process of this training ended ({reason}); start it again: it goes on from the last checkpoint"
        ) from None
    finally:
        dist.destroy_process_group()


def _is_lost_peer(error: RuntimeError) -> bool:
    words = str(error).lower()
    return any(sign in words for sign in ("connection closed", "connection reset", "timed out", "broken pipe", "gloo"))
