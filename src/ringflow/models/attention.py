"""Exact attention between all elements of an event, without padding.

On an accelerator one kernel takes events of all lengths side by side. Elsewhere events of similar length are padded to the
longest of them, a few at a time, and the padding is masked out of the softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from ringflow.models.block import Mixer
from ringflow.models.layout import Layout
from ringflow.models.rotary import turn, turn_back
from ringflow.models.settings import ModelSettings

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

    def forward(self, x_ND: Tensor, rotary: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
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
