"""The processes of an asynchronous training, brought together by MPI: the first is the master, the others are its workers.

    with joined(settings) as crew:
        crew.rank, crew.size, crew.workers

mpi4py is imported here, and only when it is needed: that alone starts MPI. An error of one process ends them all, when it has
been told.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ringflow.base.errors import FailureError, RingflowError, StoppedError, UsageError
from ringflow.launch.frameworks import framework, one_line
from ringflow.train.asynchronous.messages import MASTER, Post
from ringflow.train.parallel.places import Places
from ringflow.train.settings import TrainSettings
from ringflow.train.team import Team

T = TypeVar("T")

#: Where mpiexec says how many processes it has started.
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
_SECONDS_OF_GRACE = 5.0


class Crew(Team):
    """A team that talks by letters; nobody who waits takes a core from those who work."""

    def __init__(self, comm: Any, timeout: float) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.post = Post(comm, timeout)

    @property
    def workers(self) -> range:
        """Ranks of all but the master."""
        return range(MASTER + 1, self.size)

    def lanes(self, lanes: int) -> Sequence[int]:
        """The lanes that this process takes; the master takes none."""
        return Places(self.rank - 1, self.size - 1).lanes(lanes) if self.rank in self.workers else ()

    def tell(self, thing: T, by: int = 0) -> T:
        if self.rank == by:
            for other in range(self.size):
                if other != by:
                    self.post.send(other, thing)
            return thing
        told: T = self.post.receive(by=by)[1]
        return told

    def gather(self, thing: T) -> list[T]:
        return [self.tell(thing, by=rank) for rank in range(self.size)]


@contextmanager
def joined(settings: TrainSettings) -> Iterator[Crew]:
    """The processes that mpiexec has started, until the context is left."""
    comm = _world(settings.sync)
    os.environ.setdefault("RANK", str(comm.rank))  # by which it is known who speaks
    try:
        _require_whole_networks(settings, comm.rank)
        try:
            yield Crew(comm, settings.compute.timeout)
        except framework("mpi4py.MPI", "mpi").Exception as error:
            # mpiexec knows better what has become of the other one, and ends this one; if it is not there any more, we do.
            time.sleep(_SECONDS_OF_GRACE)
            raise FailureError(
                f"another process of this training ended ({one_line(str(error)).split(',')[0]}); start it again: it goes on "
                "from the last checkpoint"
            ) from None
    except BaseException as error:
        # What was told by another process is known to all, and so is a stop.
        if not (isinstance(error, StoppedError) or (isinstance(error, RingflowError) and error.told)):
            _end_all_at_exit(comm, error.exit_code if isinstance(error, RingflowError) else 1)
        raise


def _world(sync: str) -> Any:
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
