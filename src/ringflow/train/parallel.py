"""How a network is spread over processes, as thinly as torch allows.

`replicate` keeps a whole network in every process and adds up gradients while they are computed (DDP); `shard` keeps a slice of
every tensor in each and gathers a layer when it is needed (FSDP2). Either way the network is trained as in one process: what a
checkpoint holds is whole, and can be gone on from by any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ringflow.models.heads import Prediction
from ringflow.models.model import Model
from ringflow.train.team import Team


class Spread:
    """A network over the processes of a team; `network` is what is called, and makes gradients that are means over all."""

    def __init__(self, model: Model, team: Team, strategy: str, device: torch.device) -> None:
        self.model = model
        self.network: Callable[..., Prediction] = model
        self._replicas: DistributedDataParallel | None = None
        if team.size == 1:
            return
        for tensor in (*model.parameters(), *model.buffers()):
            team.tell_(tensor.data)  # the first one's scaling was fitted
        if strategy == "shard":
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
        else:
            index = [device.index] if device.type != "cpu" and device.index is not None else None
            self._replicas = DistributedDataParallel(
                model, device_ids=index, init_sync=False, gradient_as_bucket_view=True
            )
            # They are the same everywhere. The argument for it was renamed in torch 2.13, the attribute works in all versions.
            self._replicas.broadcast_buffers = False
            self.network = self._replicas

    @contextmanager
    def adding_up(self, now: bool) -> Iterator[None]:
        """Whether the gradients that are computed in here are added up over the processes, or kept for a later batch."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(now)
            yield
        elif self._replicas is None or now:
            yield
        else:
            with self._replicas.no_sync():
                yield

    def clip(self, longest: float) -> Tensor:
        """Shorten the gradient to a length, and return the length it had."""
        length = clip_grad_norm_(list(self.model.parameters()), longest)
        return whole(length)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which every process may have a slice only; all processes have to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def mine(tensor: Tensor) -> Tensor:
    """The slice of a tensor that is here, as the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def put(target: Tensor, value: Tensor) -> None:
    """Put a whole tensor into one that may be spread."""
    if isinstance(target, DTensor):
        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
    target.copy_(value)


def lanes_of(rank: int, size: int, lanes: int) -> Sequence[int]:
    """The lanes that a process takes, of those that all share."""
    return range(rank * lanes // size, (rank + 1) * lanes // size)
