"""Mixers of a single event in operations that ONNX has: no loop over values, no sorted search.

They compute the same as the ones they replace, with the same weights.

The ONNX standard spells attention with its whole matrix: 805 MB at 8,192 elements and three heads. ONNX Runtime has an
operation of its own that never makes it, in half of the time; a portable file does without.

Letters of tensor names: N element (S: sorted by key), K bin, L place in a bin, H head, E head width.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ringflow.models.attention import AttentionMixer, Layout, Mixer
from ringflow.models.graph import GraphMixer
from ringflow.models.settings import ModelSettings


def for_one_event(mixer: Mixer, settings: ModelSettings, *, portable: bool) -> Mixer:
    """The mixer itself if it can be exported, else its like that can; only a portable one also runs in torch."""
    kind: type[Mixer]
    if isinstance(mixer, GraphMixer):
        kind = OneEventGraphMixer
    elif isinstance(mixer, AttentionMixer) and not portable:
        kind = FusedAttentionMixer
    else:
        return mixer
    exportable = kind(settings)
    exportable.load_state_dict(mixer.state_dict())
    return exportable


class FusedAttentionMixer(AttentionMixer):
    """Attention as ONNX Runtime computes it."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
        """Softmax of the products with all others, times their values."""
        flat = tuple(part.flatten(1)[None] for part in (query, key, value))
        heard = torch.onnx.ops.symbolic(
            "com.microsoft::MultiHeadAttention",
            flat,
            {"num_heads": self.heads},
            dtype=query.dtype,
            shape=flat[0].shape,
            version=1,
        )
        return heard[0].view(*query.shape)


class OneEventGraphMixer(GraphMixer):
    """The learned graph with its bins side by side in one table, filled up to the longest of them."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, hashed_N: Tensor | None, layout: Layout) -> Tensor:
        """Softmax of the products with the others of the bin, times their values."""
        assert hashed_N is not None, "an event of unknown length is always hashed"
        table = _bin_table(hashed_N, self.bin_size)
        slots = table.num_bins * table.longest
        element_T = torch.zeros(slots, dtype=torch.int64).scatter(0, table.slot_N, torch.arange(hashed_N.shape[0]))
        filled_T = torch.zeros(slots).scatter(0, table.slot_N, torch.ones(hashed_N.shape[0])) > 0.5
        q, k, v = (
            part.index_select(0, element_T).view(table.num_bins, table.longest, *part.shape[1:]).transpose(1, 2)
            for part in (query, key, value)
        )
        mask = filled_T.view(table.num_bins, 1, 1, table.longest)
        heard = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
        return heard.transpose(1, 2).reshape(slots, *value.shape[1:]).index_select(0, table.slot_N)


class _BinTable(NamedTuple):
    """Bins as the rows of a table."""

    num_bins: int
    longest: int  # columns of the table
    slot_N: Tensor  # where each element is in the table


def _bin_table(hashed_N: Tensor, bin_size: int) -> _BinTable:
    """The bins of `models.graph.bins_of` for one event."""
    rows = hashed_N.shape[0]
    sorted_S, order_S = torch.sort(hashed_N)
    place_S = torch.arange(rows)
    run_S = pad((sorted_S[1:] != sorted_S[:-1]).long().cumsum(0), (1, 0))[:rows]
    first_S = _first_places(run_S, place_S)
    first_S = first_S + (place_S - first_S).div(bin_size, rounding_mode="floor") * bin_size
    num_bins = (rows + bin_size - 1) // bin_size
    bin_S = (first_S * num_bins).div(rows, rounding_mode="floor")
    within_S = place_S - _first_places(bin_S, place_S)
    # Two at least: the exporter takes axes of one for something else.
    longest = cast(int, (within_S.max() + 1).clamp_min(2).item())
    torch._check(longest >= 2)  # type: ignore[no-untyped-call]
    slot_N = torch.zeros_like(order_S).scatter(0, order_S, bin_S * longest + within_S)
    return _BinTable(num_bins, longest, slot_N)


def _first_places(group_S: Tensor, place_S: Tensor) -> Tensor:
    """The first place of everyone's group."""
    rows = place_S.shape[0]
    return torch.full((rows,), rows).scatter_reduce(0, group_S, place_S, "amin")[group_S]
