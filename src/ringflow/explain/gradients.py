"""The network as a function of what it saw of one event, and the gradients of all its candidates at once.

After the last layer in which elements talk, every element thinks for itself: there one pass backward serves all candidates.
Below, the candidates of a portion go backward side by side through one pass forward. Measured with the shipped model on a ttbar
event of 148 elements and 97 candidates: 0.7 s of one core per point.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ringflow.elements.batch import ElementBatch
from ringflow.explain.outputs import OUTPUTS, Made, made_by, of_rows
from ringflow.models.attention import Block, Layout
from ringflow.models.model import Model, Prediction

#: Numbers in one of the tables that go backward side by side; more would not fit the caches.
_NUMBERS_AT_ONCE = 1 << 19


class EventNetwork:
    """A network on one event; `inputs` [element, value] are its scaled features and, behind them, the flags of missing ones."""

    def __init__(self, model: Model, event: ElementBatch, threshold: float, output: str) -> None:
        assert event.num_events == 1, "one event at a time"
        self.model, self.event = model, event
        self._output = OUTPUTS[output]
        self._blocks = cast(list[Block], list(model.blocks))
        self._layout = Layout.of(event)
        with torch.no_grad():
            self._turns = model.rotary(event.position_N2)
            self.inputs = self.inputs_of(event.features_NF)
            self.made: Made = made_by(self.predict(self.inputs), event.charge_N, event.reference_N4, threshold)

    def inputs_of(self, features: Tensor) -> Tensor:
        """Inputs of features, some of which may be missing."""
        scaled, missing = self.model.embedding.scale(features)
        return torch.cat([scaled, missing.to(scaled.dtype)], dim=1)

    def choose(self, candidates: Tensor) -> None:
        """Go on with some of the candidates only."""
        self.made = Made(*(part[candidates] for part in self.made))

    def predict(self, inputs: Tensor) -> Prediction:
        """What the network says of all elements."""
        return self._upper(*self._lower(inputs))

    @torch.no_grad()
    def values(self, inputs: Tensor) -> Tensor:
        """The number that is explained, of every candidate."""
        return self._output(of_rows(self.predict(inputs), self.made.row), self.made)

    def gradients(self, points: Sequence[Tensor]) -> Tensor:
        """Its gradient by all inputs, for inputs at some points [point and candidate, element, value].

        Every core takes a point: the steps of one are too short to be shared out.
        """
        threads = torch.get_num_threads()
        # The fused kernels cannot go backward side by side.
        with sdpa_kernel(SDPBackend.MATH), ThreadPoolExecutor(threads) as cores:
            torch.set_num_threads(1 if len(points) > 1 else threads)
            try:
                return torch.cat(list(cores.map(self._gradients_at, points)))
            finally:
                torch.set_num_threads(threads)

    def _gradients_at(self, inputs: Tensor) -> Tensor:
        inputs = inputs.detach().requires_grad_()
        row = self.made.row
        with torch.enable_grad():
            below, embedded = self._lower(inputs)
            own = [part.detach()[row].requires_grad_() for part in (below, embedded)]
            by_own = torch.autograd.grad(self._output(self._upper(*own), self.made).sum(), own)
            found = [
                torch.autograd.grad(
                    (below, embedded),
                    inputs,
                    [_spread(part[chosen], row[chosen], len(inputs)) for part in by_own],
                    is_grads_batched=True,
                    retain_graph=True,
                )[0]
                for chosen in torch.split(torch.arange(len(row)), self._at_once())
            ]
        return torch.cat(found) if found else inputs.new_zeros(0, *inputs.shape)

    def _lower(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Rows after the last talk, and the embedded elements."""
        scaled, missing = inputs.chunk(2, dim=1)
        embedded = self.model.embedding.embed(scaled, missing, self.event.kind_N)
        rows = embedded
        for block in self._blocks[:-1]:
            rows = block(rows, self._turns, self._layout)
        for block in self._blocks[-1:]:
            rows = block.talk(rows, self._turns, self._layout)
        return rows, embedded

    def _upper(self, rows: Tensor, embedded: Tensor) -> Prediction:
        for block in self._blocks[-1:]:
            rows = block.think(rows)
        prediction: Prediction = self.model.heads(self.model.norm(rows), embedded)
        return prediction

    def _at_once(self) -> int:
        widest = self.model.settings.hidden * max(len(self.inputs), 1)
        return max(_NUMBERS_AT_ONCE // widest, 1)


def _spread(own: Tensor, row: Tensor, num_elements: int) -> Tensor:
    """One table per candidate that is zero but for the candidate's own row."""
    tables = own.new_zeros(len(own), num_elements, own.shape[1])
    tables[torch.arange(len(own)), row] = own
    return tables
