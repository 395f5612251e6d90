"""A moving average of the weights: less noisy than the weights themselves, and better by as much."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ringflow.models.model import Model
from ringflow.train.parallel.spread import Spread


class Average:
    """Weights that follow those of a network, spread over processes as these are. The memory is short at first, so that the
    start is forgotten."""

    def __init__(self, followed: Spread, plain: Model, decay: float) -> None:
        """`plain` is a network of the same settings that is not spread; it is filled with the average when asked for."""
        self._decay, self._followed = decay, followed
        named = followed.model.named_parameters()
        self.weights: dict[str, Tensor] = {name: weight.detach().clone() for name, weight in named}
        held = dict(followed.held())
        self._own = [_here(self.weights[name]) for name in held]
        self._theirs = [_here(weight.detach()) for weight in held.values()]
        self._plain = plain.eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights as they are after step number `step`, counted from 0."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._own, self._theirs, 1.0 - decay)

    @torch.no_grad()
    def model(self) -> Model:
        """The averaged network, in evaluation mode; all processes have to ask. What is no weight (scaling, drawn features)
        is as in the other."""
        for own, (name, average) in zip(self._plain.parameters(), self.weights.items(), strict=True):
            own.copy_(self._followed.whole(name, average))
        for buffer, theirs in zip(self._plain.buffers(), self._followed.model.buffers(), strict=True):
            buffer.copy_(theirs)
        return self._plain


def _here(tensor: Tensor) -> Tensor:
    """The slice of a tensor that is here, as the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
