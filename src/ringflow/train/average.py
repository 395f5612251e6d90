"""A moving average of the weights: less noisy than the weights themselves, and better by as much."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from ringflow.models.model import Model


class Average:
    """A network whose weights follow those of another. Its memory is short at first, so that it forgets the start."""

    def __init__(self, model: Model, decay: float) -> None:
        self._decay = decay
        self._followed = model
        self._model = deepcopy(model).eval().requires_grad_(False)
        self._own: list[Tensor] = list(self._model.parameters())
        self._theirs: list[Tensor] = list(model.parameters())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights as they are after step number `step`, counted from 0."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._own, self._theirs, 1.0 - decay)

    @torch.no_grad()
    def model(self) -> Model:
        """The averaged network, in evaluation mode. What is no weight (scaling, drawn features) is as in the other."""
        for own, theirs in zip(self._model.buffers(), self._followed.buffers(), strict=True):
            own.copy_(theirs)
        return self._model
