"""Processes that train one network together: rank and size, collectives, who speaks, and signals that ask for an end.

    with joined(device) as world:
        world.rank, world.size
        (events,) = world.all_reduce([batch.num_events])

Whoever starts the processes (torchrun, Ray, Spark, MPI, Slurm) says so in the environment: RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR and MASTER_PORT. Without them a process is alone, and nothing here costs anything.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from types import FrameType
from typing import Any, TypeAlias, TypeVar, cast

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from ringflow.base.errors import FailureError, LostPeerError, RingflowError, StoppedError, UsageError
from ringflow.base.log import speaks
from ringflow.base.wire import MOST_BYTES, decode, encode
from ringflow.launch.environment import STORE_KEPT, changed, loopback_variables, meeting_store

T = TypeVar("T")

#: Seconds after which a process that does not answer is taken for dead.
DEFAULT_TIMEOUT = 600.0
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@contextmanager
def collective() -> Iterator[None]:
    """Around a call that does nothing but talk to other processes: what torch raises there is another one that is gone.

    Gloo has no type of its own for that. Around anything that also computes this would be a lie.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise lost_peer(error) from error


def lost_peer(error: BaseException) -> LostPeerError:
    """The error of a process that finds another one gone."""
    reason = " ".join(str(error).split())[:160]
    return LostPeerError(
        f"another process of this training ended ({reason}); start it again: it goes on from the last checkpoint"
    )


#: What is sent as it is in memory: weights, averages, the state of an optimiser.
Tensors: TypeAlias = dict[str, Tensor]
_MOST_TENSOR_BYTES = 2**38


def pack(thing: Any, kind: Any = Any) -> Tensor:
    """What travels in the place of something, as bytes: never pickle, which torch itself would send."""
    return torch.frombuffer(bytearray(save(thing) if kind is Tensors else encode(thing)), dtype=torch.uint8)


def room(length: int, kind: Any = Any) -> Tensor:
    """Where so many bytes can be put; an error if nothing of this kind is so long."""
    if not 0 < length <= (_MOST_TENSOR_BYTES if kind is Tensors else MOST_BYTES):
        raise FailureError(f"another process tells of {length} bytes, which it cannot mean; start the training again")
    return torch.empty(length, dtype=torch.uint8)


def unpack(packed: Tensor, kind: Any = Any) -> Any:
    """What was packed, as a `kind`; an error of ours is returned in its place."""
    carried = packed.cpu().numpy().tobytes()
    return load(carried) if kind is Tensors else decode(carried, kind)


