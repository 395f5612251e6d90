"""Attention in linear time and memory through positive orthogonal random features (FAVOR+, arXiv:2009.14794).

exp(q.k) is the mean over Gaussian w of exp(w.q - |q|^2/2) exp(w.k - |k|^2/2). With M such w every element becomes M positive
features, and the sum over keys is taken once per event instead of once per pair: out = Q' (K'^T V) / Q' (K'^T 1).

Letters of tensor names: C chunk, S row of a chunk, B event, H head, E head width, M random feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ringflow.models.attention import Layout, Mixer, Turns, from_leader, turn, turn_back
from ringflow.models.settings import ModelSettings

#: Rows summed as one matrix product. An event is cut into such chunks, since a sum per row would need M x E numbers of each.
_CHUNK_ROWS = 64
#: Logarithm of the weight of rows that only fill up a chunk: exp(.) is zero, and finite minus finite is never NaN.
_NOWHERE = -1e30


class KernelMixer(Mixer):
    """Approximate softmax attention. The features stay as they are until `redraw`; they are stored with the weights."""

    projection_ME: Tensor

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.to_qkv = nn.Linear(settings.width, 3 * settings.width_of_heads)
        self.to_out = nn.Linear(settings.width_of_heads, settings.width)
        self.register_buffer("projection_ME", orthogonal_gaussian(settings.kernel.features, settings.width_of_head))

    def redraw(self, generator: torch.Generator) -> None:
        """Draw other features, from a generator on the CPU."""
        features, width = self.projection_ME.shape
        self.projection_ME.copy_(orthogonal_gaussian(features, width, generator))

    def forward(self, x_ND: Tensor, rotary: Turns, layout: Layout) -> Tensor:
        """What every element hears from the others of its event."""
        rotary = from_leader(rotary, x_ND[:, 0], layout)  # the features turn with the event
        qkv = turn(self.to_qkv(x_ND).unflatten(1, (3 * self.heads, -1)), *rotary)
        chunks = Chunks.of(layout, x_ND.shape[0])
        query, key, value = chunks.cut(qkv).transpose(1, 2).chunk(3, dim=1)
        heard = chunks.join(kernel_attention(query, key, value, self.projection_ME, chunks).transpose(1, 2))
        out: Tensor = self.to_out(turn_back(heard, *rotary).flatten(1))
        return out


def redraw(model: nn.Module, generator: torch.Generator) -> None:
    """Draw other random features in every layer of a network that has them."""
    for module in model.modules():
        if isinstance(module, KernelMixer):
            module.redraw(generator)


def orthogonal_gaussian(features: int, width: int, generator: torch.Generator | None = None) -> Tensor:
    """Rows [features, width], each distributed like a Gaussian vector, `width` of them at a time at right angles."""
    blocks = -(-features // width)
    q, r = torch.linalg.qr(torch.randn(blocks, width, width, generator=generator))
    q = (
        q * r.diagonal(dim1=1, dim2=2).sign()[:, None]
    )  # without it the directions are not uniform, and the mean is biased
    directions = q.mT.flatten(0, 1)[:features]
    lengths = torch.randn(features, width, generator=generator).norm(dim=1, keepdim=True)
    rows: Tensor = directions * lengths
    return rows


@dataclass(frozen=True)
class Chunks:
    """Events cut into chunks of a fixed number of rows; a single event is one chunk. Shapes depend on shapes only."""

    size: int
    slot_N: Tensor | None  # where each row is among the rows of all chunks; None: nothing moves
    event_C: Tensor  # event of each chunk; B for chunks that nobody needs
    filled_CS: Tensor | None  # which rows of the chunks are elements
    num_events: int

    @classmethod
    def of(cls, layout: Layout, rows: int) -> Chunks:
        """The chunks of a packed batch."""
        device = layout.event_N.device
        if layout.num_events == 1 and rows:
            return cls(rows, None, torch.zeros(1, dtype=torch.int64, device=device), None, 1)
        offsets = layout.offsets_B.long()
        chunks_B = (offsets.diff() + _CHUNK_ROWS - 1).div(_CHUNK_ROWS, rounding_mode="floor")
        last_B = chunks_B.cumsum(0)
        at_most = -(-rows // _CHUNK_ROWS) + layout.num_events
        event_C = torch.searchsorted(last_B, torch.arange(at_most, device=device), right=True)
        within_N = torch.arange(rows, device=device) - offsets[layout.event_N]
        slot_N = _CHUNK_ROWS * (last_B - chunks_B)[layout.event_N] + within_N
        filled = torch.zeros(at_most * _CHUNK_ROWS, dtype=torch.bool, device=device)
        filled = filled.index_fill(0, slot_N, True).view(at_most, _CHUNK_ROWS)
        return cls(_CHUNK_ROWS, slot_N, event_C, filled, layout.num_events)

    def cut(self, x_N: Tensor) -> Tensor:
        """Rows [N, ...] as [C, S, ...], zeros where a chunk is not full."""
        if self.slot_N is None:
            return x_N[None]
        slots = x_N.new_zeros(len(self.event_C) * self.size, *x_N.shape[1:]).index_copy(0, self.slot_N, x_N)
        return slots.view(len(self.event_C), self.size, *x_N.shape[1:])

    def join(self, x_CS: Tensor) -> Tensor:
        """Rows [N, ...] from [C, S, ...]."""
        return x_CS[0] if self.slot_N is None else x_CS.flatten(0, 1).index_select(0, self.slot_N)

    def highest(self, x_C: Tensor) -> Tensor:
        """The largest of an event's chunks, for each of its chunks."""
        if self.slot_N is None:
            return x_C
        index = self.event_C.view(-1, *[1] * (x_C.dim() - 1)).expand_as(x_C)
        highest_B = x_C.new_full((self.num_events + 1, *x_C.shape[1:]), _NOWHERE).scatter_reduce(0, index, x_C, "amax")
        return highest_B.index_select(0, self.event_C)

    def total(self, x_C: Tensor) -> Tensor:
        """The sum over an event's chunks, for each of its chunks."""
        if self.slot_N is None:
            return x_C
        total_B = torch.zeros(self.num_events + 1, *x_C.shape[1:], device=x_C.device)  # in full precision
        return total_B.index_add(0, self.event_C, x_C.float()).to(x_C.dtype).index_select(0, self.event_C)


