"""How a network is spread over processes: whole in each, or cut by tensors, by heads and channels, or by layers.

Whatever the way, the network is trained as in one process: what a checkpoint holds is whole, and can be gone on from in any
other way, by any number of processes.
"""

from __future__ import annotations

import torch

from ringflow.models.model import Model
from ringflow.train.parallel.places import Places
from ringflow.train.parallel.spread import Spread
from ringflow.train.phases import UNMEASURED, Phases
from ringflow.train.settings import ComputeSettings
from ringflow.train.team import Team


def spread_over(
    model: Model, team: Team, compute: ComputeSettings, device: torch.device, phases: Phases = UNMEASURED
) -> Spread:
    """The network of all processes of a team, which have the first one's weights from now on."""
    places = Places.of(team.rank, team.size, compute.strategy, compute.parts)
    if team.size == 1:
        return Spread(model, places, phases)
    for tensor in (*model.parameters(), *model.buffers()):
        team.tell_(tensor.data)
    if compute.strategy == "tensor":
        from ringflow.train.parallel.tensor import Sliced

        return Sliced(model, places, team, phases)
    if compute.strategy == "pipeline":
        from ringflow.train.parallel.pipeline import Staged

        return Staged(model, places, team, compute, device, phases)
    if compute.strategy == "shard":
        from ringflow.train.parallel.shard import Sharded

        return Sharded(model, places, device, phases)
    from ringflow.train.parallel.replicate import Replicated

    return Replicated(model, places, device, phases)
