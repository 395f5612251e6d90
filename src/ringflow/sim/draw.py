"""Random numbers for the simulation: one seeded stream on the device the events are simulated on."""

from __future__ import annotations

import torch
from torch import Tensor


class Draw:
    """Draws from one stream. The same seed, device type and calls give the same numbers."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self._stream = torch.Generator(device=device).manual_seed(seed)

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform in [0, 1), in the shape and dtype of `like`."""
        return torch.empty_like(like).uniform_(generator=self._stream)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal."""
        return torch.empty_like(like).normal_(generator=self._stream)

    def exponential(self, like: Tensor) -> Tensor:
        """Exponential of mean one."""
        return torch.empty_like(like).exponential_(generator=self._stream)

    def poisson(self, mean: Tensor) -> Tensor:
        """Poisson counts."""
        return torch.poisson(mean, generator=self._stream)

    def gamma(self, shape: Tensor) -> Tensor:
        """Gamma of unit scale."""
        return torch._standard_gamma(shape, generator=self._stream)

    def index(self, like: Tensor, high: int) -> Tensor:
        """Integers in [0, high), one for each row of `like`."""
        return torch.randint(high, like.shape[:1], generator=self._stream, device=self.device)
