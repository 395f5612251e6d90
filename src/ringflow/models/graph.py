"""A learned graph in linear time and memory: a locality-sensitive hash puts elements that are alike into small bins, and inside
a bin every pair is joined with a weight that falls with their distance (idea: GNN-LSH, arXiv:2101.08578).

The weights of a row, exp(-t |x_i - x_j|^2) over their sum, are a softmax of 2t x_i.x_j - t |x_j|^2, since |x_i|^2 is the same
in the whole row. So bins are computed like the events of exact attention, with the second term in columns of their own.

Letters of tensor names: N element (S: sorted by bin), B event, D width, H head, E head width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ringflow.models.attention import Layout, Mixer, Turns, attend, from_leader, turn, turn_back
from ringflow.models.settings import ModelSettings

#: Steps of the position within a bucket of the hash. Equal elements then have equal keys whatever the last bit of a product.
_STEPS = 1 << 16
#: Columns added to a head for the squared lengths; kernels want a multiple of 8.
_EXTRA = 8


class Bins(NamedTuple):
    """A packed batch sorted into bins."""

    order_S: Tensor | None  # element at each place; None: as they are
    offsets: Tensor  # int32: bin b is places offsets[b] to offsets[b + 1]; some may be empty
    longest: int  # no bin has more places


class GraphMixer(Mixer):
    """Gated graph convolution over neighbours in a learned space that also knows where an element is."""

    hash_KD: Tensor

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.bin_size = settings.graph.bin_size
        width = settings.width_of_heads
        self.to_parts = nn.Linear(settings.width, 4 * width)
        self.to_out = nn.Linear(width, settings.width)
        self.log_temperature_H = nn.Parameter(torch.full((self.heads,), -0.5 * math.log(settings.width_of_head)))
        # The last projection sorts within the buckets of the others. Drawn per layer, so that neighbourhoods differ.
        self.register_buffer("hash_KD", torch.randn(settings.graph.hashes + 1, width))

    def forward(self, x_ND: Tensor, rotary: Turns, layout: Layout) -> Tensor:
        """What every element hears from its bin, and how much of it it takes instead of its own."""
        several = layout.longest > self.bin_size  # if not, every event is a bin and nothing needs to be sorted
        if several:
            rotary = from_leader(rotary, x_ND[:, 0], layout)  # an event keeps its bins when it is turned
        parts = self.to_parts(x_ND).unflatten(1, (4 * self.heads, -1))
        turned, own, gate = parts.split([2 * self.heads, self.heads, self.heads], dim=1)
        space, value = turn(turned, *rotary).chunk(2, dim=1)
        hashed_N = hash_keys(space.detach().flatten(1), self.hash_KD) if several else None
        heard = self._convolve(space, value, hashed_N, layout)
        mixed = torch.lerp(own, turn_back(heard, *rotary), gate.sigmoid())
        out: Tensor = self.to_out(mixed.flatten(1))
        return out

    def attend(self, query: Tensor, key: Tensor, value: Tensor, hashed_N: Tensor | None, layout: Layout) -> Tensor:
        """Softmax of the products with the others of the bin, times their values; without a hash an event is a bin."""
        bins = Bins(None, layout.offsets_B, layout.longest)
        if hashed_N is not None:
            bins = bins_of(hashed_N, layout, self.bin_size)
        return attend(query, key, value, bins.offsets, bins.longest, scale=1.0, order=bins.order_S)

    def _convolve(self, space: Tensor, value: Tensor, hashed_N: Tensor | None, layout: Layout) -> Tensor:
        """Sum of the values of a bin, weighted by a normalised Gaussian of the distance."""
        temperature_H1 = self.log_temperature_H.exp()[:, None]
        query = (2.0 * temperature_H1).to(space.dtype) * space
        # With the rounded numbers that are multiplied, so that an element is nearest to itself in low precision too.
        length = -0.5 * (query.float() * space.float()).sum(-1, keepdim=True)
        coarse = length.to(space.dtype)
        fine = (length - coarse.float()).to(space.dtype)
        rest = pad(torch.cat([coarse, fine], dim=-1), (0, _EXTRA - 2))
        query = torch.cat([query, torch.ones_like(rest)], dim=-1)
        key = torch.cat([space, rest], dim=-1)
        padded = pad(value, (0, _EXTRA))
        return self.attend(query, key, padded, hashed_N, layout)[..., :-_EXTRA]


def hash_keys(space_ND: Tensor, hash_KD: Tensor) -> Tensor:
    """An integer per element, near for elements that are alike: its bucket (the projection it lies along most, and on which
    side), then its place along one more projection."""
    with torch.autocast(space_ND.device.type, enabled=False):
        direction = nn.functional.normalize(space_ND.float(), dim=1)
        projected = direction @ hash_KD.float().T
    coarse, fine = projected[:, :-1], projected[:, -1]
    bucket = torch.cat([coarse, -coarse], dim=1).argmax(1)
    return bucket * _STEPS + (fine.sigmoid() * _STEPS).long().clamp_max(_STEPS - 1)


def bins_of(key_N: Tensor, layout: Layout, bin_size: int) -> Bins:
    """Sort every event by key and cut it into bins of nearly one size, at most `bin_size` but for elements of equal keys.

    Those go where the first of them goes, so that it does not matter in which order they came; only of more than `bin_size`
    equal ones a next bin takes the rest. No shape depends on a value, so that nothing waits for the device.
    """
    rows, device = len(key_N), key_N.device
    offsets_B, event_N = layout.offsets_B.long(), layout.event_N
    sorted_key, order = torch.sort((event_N << 32) + key_N)
    place = torch.arange(rows, device=device)
    is_first = torch.cat([sorted_key.new_ones(1, dtype=torch.bool), sorted_key[1:] != sorted_key[:-1]])[:rows]
    first = torch.where(is_first, place, 0).cummax(0).values
    first = first + (place - first).div(bin_size, rounding_mode="floor") * bin_size
    # The events are in their order already: the event of a place is that of the row of the same number.
    counts_B = offsets_B.diff()
    bins_B = (counts_B + bin_size - 1).div(bin_size, rounding_mode="floor")
    rank = first - offsets_B[event_N]
    within = (rank * bins_B[event_N]).div(counts_B[event_N], rounding_mode="floor")
    bin_of = (bins_B.cumsum(0) - bins_B)[event_N] + within
    at_most = -(-rows // bin_size) + layout.num_events
    offsets = torch.searchsorted(bin_of, torch.arange(at_most + 1, device=device)).int()
    return Bins(order, offsets, 2 * bin_size - 1)
