"""What strategies share that cut one copy of the network into parts: gradients of copies, and the length of all of them."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ringflow.models.model import Model
from ringflow.train.parallel.places import Places
from ringflow.train.parallel.spread import Spread
from ringflow.train.phases import Phases
from ringflow.train.team import Team


class InParts(Spread):
    """A part of a copy. `within` are the parts of this copy, `across` the same part of all copies."""

    def __init__(self, model: Model, places: Places, team: Team, phases: Phases) -> None:
        super().__init__(model, places, phases)
        self._within, self._across = team.split(places.parts)

    @abstractmethod
    def counts(self, name: str) -> bool:
        """Whether this part is the one of its copy that counts a weight when lengths are added up."""

    @torch.no_grad()
    def mean_over_copies(self) -> None:
        """Put the mean gradient of all copies in the place of each one's."""
        gradients = [weight.grad for _, weight in self.held() if weight.grad is not None]
        if self.places.copies == 1 or not gradients:
            return
        with self._phases("communication"):
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            self._across.add_(flat)
            flat /= self.places.copies
            first = 0
            for gradient in gradients:
                gradient.copy_(flat[first : first + gradient.numel()].view_as(gradient))
                first += gradient.numel()

    @torch.no_grad()
    def clip(self, longest: float) -> Tensor:
        held = [(name, weight.grad) for name, weight in self.held() if weight.grad is not None]
        counted = [gradient for name, gradient in held if self.counts(name)]
        squares = torch.stack(torch._foreach_norm(counted)).square().sum()
        with self._phases("communication"):
            self._within.add_(squares)
        length = squares.sqrt()
        shorter = (longest / (length + 1e-6)).clamp(max=1.0)  # as torch does it
        torch._foreach_mul_([gradient for _, gradient in held], shorter)
        return length
