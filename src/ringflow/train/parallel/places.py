"""Who does what among the processes of a training: which copy of the network, which part of it, which events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ringflow.base.errors import UsageError
from ringflow.train.settings import TrainSettings


class Places(NamedTuple):
    """Copies of the network see different events; the parts of a copy see the same, and are neighbours."""

    copy: int = 0
    copies: int = 1
    part: int = 0
    parts: int = 1

    @classmethod
    def of(cls, rank: int, size: int, strategy: str, parts: int) -> Places:
        """The place of a process; `parts` of them share a copy, all of them if it is 0, for strategies that cut it up so."""
        parts = (parts or size) if strategy in ("tensor", "pipeline") else 1
        if size % parts:
            raise UsageError(
                f"{size} processes do not make copies of compute.parts={parts} each; start a multiple of {parts}, "
                "or give another compute.parts"
            )
        return cls(rank // parts, size // parts, rank % parts, parts)

    def lanes(self, lanes: int) -> Sequence[int]:
        """The lanes that this copy takes, of those that all share."""
        return range(self.copy * lanes // self.copies, (self.copy + 1) * lanes // self.copies)


def require_spreadable(settings: TrainSettings, size: int) -> None:
    """An error if the network of a training cannot be cut up for so many processes as it is asked to be."""
    compute, model = settings.compute, settings.model
    parts = Places.of(0, size, compute.strategy, compute.parts).parts
    if parts == 1:
        return
    if compute.strategy == "pipeline":
        if parts > model.layers:
            raise UsageError(
                f"{parts} processes cannot share model.layers={model.layers}; give fewer, or a compute.parts"
            )
        return
    if model.backbone == "graph":
        raise UsageError(
            "compute.strategy=tensor cannot cut the backbone graph, whose heads are hashed together; use replicate or shard"
        )
    if settings.optimizer.name == "lamb":
        raise UsageError(
            "optimizer.name=lamb measures whole tensors, which compute.strategy=tensor has not; use replicate or shard"
        )
    for name, number in (("heads", model.heads), ("hidden", model.hidden)):
        if number % parts:
            raise UsageError(
                f"{parts} processes cannot share model.{name}={number} evenly; give a compute.parts that divides it"
            )
