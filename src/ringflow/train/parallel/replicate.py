"""A whole network in every process; gradients are added up while they are computed (DDP)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from ringflow.models.model import Model
from ringflow.train.parallel.places import Places
from ringflow.train.parallel.spread import Spread
from ringflow.train.phases import Phases


class Replicated(Spread):
    """Data parallel."""

    def __init__(self, model: Model, places: Places, device: torch.device, phases: Phases) -> None:
        super().__init__(model, places, phases)
        index = [device.index] if device.type != "cpu" and device.index is not None else None
        self.replicas = DistributedDataParallel(model, device_ids=index, init_sync=False, gradient_as_bucket_view=True)
        # They are the same everywhere. The argument for it was renamed in torch 2.13, the attribute works in all versions.
        self.replicas.broadcast_buffers = False
        self.network = self.replicas
        phases.watch(self.replicas)

    def adding_up(self, now: bool) -> AbstractContextManager[None]:
        return nullcontext() if now else self.replicas.no_sync()
