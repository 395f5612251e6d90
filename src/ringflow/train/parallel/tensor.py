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
from ringflow.train.parallel.parts import InParts
from ringflow.train.parallel.places import Places
from ringflow.train.parallel.spread import Loss, Prepare
from ringflow.train.phases import Phases
from ringflow.train.team import Team

_WIDENING, _NARROWING = ("mixer.to_qkv", "feed_forward.0"), ("mixer.to_out", "feed_forward.2")


class Sliced(InParts):
    """Tensor parallel, for backbones whose heads know nothing of each other."""

    def __init__(self, model: Model, places: Places, team: Team, phases: Phases) -> None:
        super().__init__(_slice_of(model, places), places, team, phases)
        adding = Adding(self._within, phases)
        for block in self.model.blocks:
            for name in (*_WIDENING, *_NARROWING):
                if name.startswith("mixer") and model.settings.backbone == "mlp":
                    continue
                parent, _, own = name.rpartition(".")
                kind = Widening if name in _WIDENING else Narrowing
                setattr(block.get_submodule(parent), own, kind(block.get_submodule(name), adding))

    def counts(self, name: str) -> bool:
        return self.places.part == 0 or _axis(name) is not None

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        axis = _axis(name)
        if axis is None:
            return tensor
        slices = self._within.gather_(tensor)
        if "to_qkv" in name:  # queries, keys and values of some heads
            return torch.cat([slice.view(3, -1, *slice.shape[1:]) for slice in slices], dim=1).flatten(0, 1)
        return torch.cat(slices, dim=axis)

    @torch.no_grad()
    def put(self, name: str, target: Tensor, value: Tensor) -> None:
        target.copy_(_part(name, value, self.places))

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


def _part(name: str, value: Tensor, places: Places) -> Tensor:
    axis = _axis(name)
    if axis is None:
        return value
    if "to_qkv" in name:
        return value.view(3, -1, *value.shape[1:]).chunk(places.parts, dim=1)[places.part].flatten(0, 1)
    return value.chunk(places.parts, dim=axis)[places.part]


def _slice_of(model: Model, places: Places) -> Model:
    """An ordinary network with some of the heads and channels."""
    settings = model.settings
    fewer = {
        "heads": settings.heads // places.parts,
        "hidden": settings.hidden // places.parts,
        "head_width": settings.width_of_head,
    }
    device = model.norm.weight.device
    part = Model(settings.model_copy(update=fewer)).to(device)
    part.load_state_dict({name: _part(name, value, places) for name, value in model.state_dict().items()})
    return part.train()


class Adding(NamedTuple):
    """Adds up what the parts of a copy have."""

    team: Team
    phases: Phases

    def __call__(self, tensor: Tensor) -> None:
        """Put the sum in the place of everybody's."""
        with self.phases("communication"):
            self.team.add_(tensor)


class Widening(nn.Linear):
    """Some outputs of a layer whose inputs all parts have."""

    def __init__(self, layer: nn.Module, adding: Adding) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias = _weights_of(layer)
        self._adding = adding

    def forward(self, x: Tensor) -> Tensor:
        return linear(_Shared.apply(x, self._adding), self.weight, self.bias)  # type: ignore[no-untyped-call]


class Narrowing(nn.Linear):
    """A layer some of whose inputs are here; all parts have its outputs."""

    def __init__(self, layer: nn.Module, adding: Adding) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias = _weights_of(layer)
        self._adding = adding

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = _Added.apply(linear(x, self.weight), self._adding)  # type: ignore[no-untyped-call]
        return total + self.bias


def _weights_of(layer: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
    weight, bias = layer.parameters()
    return weight, bias


class _Shared(torch.autograd.Function):
    """What all parts have and each uses in its own way: their gradients are added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, add_up: Adding) -> Tensor:
        ctx.add_up = add_up
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        ctx.add_up(total)
        return total, None


class _Added(torch.autograd.Function):
    """The sum over parts; its gradient is everybody's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, add_up: Adding) -> Tensor:
        total = x.clone()
        add_up(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
