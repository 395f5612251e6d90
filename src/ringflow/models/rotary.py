"""Rotary positions: an element's vector is turned by angles that are multiples of where it is in the detector.

The product of two turned vectors depends on the distance of their elements only, at wavelengths from the whole detector down
to the smallest distance to be resolved. Azimuth takes whole-number frequencies: going around the beam once changes nothing,
and turning the event changes nothing. (Idea of rotary embeddings: Su et al., arXiv:2104.09864.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ringflow.models.layout import Layout


class RotaryPositions(nn.Module):
    """Angles of every element, for heads of `head_width` numbers: half of the pairs turn with eta, half with phi."""

    frequency_P2: Tensor

    def __init__(self, head_width: int, finest: float) -> None:
        super().__init__()
        per_axis = head_width // 4
        highest = 1.0 / finest
        steps = torch.linspace(0.0, math.log(highest), max(per_axis - 1, 1)).exp()[: max(per_axis - 1, 0)]
        eta = torch.cat([torch.zeros(1), steps])[:per_axis]  # the first pair carries content without a position
        pairs = torch.zeros(head_width // 2, 2)
        pairs[:per_axis, 0] = eta
        pairs[per_axis : 2 * per_axis, 1] = eta.round()
        self.register_buffer("frequency_P2", pairs)

    def forward(self, position_N2: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine that `turn` takes, [N, E]; in full precision, since an angle may be hundreds of turns."""
        angle_NP = (position_N2.float()[:, None] * self.frequency_P2.float()).sum(2)
        cosine, sine = angle_NP.cos(), angle_NP.sin()
        return torch.cat([cosine, cosine], dim=1), torch.cat([-sine, sine], dim=1)


def turn(x_NHE: Tensor, cosine_NE: Tensor, sine_NE: Tensor) -> Tensor:
    """Turn the pairs (i, i + E/2) of every head."""
    cosine, sine = cosine_NE[:, None].to(x_NHE.dtype), sine_NE[:, None].to(x_NHE.dtype)
    return torch.addcmul(x_NHE * cosine, _swapped(x_NHE), sine)


def turn_back(x_NHE: Tensor, cosine_NE: Tensor, sine_NE: Tensor) -> Tensor:
    """Undo `turn`."""
    cosine, sine = cosine_NE[:, None].to(x_NHE.dtype), sine_NE[:, None].to(x_NHE.dtype)
    return torch.addcmul(x_NHE * cosine, _swapped(x_NHE), sine, value=-1.0)


@torch.no_grad()
def from_leader(rotary: tuple[Tensor, Tensor], score_N: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The turns with azimuth counted from the element of the event that has the highest score.

    Products of turned vectors stay what they are. Projections of them, as a hash or random features take, do not depend any
    more on how the event lies around the beam, if the score does not.
    """
    if score_N.shape[0] == 0:
        return rotary
    cosine, sine = rotary
    leader = _leaders(score_N, layout)
    in_azimuth_E = torch.arange(cosine.shape[1], device=cosine.device) % (cosine.shape[1] // 2) >= cosine.shape[1] // 4
    leader_cosine = torch.where(in_azimuth_E, cosine.index_select(0, leader), 1.0)
    leader_sine = torch.where(in_azimuth_E, sine.index_select(0, leader), 0.0)
    return cosine * leader_cosine + sine * leader_sine, sine * leader_cosine - cosine * leader_sine


def _leaders(score_N: Tensor, layout: Layout) -> Tensor:
    """For every element the row of its event's leader; of a single event only one."""
    if layout.num_events == 1:
        return score_N.argmax(0, keepdim=True)
    event_N = layout.event_N
    best_B = score_N.new_full((layout.num_events,), -torch.inf).scatter_reduce(0, event_N, score_N, "amax")
    candidate_N = torch.where(score_N == best_B[event_N], torch.arange(len(score_N), device=score_N.device), 0)
    leader_B = candidate_N.new_zeros(layout.num_events).scatter_reduce(0, event_N, candidate_N, "amax")
    return leader_B[event_N]


def _swapped(x_NHE: Tensor) -> Tensor:
    """The partner of every number of a pair."""
    return x_NHE.roll(x_NHE.shape[-1] // 2, -1)
