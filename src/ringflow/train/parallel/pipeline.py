"""Every process of a copy has some layers: a batch goes through them one after the other (pipeline parallel).

A step's batches follow each other, so that while one is in the later layers the next is in the earlier ones: forward until
the pipeline is full, then one forward and one backward in turn (1F1B, D. Narayanan et al., arXiv:2104.04473). Every process has
all batches of its copy, so only what layers give travels, with the state of the random numbers: whatever is drawn on the way is
as in one process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ringflow.elements.batch import ElementBatch
from ringflow.models.attention import Layout
from ringflow.models.model import Model, Prediction
from ringflow.train.batches import TrainingBatch
from ringflow.train.device import accelerated, choose_precision, computing_in, random_states, set_random_states
from ringflow.train.parallel import InParts, Loss, MeshPlace, Prepare, Turns
from ringflow.train.profile import Phases
from ringflow.train.settings import ComputeSettings
from ringflow.train.world import World


class Staged(InParts):
    """Pipeline parallel. Weights of other stages are on the device `meta`: they have names and shapes, and no memory."""

    def __init__(
        self,
        model: Model,
        place: MeshPlace,
        world: World,
        compute: ComputeSettings,
        device: torch.device,
        phases: Phases,
    ):
        super().__init__(model, place, world, phases)
        self._stage_of = _stages(len(model.blocks), place.parts)
        layers = [block for n, block in enumerate(model.blocks) if self._stage_of[f"blocks.{n}"] == place.part]
        for name, module in model.named_modules():
            for own, weight in list(module.named_parameters(recurse=False)):
                if not self.counts(f"{name}.{own}"):
                    setattr(module, own, nn.Parameter(weight.to("meta")))
        self._device = device
        self._back = world.split(place.parts)[0]  # a channel for each direction, so that neither waits for the other
        self._is_first, self._is_last = place.part == 0, place.part == place.parts - 1
        self._sent: list[Callable[[], None]] = []
        self._stage = _Stage(model, layers, choose_precision(device, compute.precision), device)
        self._walk = accelerated(self._stage.walk, device, compute.compile)
        self.network = self._stage.finish

    def counts(self, name: str) -> bool:
        return self._owner(name) == self.place.part

    def _owner(self, name: str) -> int:
        return next(stage for prefix, stage in self._stage_of.items() if name.startswith(f"{prefix}."))

    def held(self) -> Iterable[tuple[str, nn.Parameter]]:
        return [(name, weight) for name, weight in self.model.named_parameters() if self.counts(name)]

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        here = torch.empty_like(tensor, device=self._device) if tensor.is_meta else tensor
        self._within.broadcast_(here, self._owner(name))
        return here

    @torch.no_grad()
    def put(self, name: str, target: Tensor, value: Tensor) -> None:
        if not target.is_meta:
            target.copy_(value)

    def accumulate(
        self, batches: Sequence[TrainingBatch], prepare: Prepare, loss: Loss, divided_by: Tensor | None
    ) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        under_way: deque[_Visit] = deque()
        ahead = self.place.parts - self.place.part - 1
        for batch in batches:
            visit = self._forward(batch, prepare, loss, divided_by)
            sums = {name: sums.get(name, 0.0) + term.detach() for name, term in visit.terms.items()}
            under_way.append(visit)
            if len(under_way) > ahead:
                self._backward(under_way.popleft())
        while under_way:
            self._backward(under_way.popleft())
        for wait in self._sent:
            wait()
        self._sent.clear()
        self.mean_over_copies()
        return self._of_last(sums)

    def _forward(self, batch: TrainingBatch, prepare: Prepare, loss: Loss, divided_by: Tensor | None) -> _Visit:
        elements, turns = prepare(batch)
        arrived: tuple[Tensor, ...] = ()
        if not self._is_first:
            with self._phases("communication"):
                arrived = self._receive(elements.num_elements)
        with self._phases("forward"):
            if self._is_last:
                return _Visit(arrived, (), loss(elements, batch.layout, turns, divided_by, arrived))
            left = self._walk(elements, batch.layout, turns, arrived)
        with self._phases("communication"):
            self._send(left)
        return _Visit(arrived, left, {})

    def _backward(self, visit: _Visit) -> None:
        gradients: tuple[Tensor, ...] = ()
        if not self._is_last:
            with self._phases("communication"):
                gradients = self._receive_back(visit.left)
        with self._phases("backward"):
            if self._is_last:
                torch.autograd.backward(visit.terms["total"])
            else:
                torch.autograd.backward(visit.left, gradients)
        if not self._is_first:
            with self._phases("communication"):
                self._send_back(visit.arrived)

    def _send(self, rows: Sequence[Tensor]) -> None:
        """Rows and random states to the next stage."""
        states = [state.to(self._device) for state in random_states(self._device).values()]
        packets = [torch.stack([part.detach() for part in rows]), *states]
        self._sent += [self._within.send(packet, self.place.part + 1) for packet in packets]

    def _receive(self, num_elements: int) -> tuple[Tensor, ...]:
        """Rows from the stage before, and the random numbers as it left them."""
        rows = torch.empty(2, num_elements, self.model.settings.width, device=self._device)
        self._within.receive_(rows, self.place.part - 1)
        states = random_states(self._device)
        for kind, state in states.items():
            arriving = state.to(self._device)
            self._within.receive_(arriving, self.place.part - 1)
            states[kind] = arriving.cpu()
        set_random_states(states, self._device)
        return tuple(part.requires_grad_() for part in rows.unbind())

    def _send_back(self, arrived: Sequence[Tensor]) -> None:
        """Gradients of what had arrived."""
        gradients = [torch.zeros_like(part) if part.grad is None else part.grad for part in arrived]
        self._sent.append(self._back.send(torch.stack(gradients), self.place.part - 1))

    def _receive_back(self, left: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Gradients of what had left."""
        gradients = torch.empty(2, *left[0].shape, device=self._device)
        self._back.receive_(gradients, self.place.part + 1)
        return gradients.unbind()

    def _of_last(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        with self._phases("communication"):
            last = self.place.parts - 1
            names = self._within.broadcast(list(sums), last)
            values = torch.stack(list(sums.values())) if sums else torch.empty(len(names), device=self._device)
            self._within.broadcast_(values, last)
        return dict(zip(names, values.unbind(), strict=True))


class _Visit(NamedTuple):
    """What a batch leaves behind in a stage until its gradients come back."""

    arrived: tuple[Tensor, ...]
    left: tuple[Tensor, ...]
    terms: dict[str, Tensor]


class _Stage:
    """The layers of a stage, and what goes through: the rows of the batch and, beside them, the embedded elements."""

    def __init__(self, model: Model, layers: Sequence[nn.Module], precision: torch.dtype, device: torch.device) -> None:
        self._model, self._layers, self._precision, self._device = model, layers, precision, device

    def walk(
        self, batch: ElementBatch, layout: Layout, turns: Turns, arrived: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """What a stage before the last hands on, in full precision."""
        with computing_in(self._precision, self._device):
            embedded_ND = arrived[1] if arrived else self._model.embedding(batch.features_NF, batch.kind_N)
            x_ND = self._through(arrived[0] if arrived else embedded_ND, turns, layout)
        # A copy of what only passes, so that its gradient arrives at one place.
        return x_ND.float(), embedded_ND.float().clone()

    def finish(
        self,
        features_NF: Tensor,
        kind_N: Tensor,
        position_N2: Tensor,
        layout: Layout,
        turns: Turns,
        x_ND: Tensor,
        embedded_ND: Tensor,
    ) -> Prediction:
        """What the last stage says; called as a network is."""
        prediction: Prediction = self._model.heads(self._model.norm(self._through(x_ND, turns, layout)), embedded_ND)
        return prediction

    def _through(self, x_ND: Tensor, turns: Turns, layout: Layout) -> Tensor:
        for layer in self._layers:
            x_ND = layer(x_ND, turns, layout)
        return x_ND


def _stages(layers: int, parts: int) -> dict[str, int]:
    """The stage that holds what is named so."""
    ends = {"embedding": 0, "rotary": 0, "norm": parts - 1, "heads": parts - 1}
    return ends | {f"blocks.{n}": n * parts // layers for n in range(layers)}
