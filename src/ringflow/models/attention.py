"""Exact attention between all elements of an event, without padding; rotary positions and the layers of every backbone.

On an accelerator one kernel takes events of all lengths side by side. Elsewhere events of similar length are padded to the
longest of them, a few at a time, and the padding is masked out of the softmax.

An element's vector is turned by angles that are multiples of where it is in the detector. The product of two turned vectors
depends on the distance of their elements only, at wavelengths from the whole detector down to the smallest distance to be
resolved. Azimuth takes whole-number frequencies: going around the beam once changes nothing, and turning the event changes
nothing. (Idea of rotary embeddings: Su et al., arXiv:2104.09864.)
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from ringflow.elements.batch import ElementBatch
from ringflow.models.settings import ModelSettings

#: Cosine and signed sine [N, E] of the angles by which the elements are turned.
Turns = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Layout:
    """Events of a packed batch. `longest` is an upper bound of the elements of an event."""

    offsets_B: Tensor  # int32, B + 1 numbers
    event_N: Tensor  # int64
    longest: int

    @property
    def num_events(self) -> int:
        """B."""
        return len(self.offsets_B) - 1

    @property
    def counts_B(self) -> Tensor:
        """Elements per event."""
        return self.offsets_B.diff()

    @classmethod
    def of(cls, batch: ElementBatch, longest: int | None = None) -> Layout:
        """The layout of a batch; without a known bound the longest event is looked up."""
        if longest is None:
            longest = int(batch.counts_B.max()) if batch.num_events else 0
        return cls(batch.offsets_B.to(torch.int32), batch.event_N, longest)


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

    def forward(self, position_N2: Tensor) -> Turns:
        """Cosine and signed sine that `turn` takes, [N, E]; in full precision, since an angle may be hundreds of turns."""
        angle_NP = (position_N2.float()[:, None] * self.frequency_P2.float()).sum(2)
        cosine, sine = angle_NP.cos(), angle_NP.sin()
        return torch.cat([cosine, cosine], dim=1), torch.cat([-sine, sine], dim=1)


def turn(x_NHE: Tensor, cosine_NE: Tensor, sine_NE: Tensor) -> Tensor:
    """Turn the pairs (i, i + E/2) of every head."""
    cosine, sine = cosine_NE[:, None].to(x_NHE.dtype), sine_NE[:, None].to(x_NHE.dtype)
    return torch.addcmul(x_NHE * cosine, x_NHE.roll(x_NHE.shape[-1] // 2, -1), sine)


def turn_back(x_NHE: Tensor, cosine_NE: Tensor, sine_NE: Tensor) -> Tensor:
    """Undo `turn`."""
    cosine, sine = cosine_NE[:, None].to(x_NHE.dtype), sine_NE[:, None].to(x_NHE.dtype)
    return torch.addcmul(x_NHE * cosine, x_NHE.roll(x_NHE.shape[-1] // 2, -1), sine, value=-1.0)


@torch.no_grad()
def from_leader(rotary: Turns, score_N: Tensor, layout: Layout) -> Turns:
    """The turns with azimuth counted from the leader: the element of the event that has the highest score.

    Products of turned vectors stay what they are. Projections of them, as a hash or random features take, do not depend any
    more on how the event lies around the beam, if the score does not.
    """
    if score_N.shape[0] == 0:
        return rotary
    cosine, sine = rotary
    if layout.num_events == 1:
        leader = score_N.argmax(0, keepdim=True)
    else:
        event_N = layout.event_N
        best_B = score_N.new_full((layout.num_events,), -torch.inf).scatter_reduce(0, event_N, score_N, "amax")
        candidate_N = torch.where(score_N == best_B[event_N], torch.arange(len(score_N), device=score_N.device), 0)
        leader = candidate_N.new_zeros(layout.num_events).scatter_reduce(0, event_N, candidate_N, "amax")[event_N]
    in_azimuth_E = torch.arange(cosine.shape[1], device=cosine.device) % (cosine.shape[1] // 2) >= cosine.shape[1] // 4
    leader_cosine = torch.where(in_azimuth_E, cosine.index_select(0, leader), 1.0)
    leader_sine = torch.where(in_azimuth_E, sine.index_select(0, leader), 0.0)
    return cosine * leader_cosine + sine * leader_sine, sine * leader_cosine - cosine * leader_sine


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "swish": nn.SiLU,
    "gelu": nn.GELU,
}


class Mixer(nn.Module):
    """How the elements of an event exchange what they know; the one part in which backbones differ."""

    @abstractmethod
    def forward(self, x_ND: Tensor, rotary: Turns, layout: Layout) -> Tensor:
        """Messages [N, D] from the rows [N, D], the turns of their positions, and where events begin and end."""


class Block(nn.Module):
    """One layer: normalised, residual. Without a mixer elements do not talk."""

    def __init__(self, settings: ModelSettings, mixer: Mixer | None) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm_mixer = nn.LayerNorm(settings.width) if mixer is not None else None
        self.norm = nn.LayerNorm(settings.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(settings.width, settings.hidden),
            ACTIVATIONS[settings.activation](),
            nn.Linear(settings.hidden, settings.width),
        )
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x_ND: Tensor, rotary: Turns, layout: Layout) -> Tensor:
        """The rows after this layer."""
        return self.transform(self.mix(x_ND, rotary, layout))

    def mix(self, x_ND: Tensor, rotary: Turns, layout: Layout) -> Tensor:
        """The first half: the rows after elements have talked to each other."""
        if self.mixer is None or self.norm_mixer is None:
            return x_ND
        out: Tensor = x_ND + self.dropout(self.mixer(self.norm_mixer(x_ND), rotary, layout))
        return out

    def transform(self, x_ND: Tensor) -> Tensor:
        """The second half: every row for itself."""
        out: Tensor = x_ND + self.dropout(self.feed_forward(self.norm(x_ND)))
        return out


#: Events share a padded group while the shortest has at least this share of the length of the longest.
_ALIKE = 0.8
#: Rows of a padded group at most, so that its memory stays small.
_GROUP_ROWS = 1 << 14
#: An accelerator's kernel takes heads whose width is a multiple of this.
_KERNEL_WIDTH = 8


class AttentionMixer(Mixer):
    """Softmax attention. Values are turned like keys and turned back, so that what arrives tells where it came from."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.to_qkv = nn.Linear(settings.width, 3 * settings.width_of_heads)
        self.to_out = nn.Linear(settings.width_of_heads, settings.width)

    def forward(self, x_ND: Tensor, rotary: Turns, layout: Layout) -> Tensor:
        """What every element hears from the others of its event."""
        qkv = turn(self.to_qkv(x_ND).unflatten(1, (3 * self.heads, -1)), *rotary)
        query, key, value = qkv.chunk(3, dim=1)
        heard = self.attend(query, key, value, layout)
        out: Tensor = self.to_out(turn_back(heard, *rotary).flatten(1))
        return out

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
        """Softmax of the products with the others of the event, times their values."""
        return attend(query, key, value, layout.offsets_B, layout.longest)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: Tensor,
    longest: int,
    *,
    scale: float | None = None,
    order: Tensor | None = None,
) -> Tensor:
    """Softmax attention of packed sequences [rows, heads, width] that begin and end at `offsets` (int32).

    `longest` need only bound their lengths; `scale` multiplies the products, by default 1 / sqrt(width). With an `order`
    sequence b is not the rows but `order[offsets[b]:offsets[b + 1]]`.
    """
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        if order is not None:
            query, key, value = (part.index_select(0, order) for part in (query, key, value))
        packed = _attend_packed(query, key, value, offsets, longest, scale)
        return packed if order is None else packed.index_select(0, _inverse(order))
    if len(offsets) == 2 and order is None:
        q, k, v = (part.transpose(0, 1)[None] for part in (query, key, value))
        return scaled_dot_product_attention(q, k, v, scale=scale)[0].transpose(0, 1)
    return _attend_in_groups(query, key, value, offsets, scale, order)


