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