class World:
    """The processes of a training as one of them sees them; without a device a process alone, which is the first of one."""

    rank, size = 0, 1

    def __init__(self, device: torch.device | None = None, group: Any = None) -> None:
        """`group` are those processes that torch has brought together that are meant, all unless given."""
        if device is None:
            return
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._device, self._group = device, group
        # Numbers on the host travel apart, so that an accelerator need not be waited for. None is the group of all: held here,
        # that one would outlive its end in the frames of an error, and abort the process.
        self.host_group = dist.new_group(backend="gloo") if device.type != "cpu" and group is None else group
        self._bytes_on = torch.device("cpu") if group is None else device

    @property
    def is_first(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    @collective()
    def all_reduce(self, values: Sequence[float]) -> list[float]:
        """The sums, over all processes, of numbers on the host."""
        sums = torch.tensor(values, dtype=torch.float64)
        if self.size > 1:
            dist.all_reduce(sums, group=self.host_group)
        return sums.tolist()

    @collective()
    def all_reduce_(self, tensor: Tensor) -> None:
        """Put the sum over all processes in the place of a tensor on the device."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self._group)

    def broadcast(self, thing: T, source: int = 0, kind: Any = Any) -> T:
        """What one process has; the others get it as a `kind`."""
        if self.size == 1:
            return thing
        mine = self.rank == source
        packed = pack(thing, kind).to(self._bytes_on) if mine else torch.empty(0)
        length = torch.tensor([packed.numel()], device=self._bytes_on)
        with collective():
            dist.broadcast(length, group=self.host_group, group_src=source)
            packed = packed if mine else room(int(length), kind).to(self._bytes_on)
            dist.broadcast(packed, group=self.host_group, group_src=source)
        return thing if mine else cast(T, unpack(packed, kind))

    @collective()
    def broadcast_(self, tensor: Tensor, source: int = 0) -> None:
        """Put one process's tensor in the place of everybody's."""
        if self.size > 1:
            dist.broadcast(tensor, group=self._group, group_src=source)

    def all_gather(self, thing: T, kind: Any = Any) -> list[T]:
        """What every process has, by rank, as a `kind`."""
        if self.size == 1:
            return [thing]
        packed = pack(thing, kind)
        length = torch.tensor([packed.numel()], device=self._bytes_on)
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        with collective():
            dist.all_gather(lengths, length, group=self.host_group)
            padded = torch.zeros_like(room(max(map(int, lengths)), kind), device=self._bytes_on)
            padded[: packed.numel()] = packed
            everybody = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(everybody, padded, group=self.host_group)
        return [unpack(one[: int(length)], kind) for one, length in zip(everybody, lengths, strict=True)]

    @collective()
    def all_gather_(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor on the device, all of one shape, by rank."""
        everybody = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(everybody, tensor.contiguous(), group=self._group)
        return everybody

    @collective()
    def send(self, tensor: Tensor, to: int) -> Callable[[], None]:
        """Begin to send a tensor; call what is returned to wait until it is there. It must stay as it is until then."""
        under_way = dist.isend(tensor, group=self._group, group_dst=to)

        @collective()
        def wait(sent: Tensor = tensor) -> None:  # which keeps the memory until it has left
            under_way.wait()  # type: ignore[union-attr]

        return wait

    @collective()
    def receive_(self, tensor: Tensor, source: int) -> None:
        """Put what another process sends into a tensor."""
        dist.recv(tensor, group=self._group, group_src=source)

    @collective()
    def split(self, parts: int) -> tuple[World, World]:
        """Cut the world into groups of `parts` neighbours; this process's own, and that of all in its place."""
        neighbours = torch.arange(self.size).view(-1, parts)
        within, across = (
            World(self._device, dist.new_subgroups_by_enumeration(rows.tolist())[0])  # type: ignore[no-untyped-call]
            for rows in (neighbours, neighbours.T)
        )
        return within, across

    def on_first(self, work: Callable[[], T], kind: Any = Any) -> T:
        """Let the first process do something; all get the result as a `kind`, or its error."""
        outcome: T | RingflowError | None = None
        if self.is_first:
            try:
                outcome = work()
            except RingflowError as error:
                outcome = error
        outcome = self.broadcast(outcome, kind=kind)
        if isinstance(outcome, RingflowError):
            outcome.told = not self.is_first
            raise outcome
        return cast(T, outcome)

    def require_same(self, mine: Mapping[str, object]) -> None:
        """An error if the processes differ in one of several things, by name."""
        said = self.all_gather(dict(mine))
        for rank, theirs in enumerate(said):
            if found := next((name for name in mine if theirs[name] != said[0][name]), None):
                error = UsageError(f"process {rank} has another {found} than process 0; give all of them the same")
                error.told = not self.is_first
                raise error


#: A process that knows of no others.
ALONE = World()


@contextmanager
def joined(device: torch.device, timeout: float = DEFAULT_TIMEOUT) -> Iterator[World]:
    """The processes that the environment names, until the context is left."""
    size = os.environ.get("WORLD_SIZE", "1")
    if not size.isdecimal():
        raise UsageError(f"WORLD_SIZE={size} is no number of processes; start with `ringflow launch`, or unset it")
    if int(size) <= 1:
        yield ALONE
        return
    if missing := [name for name in _NEEDED if name not in os.environ]:
        raise UsageError(
            f"WORLD_SIZE is set but {missing[0]} is not; start with `ringflow launch`, or unset WORLD_SIZE"
        )
    host = os.environ["MASTER_ADDR"]
    with changed(os.environ, loopback_variables(host)):
        _meet(device, timedelta(seconds=timeout), host, int(os.environ["MASTER_PORT"]))
        try:
            yield World(device)
        except RingflowError as error:
            # A network that outlives its group, in the frames of an error or in a cycle, aborts the process at its end.
            for one in (error, error.__cause__):
                traceback.clear_frames(one.__traceback__ if one else None)
            raise
        finally:
            gc.collect()
            dist.destroy_process_group()


_meetings = count()


def _meet(device: torch.device, timeout: timedelta, host: str, port: int) -> None:
    """Bring the processes together. What they tell each other on the way is kept apart from what those before them told."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        if rank == 0 and os.environ.get(STORE_KEPT) != "True":
            store = meeting_store(host, port, size)
            store.set_timeout(timeout)
        else:
            store = next(rendezvous("env://", timeout=timeout))[0]
        own = PrefixStore(f"ringflow-{next(_meetings)}", store)
        backend = dist.get_default_backend_for_device(device)
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError, OSError) as error:  # what torch raises depends on where it waits
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise FailureError(f"something else listens at {host}:{port}; give another MASTER_PORT") from None
        reason = " ".join(str(error).split())[:160]
        raise FailureError(
            f"the processes did not meet at {host}:{port} ({reason}); are all of them started?"
        ) from None


class StopRequest:
    """Whether a signal asked for the end, and which."""

    signal_name: str | None = None


@contextmanager
def catching_signals() -> Iterator[StopRequest]:
    """Take note of the first signal instead of dying of it, so that a training stops after its step; the second one has its
    usual effect.

    Slurm sends SIGUSR1 before the time of a job is up, a terminal SIGINT at Ctrl-C, and everybody SIGTERM to what shall end.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # Python lets no other thread set handlers
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        request.signal_name = signal.Signals(number).name
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if number == signal.SIGINT and speaks():  # a step that waits for data can take long; print is not for handlers
            os.write(2, b"stopping after this step; Ctrl-C again stops at once\n")

    # What is ignored was not meant for this process: a shell gives SIGINT to those in the foreground only.
    caught = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in caught}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopped(signal_name: str, events: int) -> StoppedError:
    """The error of a training that a signal has ended, after its checkpoint."""
    error = StoppedError(
        f"stopped by {signal_name} after {events} events, and all is saved; the same command goes on from there"
    )
    if signal_name == signal.SIGINT.name:  # nobody who types Ctrl-C wants a batch system to start it again
        error.exit_code = 130
    return error
