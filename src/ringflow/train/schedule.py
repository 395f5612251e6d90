"""How fast the weights move, over the course of a training."""

from __future__ import annotations

import math


def rate_factor(fraction: float, warmup: float, final: float) -> float:
    """Rate relative to the highest, when `fraction` of the training is done.

    It rises in a straight line during the share `warmup`, then follows half a cosine down to `final`.
    """
    fraction = min(max(fraction, 0.0), 1.0)
    if fraction < warmup:
        return fraction / warmup
    along = (fraction - warmup) / (1.0 - warmup)
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * along))


def rewarmed(events: int, resized_at: int, span: float) -> float:
    """What the rate is multiplied with after a change of the number of lanes; `resized_at` is 0 if there was none.

    The optimiser knows only steps of the other size: the rate rises from half of its new value, in a straight line over
    `span` events (RASDA, M. Aach et al., arXiv:2412.02729).
    """
    if not resized_at or not span:
        return 1.0
    return min(1.0, 0.5 + 0.5 * (events - resized_at) / span)


def ruled_rate(rate: float, rule: str, elements: int, reference: int) -> float:
    """The highest rate for steps of a number of elements, from the one for steps of `reference` elements.

    Gradients of larger batches are less noisy and are followed further: in proportion for plain gradient descent
    (P. Goyal et al., arXiv:1706.02677), with the square root for optimisers that divide by the size of the gradient
    (S. Malladi et al., arXiv:2205.10287).
    """
    power = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[rule]
    return float(rate * (elements / reference) ** power)