def _attend_packed(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int, scale: float | None
) -> Tensor:
    """The same with the kernel of an accelerator. Heads of other widths than it takes get columns of zeros, which change
    neither products nor sums."""
    from torch.nn.attention.varlen import varlen_attn

    width = query.shape[-1]
    if missing := -width % _KERNEL_WIDTH:
        scale = width**-0.5 if scale is None else scale
        query, key, value = (pad(part, (0, missing)) for part in (query, key, value))
    heard = varlen_attn(query, key, value, offsets, offsets, longest, longest, scale=scale)
    assert isinstance(heard, Tensor), "nothing but the result was asked for"
    return heard[..., :width]


def _attend_in_groups(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, scale: float | None, order: Tensor | None
) -> Tensor:
    """The same, a few padded sequences of similar length at a time."""
    lengths = offsets.diff().long()
    heard, places = [query.new_empty(0, *query.shape[1:])], [lengths.new_empty(0)]
    for group in groups_of_similar_length(lengths.tolist()):
        index = torch.tensor(group, device=query.device)
        length = lengths[index][:, None]
        column = torch.arange(int(length.max()), device=query.device)
        valid = column < length  # [group, longest]
        rows = torch.where(valid, offsets[index].long()[:, None] + column, 0)
        if order is not None:
            rows = order[rows]
        q, k, v = (part[rows].transpose(1, 2) for part in (query, key, value))
        mask = None if bool(valid.all()) else valid[:, None, None]
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2)
        heard.append(out.flatten(0, 1) if mask is None else out[valid])
        places.append(rows.flatten() if mask is None else rows[valid])
    return torch.cat(heard)[_inverse(torch.cat(places))]


def _inverse(order: Tensor) -> Tensor:
    """Where each row went."""
    return torch.empty_like(order).index_copy(0, order, torch.arange(len(order), device=order.device))


def groups_of_similar_length(lengths: list[int]) -> list[list[int]]:
    """Sequences in groups of nearly one length, none of more than `_GROUP_ROWS` padded rows; empty ones are in none."""
    groups: list[list[int]] = []
    for event in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        group = groups[-1] if groups else []
        longest = lengths[group[0]] if group else 0
        if lengths[event] == 0:
            break
        if group and lengths[event] >= _ALIKE * longest and (len(group) + 1) * longest <= _GROUP_ROWS:
            group.append(event)
        else:
            groups.append([event])
    return groups