def kernel_attention(query: Tensor, key: Tensor, value: Tensor, projection_ME: Tensor, chunks: Chunks) -> Tensor:
    """Approximate softmax attention of [C, H, S, E], each row to all rows of its event."""
    with torch.autocast(query.device.type, enabled=False):
        features_q, features_k = _features(query.float(), key.float(), projection_ME.float(), chunks)
    features_q, features_k = features_q.to(value.dtype), features_k.to(value.dtype)
    weighed = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
    sums_CHME = chunks.total(features_k.mT @ weighed)
    heard = features_q @ sums_CHME
    return heard[..., :-1] / heard[..., -1:]


def _features(query: Tensor, key: Tensor, projection_ME: Tensor, chunks: Chunks) -> tuple[Tensor, Tensor]:
    """Features [C, H, S, M] of queries and keys up to factors that cancel in the ratio.

    Every feature of the keys is divided by its largest in the event, which the queries take back; then every query by its
    largest feature. So nothing overflows, and the normalisation is at least 1: the largest feature of a query is 1, and the
    key that is largest in it adds 1. It needs no small number added, and events know nothing of each other.
    """
    scale = query.shape[-1] ** -0.25
    projection_EM = projection_ME.T * scale
    log_k = key @ projection_EM - 0.5 * scale**2 * key.square().sum(-1, keepdim=True)
    if chunks.filled_CS is not None:
        log_k = log_k.masked_fill(~chunks.filled_CS[:, None, :, None], _NOWHERE)
    highest_CH1M = chunks.highest(log_k.detach().amax(2, keepdim=True))
    log_q = query @ projection_EM + highest_CH1M
    return (log_q - log_q.detach().amax(3, keepdim=True)).exp(), (log_k - highest_CH1M).exp()
