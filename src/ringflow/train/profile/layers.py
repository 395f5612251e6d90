"""Layers that torch gathers when they are needed, and gradients that it scatters (FSDP): each time as a phase of its own."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from ringflow.train.phases import Phases


class _Gather(DefaultAllGather):
    """As torch does it."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._phases("communication"):
            return super().__call__(*args, **kwargs)


class _Scatter(DefaultReduceScatter):
    """As torch does it."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._phases("communication"):
            return super().__call__(*args, **kwargs)


def watch_layers(network: nn.Module, phases: Phases) -> None:
    """Let a sharded network tell when it communicates."""
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(_Gather(phases))
            module.set_custom_reduce_scatter(_Scatter(phases))
