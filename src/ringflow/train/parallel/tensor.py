"""Every process of a copy has some heads and some channels of each layer (tensor parallel).

The layers that widen (to heads, to channels) are cut by outputs and take what all have; those that narrow are cut by inputs,
and what they give is added up (M. Shoeybi et al., arXiv:1909.08053). Everything else is the same in all parts: so are its
gradients, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ringflow.models.model import Model
from ringflow.train.batches import TrainingBatch
from ringflow.train.parallel import InParts, Loss, MeshPlace, Prepare
from ringflow.train.profile import Phases
from ringflow.train.world import World

_WIDENING, _NARROWING = ("mixer.to_qkv", "feed_forward.0"), ("mixer.to_out", "feed_forward.2")


class Sliced(InParts):
    """Tensor parallel, for backbones whose heads know nothing of each other."""

    def __init__(self, model: Model, place: MeshPlace, world: World, phases: Phases) -> None:
        super().__init__(_slice_of(model, place), place, world, phases)
        reduce = _Reduce(self._within, phases)
        for block in self.model.blocks:
            for name in (*_WIDENING, *_NARROWING):
                if name.startswith("mixer") and model.settings.backbone == "mlp":
                    continue
                parent, _, own = name.rpartition(".")
                kind = _Widening if name in _WIDENING else _Narrowing
                setattr(block.get_submodule(parent), own, kind(block.get_submodule(name), reduce))

    def counts(self, name: str) -> bool:
        return self.place.part == 0 or _axis(name) is not None

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        axis = _axis(name)
        if axis is None:
            return tensor
        slices = self._within.all_gather_(tensor)
        if "to_qkv" in name:  # queries, keys and values of some heads
            return torch.cat([slice.view(3, -1, *slice.shape[1:]) for slice in slices], dim=1).flatten(0, 1)
        return torch.cat(slices, dim=axis)

    @torch.no_grad()
    def put(self, name: str, target: Tensor, value: Tensor) -> None:
        target.copy_(_part(name, value, self.place))

    def accumulate(
        self, batches: Sequence[TrainingBatch], prepare: Prepare, loss: Loss, divided_by: Tensor | None
    ) -> dict[str, Tensor]:
        sums = super().accumulate(batches, prepare, loss, divided_by)
        self.mean_over_copies()
        return sums


def _axis(name: str) -> int | None:
    """The axis along which a weight is cut."""
    layer, _, kind = name.rpartition(".")
    if layer.endswith(_WIDENING):
        return 0
    return 1 if layer.endswith(_NARROWING) and kind == "weight" else None


def _part(name: str, value: Tensor, place: MeshPlace) -> Tensor:
    axis = _axis(name)
    if axis is None:
        return value
    if "to_qkv" in name:
        return value.view(3, -1, *value.shape[1:]).chunk(place.parts, dim=1)[place.part].flatten(0, 1)
    return value.chunk(place.parts, dim=axis)[place.part]


def _slice_of(model: Model, place: MeshPlace) -> Model:
    """An ordinary network with some of the heads and channels."""
    settings = model.settings
    fewer = {
        "heads": settings.heads // place.parts,
        "hidden": settings.hidden // place.parts,
        "head_width": settings.width_of_head,
    }
    device = model.norm.weight.device
    part = Model(settings.model_copy(update=fewer)).to(device)
    part.load_state_dict({name: _part(name, value, place) for name, value in model.state_dict().items()})
    return part.train()


class _Reduce(NamedTuple):
    """Adds up what the parts of a copy have."""

    world: World
    phases: Phases

    def __call__(self, tensor: Tensor) -> Tensor:
        """The sum, in new memory."""
        total = tensor.clone(memory_format=torch.contiguous_format)
        with self.phases("communication"):
            self.world.all_reduce_(total)
        return total


class _Cut(nn.Linear):
    """A layer of which this part has some outputs, or some inputs."""

    def __init__(self, layer: nn.Module, reduce: _Reduce) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias = layer.parameters()
        self._reduce = reduce


class _Widening(_Cut):
    """Some outputs of a layer whose inputs all parts have: the gradients of these are added up."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(_SumBackward.apply(x, self._reduce), self.weight, self.bias)  # type: ignore[no-untyped-call]


class _Narrowing(_Cut):
    """A layer some of whose inputs are here; all parts have its outputs, and everybody's gradient is the same."""

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = _SumForward.apply(linear(x, self.weight), self._reduce)  # type: ignore[no-untyped-call]
        return total + self.bias


class _SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, reduce: _Reduce) -> Tensor:
        ctx.reduce = reduce
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.reduce(gradient), None


class _SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, reduce: _Reduce) -> Tensor:
        return reduce(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
