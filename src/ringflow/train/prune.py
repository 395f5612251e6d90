"""Make a network smaller: leave out the heads and the channels of feed-forward parts that matter least, the same number in
every layer, so that what remains is an ordinary network of other settings.

What something matters is how much the loss would change without it, to first order: the sum over elements of its value times
the gradient (P. Molchanov et al., arXiv:1906.10771). A pruned network is worse until it has been trained a little more.

    found = importance(model, batches, LossSettings())
    smaller = prune(model, found, heads=2, hidden=384)

Letters of tensor names: N element, L layer, H head, E head width, C channel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ringflow.base.errors import UsageError
from ringflow.elements.batch import ElementBatch
from ringflow.models.attention import Block
from ringflow.models.model import Model
from ringflow.train.loss import losses
from ringflow.train.settings import LossSettings


class Importance(NamedTuple):
    """What heads and channels of every layer matter; no heads where elements do not talk."""

    heads_LH: Tensor
    channels_LC: Tensor


def importance(model: Model, batches: Iterable[ElementBatch], settings: LossSettings) -> Importance:
    """Measure on events with targets, on the device of the model, which stays as it is."""
    was_training = model.training
    blocks = [block for block in model.eval().blocks if isinstance(block, Block)]
    heads = [_watch(block.mixer.get_submodule("to_out"), model.settings.heads) for block in blocks if block.mixer]
    channels = [_watch(block.feed_forward[2], model.settings.hidden) for block in blocks]
    try:
        for batch in batches:
            losses(model.predict(batch), batch, settings)["total"].backward()  # type: ignore[no-untyped-call]
    finally:
        for _, handle in (*heads, *channels):
            handle.remove()
        model.zero_grad(set_to_none=True)
        model.train(was_training)
    sums = ([watched for watched, _ in some] for some in (heads, channels))
    return Importance(*(torch.stack(some) if some else torch.zeros(0, 0) for some in sums))


def _watch(layer: nn.Module, parts: int) -> tuple[Tensor, RemovableHandle]:
    """Sums, over elements, the size of value times gradient in the parts of what a layer is given."""
    total = torch.zeros(parts)

    def see(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        value = given[0].detach()

        def add(gradient: Tensor) -> None:
            total.add_((value * gradient).view(len(value), parts, -1).sum(2).abs().sum(0).cpu())

        given[0].register_hook(add)  # type: ignore[no-untyped-call]

    return total, layer.register_forward_pre_hook(see)


def prune(model: Model, found: Importance, *, heads: int, hidden: int) -> Model:
    """The network, on the CPU, with the `heads` heads and `hidden` channels of every layer that matter most."""
    settings = model.settings
    for name, wanted, there in (("heads", heads, settings.heads), ("hidden", hidden, settings.hidden)):
        if not 1 <= wanted <= there:
            raise UsageError(f"cannot keep {wanted} of {there} {name}; choose from 1 to {there}")
    kept = {"heads": heads, "hidden": hidden, "head_width": settings.width_of_head}
    smaller = Model(type(settings).model_validate({**settings.model_dump(), **kept}))
    smaller.load_state_dict(
        {name: value for name, value in model.state_dict().items() if not name.startswith("blocks.")}, strict=False
    )
    for layer, (old, new) in enumerate(zip(model.blocks, smaller.blocks, strict=True)):
        weights = {name: value.cpu() for name, value in old.state_dict().items()}
        best = found.channels_LC[layer].topk(hidden).indices.sort().values
        for name, axis in (("0.weight", 0), ("0.bias", 0), ("2.weight", 1)):
            weights[f"feed_forward.{name}"] = weights[f"feed_forward.{name}"].index_select(axis, best)
        if settings.backbone != "mlp":
            best = found.heads_LH[layer].topk(heads).indices.sort().values
            weights |= {name: _of_heads(name, value, best, settings.heads) for name, value in weights.items()}
        new.load_state_dict(weights)
    return smaller.eval()


def _of_heads(name: str, value: Tensor, kept: Tensor, heads: int) -> Tensor:
    """A tensor of a layer without the numbers of heads that are left out."""
    part = name.removeprefix("mixer.")
    if part == "log_temperature_H":
        return value[kept]
    if part in ("to_out.weight", "hash_KD"):  # [..., H E]
        return value.view(len(value), heads, -1).index_select(1, kept).flatten(1)
    for layer, parts in (("to_qkv.", 3), ("to_parts.", 4)):  # [parts H E, ...]
        if part.startswith(layer):
            split = value.view(parts, heads, -1, *value.shape[1:])
            return split.index_select(1, kept).flatten(0, 2)
    return value
