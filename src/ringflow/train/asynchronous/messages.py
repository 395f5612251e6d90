"""What a master and its workers send each other: small letters, and rows, which are all weights or gradients one after the
other in float32.

Whoever waits for a message in MPI asks for it as fast as the core allows, and takes the core from those who work. Here
whoever waits sleeps between two looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ringflow.base.errors import FailureError
from ringflow.models.model import Model
from ringflow.train.batches import DataPosition, FixedShape
from ringflow.train.phases import UNMEASURED, Phases

MASTER = 0
_LETTER, _ROW = 1, 2
_SHORTEST_NAP, _LONGEST_NAP = 20e-6, 1e-3


class Report(NamedTuple):
    """What a worker tells with its row."""

    #: Of the weights it had fetched before.
    version: int
    events: int
    #: Elements that went through the network, and those of them that were not only there to fill a batch up.
    computed: int
    real: int
    #: The next batch of each of its lanes.
    positions: dict[int, DataPosition]
    shape: FixedShape | None
    #: Means of what its batches gave.
    values: dict[str, float]
    #: The signal that asked it to end.
    signal: str | None = None


class Answer(NamedTuple):
    """What the master tells with its row."""

    #: Times that its weights have moved.
    version: int
    #: Events shown to all workers.
    events: int
    go_on: bool = True
    #: Whether it wants to have all that the worker would need to go on.
    wants_state: bool = False


class Post:
    """Brings letters and rows from process to process."""

    def __init__(self, comm: Any, timeout: float) -> None:
        self._comm, self._timeout = comm, timeout
        self.phases: Phases = UNMEASURED
        #: Of rows; the letters are small.
        self.bytes_sent = self.bytes_received = 0

    def send(self, to: int, letter: object, row: Tensor | None = None) -> None:
        """Send a letter, and a row with it."""
        with self.phases("communication"):
            under_way = [self._comm.isend(letter, dest=to, tag=_LETTER)]
            if row is not None:
                under_way.append(self._comm.Isend(row.numpy(), dest=to, tag=_ROW))
                self.bytes_sent += row.nbytes
            for request in under_way:
                self._await(request.Test, to)

    def receive(self, row: Tensor | None = None, by: int | None = None) -> tuple[int, Any]:
        """Wait for a letter, of anybody unless given, and the row that comes with it; the sender and the letter."""
        from mpi4py import MPI

        status = MPI.Status()
        source = MPI.ANY_SOURCE if by is None else by
        with self.phases("idle"):
            self._await(lambda: self._comm.iprobe(source=source, tag=_LETTER, status=status), by)
        with self.phases("communication"):
            sender: int = status.Get_source()
            letter = self._comm.recv(source=sender, tag=_LETTER)
            if row is not None:
                self._await(self._comm.Irecv(row.numpy(), source=sender, tag=_ROW).Test, sender)
                self.bytes_received += row.nbytes
        return sender, letter

    def _await(self, ready: Callable[[], bool], whom: int | None) -> None:
        until = time.monotonic() + self._timeout
        nap = _SHORTEST_NAP
        while not ready():
            if time.monotonic() > until:
                who = "a worker" if whom is None else f"process {whom}"
                raise FailureError(
                    f"nothing from {who} since {self._timeout:g} s; start it again: it goes on from the last checkpoint, or "
                    "give a larger compute.timeout"
                )
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)


def row_for(model: Model) -> Tensor:
    """Room for all weights of a network on the host."""
    return torch.empty(model.num_parameters)


def pieces(row: Tensor, tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """What of a row belongs to each tensor, in its shape and as the same memory, with the tensor."""
    first = 0
    for tensor in tensors:
        yield row[first : first + tensor.numel()].view_as(tensor), tensor
        first += tensor.numel()
