"""A moving average of the weights: less noisy than the weights themselves, and better by as much."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from ringflow.models.model import Model
from ringflow.train.parallel import mine, whole


class Average:
    """Weights that follow those of a network, spread over processes as these are. The memory is short at first, so that the
    start is forgotten."""

    def __init__(self, followed: Model, plain: Model, decay: float) -> None:
        """`plain` is a network of the same settings that is not spread, to be filled with the average."""
        self._decay, self._followed = decay, followed
        self.weights: dict[str, Tensor] = {
            name: weight.detach().clone() for name, weight in followed.named_parameters()
        }
        self._own = [mine(weight) for weight in self.weights.values()]
        self._theirs = [mine(weight.detach()) for weight in followed.parameters()]
        self._plain = deepcopy(plain).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights as they are after step number `step`, counted from 0."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._own, self._theirs, 1.0 - decay)

    @torch.no_grad()
    def model(self) -> Model:
        """The averaged network, in evaluation mode; all processes have to ask. What is no weight (scaling, drawn features)
        is as in the other."""
        for own, average in zip(self._plain.parameters(), self.weights.values(), strict=True):
            own.copy_(whole(average))
        for buffer, theirs in zip(self._plain.buffers(), self._followed.buffers(), strict=True):
            buffer.copy_(theirs)
        return self._plain
