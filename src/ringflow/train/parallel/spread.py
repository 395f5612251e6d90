"""A network in one process: what all ways of spreading it have in common, and differ from in a few places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ringflow.elements.batch import ElementBatch
from ringflow.models.attention import Layout
from ringflow.models.model import Model, Prediction
from ringflow.train.batches import TrainingBatch
from ringflow.train.parallel.places import Places
from ringflow.train.phases import Phases

Turns = tuple[Tensor, Tensor]
#: Elements of a batch as the network shall see them, and the turns of their positions.
Prepare = Callable[[TrainingBatch], tuple[ElementBatch, Turns]]


class Loss(Protocol):
    """From a batch to the terms of its loss."""

    def __call__(
        self,
        batch: ElementBatch,
        layout: Layout,
        turns: Turns | None = None,
        divided_by: Tensor | None = None,
        arrived: tuple[Tensor, ...] = (),
    ) -> dict[str, Tensor]:
        """Terms and their weighted sum `total`; `arrived` is what the network gets beside the batch."""


class Spread:
    """The network of a process alone, and the base of all others.

    `model` is what of it is here, `network` is what is called; gradients are means over the copies.
    """

    def __init__(self, model: Model, places: Places, phases: Phases) -> None:
        self.model, self.places, self._phases = model, places, phases
        self.network: Callable[..., Prediction] = model

    def held(self) -> Iterable[tuple[str, nn.Parameter]]:
        """What is trained here, by name."""
        return self.model.named_parameters()

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """All of what belongs to a weight (itself, its average, a moment); all processes have to ask, in the same order."""
        return tensor

    @torch.no_grad()
    def put(self, name: str, target: Tensor, value: Tensor) -> None:
        """Put what of a whole tensor belongs here into its place."""
        target.copy_(value)

    def accumulate(
        self, batches: Sequence[TrainingBatch], prepare: Prepare, loss: Loss, divided_by: Tensor | None
    ) -> dict[str, Tensor]:
        """Leave the gradients of batches in the weights; the sums of the terms of their loss."""
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(batches, start=1):
            with self.adding_up(now=number == len(batches)):
                with self._phases("forward"):
                    elements, turns = prepare(batch)
                    terms = loss(elements, batch.layout, turns, divided_by)
                with self._phases("backward"):
                    torch.autograd.backward(terms["total"])
            sums = {name: sums.get(name, 0.0) + term.detach() for name, term in terms.items()}
        return sums

    def adding_up(self, now: bool) -> AbstractContextManager[None]:
        """Whether the gradients that are computed in here are added up over the processes, or kept for a later batch."""
        return nullcontext()

    def clip(self, longest: float) -> Tensor:
        """Shorten the gradient to a length, and return the length it had."""
        return clip_grad_norm_([weight for _, weight in self.held()], longest)
