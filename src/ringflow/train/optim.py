"""How the weights move: AdamW, LAMB for large batches, and the rate over the course of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from ringflow.train.settings import OptimizerSettings


def make_optimizer(weights: Sequence[nn.Parameter], settings: OptimizerSettings) -> Optimizer:
    """The optimiser of the weights of a network. Weight decay is for matrices, not for biases and norms."""
    matrices = [weight for weight in weights if weight.ndim >= 2]
    vectors = [weight for weight in weights if weight.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if settings.name == "lamb":
        groups[1]["adapted"] = False
        return Lamb(groups, lr=settings.rate, betas=settings.betas)
    try:
        return AdamW(groups, lr=settings.rate, betas=settings.betas, fused=True)
    except RuntimeError:  # not every device has the fused kernel
        return AdamW(groups, lr=settings.rate, betas=settings.betas)


def rate_at(settings: OptimizerSettings, events: int, total: int, elements: int, resized_at: int = 0) -> float:
    """The rate of a step of so many elements, after which `events` of `total` have been shown.

    Gradients of larger steps are less noisy and are followed further: in proportion for plain gradient descent (P. Goyal et
    al., arXiv:1706.02677), with the square root for optimisers that divide by the size of the gradient (S. Malladi et al.,
    arXiv:2205.10287). The rate rises in a straight line, then follows half a cosine. After a change of the number of lanes at
    `resized_at` events (0: there was none) the optimiser knows only steps of the other size: the rate rises again from half
    of its value (RASDA, M. Aach et al., arXiv:2412.02729).
    """
    power = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[settings.rule]
    highest = settings.rate * (elements / settings.rule_elements) ** power
    fraction, warmup = min(events / total, 1.0), settings.warmup
    if fraction < warmup:
        factor = fraction / warmup
    else:
        along = (fraction - warmup) / (1.0 - warmup)
        factor = settings.final + (1.0 - settings.final) * 0.5 * (1.0 + math.cos(math.pi * along))
    span = settings.rewarmup * total if resized_at else 0.0
    again = min(1.0, 0.5 + 0.5 * (events - resized_at) / span) if span else 1.0
    return float(highest * factor * again)


class Lamb(AdamW):
    """Steps of Adam, scaled per tensor to the size of the tensor (You et al., arXiv:1904.00962, algorithm 2).

    The trust ratio is phi(|w|) / |u|, with u the step of Adam plus the decoupled weight decay, and phi(z) = z kept within
    `bounds`: the lower one lets a tensor that starts at zero leave it, the upper one is that of the paper's training of
    BERT. Groups with `adapted=False` move like Adam.
    """

    def __init__(self, params: Any, bounds: tuple[float, float] = (1.0, 10.0), **options: Any) -> None:
        super().__init__(params, eps=1e-6, **options)
        self._bounds = bounds

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move the weights once, along the gradients they have."""
        held = [weight for group in self.param_groups for weight in group["params"] if weight.grad is not None]
        before = {weight: weight.clone() for weight in held}
        asked = [(group["lr"], group["weight_decay"]) for group in self.param_groups]
        # A step of Adam that begins at zero, at the rate one, is the step itself.
        for weight in before:
            weight.zero_()
        for group in self.param_groups:
            group["lr"], group["weight_decay"] = 1.0, 0.0
        super().step()
        for group, (rate, decay) in zip(self.param_groups, asked, strict=True):
            group["lr"], group["weight_decay"] = rate, decay
            for weight in [weight for weight in group["params"] if weight in before]:
                update = decay * before[weight] - weight
                if group.get("adapted", True):
                    length = update.norm()
                    update *= torch.where(length > 0, before[weight].norm().clamp(*self._bounds) / length, 1.0)
                weight.copy_(before[weight] - rate * update)
