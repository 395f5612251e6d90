"""How the weights move: AdamW, LAMB for large batches, and the rate over the course of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
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


class Lamb(Optimizer):
    """Steps of Adam, scaled per tensor to the size of the tensor (You et al., arXiv:1904.00962, algorithm 2).

    The trust ratio is phi(|w|) / |u|, with u the step of Adam plus the decoupled weight decay, and phi(z) = z kept within
    `bounds`: the lower one lets a tensor that starts at zero leave it, the upper one is that of the paper's training of
    BERT. Groups with `adapted=False` move like Adam.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bounds: tuple[float, float] = (1.0, 10.0),
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "bounds": bounds}
        super().__init__(params, {**defaults, "adapted": True})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move the weights once, along the gradients they have."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                updates = self._updates(weights, group)
                if group["adapted"]:
                    torch._foreach_mul_(updates, _trust_ratios(weights, updates, *group["bounds"]))
                torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _updates(self, weights: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """The step of Adam with bias correction, plus the weight decay."""
        for weight in weights:
            if not self.state[weight]:
                zeros = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                self.state[weight] = {"step": torch.zeros(()), **zeros}
            self.state[weight]["step"] += 1  # on the host, where reading it waits for nobody
        states = [self.state[weight] for weight in weights]
        gradients: list[Tensor] = [weight.grad for weight in weights if weight.grad is not None]
        first, second = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        (beta1, beta2), step = group["betas"], int(states[0]["step"])
        torch._foreach_lerp_(first, gradients, 1.0 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1.0 - beta2)
        spread = torch._foreach_sqrt(second)
        torch._foreach_div_(spread, math.sqrt(1.0 - beta2**step))
        torch._foreach_add_(spread, group["eps"])
        updates = list(torch._foreach_div(first, 1.0 - beta1**step))
        torch._foreach_div_(updates, spread)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        return updates


def _trust_ratios(weights: list[Tensor], updates: list[Tensor], least: float, most: float) -> list[Tensor]:
    sizes = torch.stack(torch._foreach_norm(weights)).clamp(least, most)
    steps = torch.stack(torch._foreach_norm(updates))
    return list(torch.where(steps > 0, sizes / steps, 1.0).unbind())
