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
        # By inversion: torch's own sampler is five times slower on a CPU.
        return self.uniform(like).neg_().log1p_().neg_()

    def poisson(self, mean: Tensor) -> Tensor:
        """Poisson counts."""
        return torch.poisson(mean, generator=self._stream)

    def gamma(self, shape: Tensor) -> Tensor:
        """Gamma of unit scale."""
        return torch._standard_gamma(shape, generator=self._stream)

    def fast_gamma(self, shape: Tensor) -> Tensor:
        """Gamma of unit scale by the cube-root transformation, for millions of spots.

        The cube root of a gamma variate is nearly normal [Wilson, Hilferty, PNAS 17 (1931) 684]; shapes are raised by one to
        where that is good to a per cent, and brought back with the power of a uniform variate.
        """
        raised = shape + 1.0
        root = 1.0 - 1.0 / (9.0 * raised) + self.normal(shape) / (3.0 * torch.sqrt(raised))
        # log of u^(1/shape), by the exponential variate.
        return raised * root.clamp_min(0.0) ** 3 * torch.exp(-self.exponential(shape) / shape)
