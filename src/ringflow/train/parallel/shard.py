"""Every process keeps a slice of each tensor; a layer is gathered when it is needed (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from ringflow.models.model import Model
from ringflow.train.parallel.places import Places
from ringflow.train.parallel.spread import Spread
from ringflow.train.phases import Phases


class Sharded(Spread):
    """Fully sharded data parallel."""

    def __init__(self, model: Model, places: Places, device: torch.device, phases: Phases) -> None:
        super().__init__(model, places, phases)
        mesh = init_device_mesh(device.type, (places.copies,))  # else an accelerator that is there, used or not
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        phases.watch(model)

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        return _whole(tensor)

    @torch.no_grad()
    def put(self, name: str, target: Tensor, value: Tensor) -> None:
        if isinstance(target, DTensor):
            value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
        target.copy_(value)

    @contextmanager
    def adding_up(self, now: bool) -> Iterator[None]:
        assert isinstance(self.model, FSDPModule), "the model is sharded"
        self.model.set_requires_gradient_sync(now)
        yield

    def clip(self, longest: float) -> Tensor:
        return _whole(super().clip(longest))


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
