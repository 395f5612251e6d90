"""The processes of an asynchronous training, brought together by MPI: the first is the master, the others are its workers.

    with joined(settings) as world:
        world.rank, world.size, world.workers

mpi4py is imported here, and only when it is needed: that alone starts MPI. An error of one process ends them all, when it has
been told. Whoever waits for a message in MPI asks for it as fast as the core allows, and takes the core from those who work;
here whoever waits sleeps between two looks.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor

from ringflow.base.errors import FailureError, LostPeerError, RingflowError, StoppedError, UsageError
from ringflow.launch.frameworks import framework, one_line
from ringflow.train.parallel import MeshPlace
from ringflow.train.profile import UNMEASURED, Phases
from ringflow.train.settings import TrainSettings
from ringflow.train.world import World

T = TypeVar("T")

MASTER = 0
_MESSAGE, _ROW = 1, 2
_SHORTEST_NAP, _LONGEST_NAP = 20e-6, 1e-3
#: Where mpiexec says how many processes it has started.
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
_SECONDS_OF_GRACE = 5.0


class Messages:
    """Sends small objects, and rows of floats with them, from process to process."""

    def __init__(self, comm: Any, timeout: float) -> None:
        self._comm, self._timeout = comm, timeout
        self.phases: Phases = UNMEASURED
        #: Of rows; the rest is small.
        self.bytes_sent = self.bytes_received = 0

    def send(self, to: int, message: object, row: Tensor | None = None) -> None:
        """Send a message, and a row with it."""
        with self.phases("communication"):
            under_way = [self._comm.isend(message, dest=to, tag=_MESSAGE)]
            if row is not None:
                under_way.append(self._comm.Isend(row.numpy(), dest=to, tag=_ROW))
                self.bytes_sent += row.nbytes
            for request in under_way:
                self._wait_for(request.Test, to)

    def receive(self, row: Tensor | None = None, source: int | None = None) -> tuple[int, Any]:
        """Wait for a message, of anybody unless given, and the row that comes with it; the sender and the message."""
        from mpi4py import MPI

        status = MPI.Status()
        wanted = MPI.ANY_SOURCE if source is None else source
        with self.phases("idle"):
            self._wait_for(lambda: self._comm.iprobe(source=wanted, tag=_MESSAGE, status=status), source)
        with self.phases("communication"):
            sender: int = status.Get_source()
            message = self._comm.recv(source=sender, tag=_MESSAGE)
            if row is not None:
                self._wait_for(self._comm.Irecv(row.numpy(), source=sender, tag=_ROW).Test, sender)
                self.bytes_received += row.nbytes
        return sender, message

    def _wait_for(self, ready: Callable[[], bool], whom: int | None) -> None:
        until = time.monotonic() + self._timeout
        nap = _SHORTEST_NAP
        while not ready():
            if time.monotonic() > until:
                who = "a worker" if whom is None else f"process {whom}"
                raise LostPeerError(
                    f"nothing from {who} since {self._timeout:g} s; start it again: it goes on from the last checkpoint, or "
                    "give a larger compute.timeout"
                )
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)


class MpiWorld(World):
    """One of the processes that mpiexec has started."""

    def __init__(self, comm: Any, timeout: float) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.messages = Messages(comm, timeout)

    @property
    def workers(self) -> range:
        """Ranks of all but the master."""
        return range(MASTER + 1, self.size)

    def lanes(self, lanes: int) -> Sequence[int]:
        """The lanes that this process takes; the master takes none."""
        return MeshPlace(self.rank - 1, self.size - 1).lanes(lanes) if self.rank in self.workers else ()

    def broadcast(self, thing: T, source: int = 0) -> T:
        if self.rank == source:
            for other in range(self.size):
                if other != source:
                    self.messages.send(other, thing)
            return thing
        sent: T = self.messages.receive(source=source)[1]
        return sent

    def all_gather(self, thing: T) -> list[T]:
        return [self.broadcast(thing, rank) for rank in range(self.size)]


@contextmanager
def joined(settings: TrainSettings) -> Iterator[MpiWorld]:
    """The processes that mpiexec has started, until the context is left."""
    comm = _comm_world(settings.sync)
    os.environ.setdefault("RANK", str(comm.rank))  # by which it is known who speaks
    try:
        _require_whole_networks(settings, comm.rank)
        try:
            yield MpiWorld(comm, settings.compute.timeout)
        except framework("mpi4py.MPI", "mpi").Exception as error:
            # mpiexec knows better what has become of the other one, and ends this one; if it is not there any more, we do.
            time.sleep(_SECONDS_OF_GRACE)
            raise LostPeerError(
                f"another process of this training ended ({one_line(str(error)).split(',')[0]}); start it again: it goes on "
                "from the last checkpoint"
            ) from None
    except BaseException as error:
        # What was told by another process is known to all, and so is a stop.
        if not (isinstance(error, StoppedError) or (isinstance(error, RingflowError) and error.told)):
            _end_all_at_exit(comm, error.exit_code if isinstance(error, RingflowError) else 1)
        raise


def _comm_world(sync: str) -> Any:
    rc = framework("mpi4py", "mpi").rc
    rc.thread_level = "funneled"  # data are read by threads, which know nothing of MPI
    try:
        comm = framework("mpi4py.MPI", "mpi").COMM_WORLD
    except RuntimeError as error:  # it looks for the library of MPI only now
        raise FailureError(f"mpi4py finds no MPI ({one_line(str(error))}); pip install 'ringflow[mpi]'") from None
    if comm.size > 1:
        return comm
    expected = next((size for name in _SIZES if (size := os.environ.get(name, "1")) != "1"), None)
    lonely: RingflowError = UsageError(
        f"sync={sync} needs a master and at least one worker; start it with `ringflow launch mpi --workers 3 -- train ...`"
    )
    if expected is not None:
        lonely = FailureError(
            f"mpiexec has started {expected} processes, but mpi4py belongs to another MPI and sees one; "
            "use the mpiexec of the MPI that mpi4py was built for"
        )
    lonely.told = os.environ.get("RANK", "0") != "0"
    raise lonely


def _require_whole_networks(settings: TrainSettings, rank: int) -> None:
    if settings.compute.strategy != "replicate":
        error = UsageError(
            f"sync={settings.sync} has a whole network in every process; use compute.strategy=replicate, "
            f"not {settings.compute.strategy}, or sync=allreduce"
        )
        error.told = rank != MASTER
        raise error


def _end_all_at_exit(comm: Any, code: int) -> None:
    """End all processes when this one ends: whoever waits for it would wait for ever. By then it has said what was wrong."""

    def end() -> None:
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPI has nothing to add
        comm.Abort(code)

    atexit.register(end)
