"""How a network is spread over processes: whole in each, or cut by tensors, by heads and channels, or by layers.

Whatever the way, the network is trained as in one process: what a checkpoint holds is whole, and can be gone on from in any
other way, by any number of processes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ringflow.base.errors import UsageError
from ringflow.elements.batch import ElementBatch
from ringflow.models.model import Model, Prediction
from ringflow.train.batches import TrainingBatch
from ringflow.train.profile import UNMEASURED, Phases
from ringflow.train.settings import ComputeSettings, TrainSettings
from ringflow.train.world import World, collective

Turns = tuple[Tensor, Tensor]
#: Elements of a batch as the network shall see them, and the turns of their positions.
Prepare = Callable[[TrainingBatch], tuple[ElementBatch, Turns]]
#: From a batch to the terms of its loss and their weighted sum `total`, see `step.Objective`.
Loss = Callable[..., dict[str, Tensor]]


class MeshPlace(NamedTuple):
    """Copies of the network see different events; the parts of a copy see the same, and are neighbours."""

    copy: int = 0
    copies: int = 1
    part: int = 0
    parts: int = 1

    @classmethod
    def of(cls, rank: int, size: int, strategy: str, parts: int) -> MeshPlace:
        """The place of a process; `parts` of them share a copy, all of them if it is 0, for strategies that cut it up so."""
        parts = (parts or size) if strategy in ("tensor", "pipeline") else 1
        if size % parts:
            raise UsageError(
                f"{size} processes do not make copies of compute.parts={parts} each; start a multiple of {parts}, "
                "or give another compute.parts"
            )
        return cls(rank // parts, size // parts, rank % parts, parts)

    def lanes(self, lanes: int) -> Sequence[int]:
        """The lanes that this copy takes, of those that all share."""
        return range(self.copy * lanes // self.copies, (self.copy + 1) * lanes // self.copies)


def require_spreadable(settings: TrainSettings, size: int) -> None:
    """An error if the network of a training cannot be cut up for so many processes as it is asked to be."""
    compute, model = settings.compute, settings.model
    parts = MeshPlace.of(0, size, compute.strategy, compute.parts).parts
    if parts == 1:
        return
    if compute.strategy == "pipeline":
        if parts > model.layers:
            raise UsageError(
                f"{parts} processes cannot share model.layers={model.layers}; give fewer, or a compute.parts"
            )
        return
    if model.backbone == "graph":
        raise UsageError(
            "compute.strategy=tensor cannot cut the backbone graph, whose heads are hashed together; use replicate or shard"
        )
    if settings.optimizer.name == "lamb":
        raise UsageError(
            "optimizer.name=lamb measures whole tensors, which compute.strategy=tensor has not; use replicate or shard"
        )
    for name, number in (("heads", model.heads), ("hidden", model.hidden)):
        if number % parts:
            raise UsageError(
                f"{parts} processes cannot share model.{name}={number} evenly; give a compute.parts that divides it"
            )


class Spread:
    """The network of a process alone, and the base of all others.

    `model` is what of it is here, `network` is what is called; gradients are means over the copies.
    """

    def __init__(self, model: Model, place: MeshPlace, phases: Phases) -> None:
        self.model, self.place, self._phases = model, place, phases
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
            with self._reducing(now=number == len(batches)):
                with self._phases("forward"):
                    elements, turns = prepare(batch)
                    terms = loss(elements, batch.layout, turns, divided_by)
                with self._phases("backward"):
                    torch.autograd.backward(terms["total"])
            sums = {name: sums.get(name, 0.0) + term.detach() for name, term in terms.items()}
        return sums

    def _reducing(self, now: bool) -> AbstractContextManager[None]:
        """Whether the gradients that are computed in here are added up over the processes, or kept for a later batch."""
        return nullcontext()

    def clip(self, longest: float) -> Tensor:
        """Shorten the gradient to a length, and return the length it had."""
        return clip_grad_norm_([weight for _, weight in self.held()], longest)


class Replicated(Spread):
    """A whole network in every process; gradients are added up while they are computed (DDP)."""

    def __init__(self, model: Model, place: MeshPlace, device: torch.device, phases: Phases) -> None:
        super().__init__(model, place, phases)
        index = [device.index] if device.type != "cpu" and device.index is not None else None
        self.replicas = DistributedDataParallel(model, device_ids=index, init_sync=False, gradient_as_bucket_view=True)
        # They are the same everywhere. The argument for it was renamed in torch 2.13, the attribute works in all versions.
        self.replicas.broadcast_buffers = False
        self.network = self.replicas
        phases.watch(self.replicas)

    @contextmanager
    def _reducing(self, now: bool) -> Iterator[None]:
        with collective(), nullcontext() if now else self.replicas.no_sync():
            yield


class Sharded(Spread):
    """Every process keeps a slice of each tensor; a layer is gathered when it is needed (FSDP2)."""

    def __init__(self, model: Model, place: MeshPlace, device: torch.device, phases: Phases) -> None:
        super().__init__(model, place, phases)
        mesh = init_device_mesh(device.type, (place.copies,))  # else an accelerator that is there, used or not
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        phases.watch(model)

    @collective()
    def whole(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    @torch.no_grad()
    @collective()
    def put(self, name: str, target: Tensor, value: Tensor) -> None:
        if isinstance(target, DTensor):
            value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
        target.copy_(value)

    @contextmanager
    def _reducing(self, now: bool) -> Iterator[None]:
        assert isinstance(self.model, FSDPModule), "the model is sharded"
        self.model.set_requires_gradient_sync(now)
        with collective():
            yield

    def clip(self, longest: float) -> Tensor:
        return self.whole("", super().clip(longest))


class InParts(Spread):
    """A part of a copy. `within` are the parts of this copy, `across` the same part of all copies."""

    def __init__(self, model: Model, place: MeshPlace, world: World, phases: Phases) -> None:
        super().__init__(model, place, phases)
        self._within, self._across = world.split(place.parts)

    @abstractmethod
    def counts(self, name: str) -> bool:
        """Whether this part is the one of its copy that counts a weight when lengths are added up."""

    @torch.no_grad()
    def mean_over_copies(self) -> None:
        """Put the mean gradient of all copies in the place of each one's."""
        gradients = [weight.grad for _, weight in self.held() if weight.grad is not None]
        if self.place.copies == 1 or not gradients:
            return
        with self._phases("communication"):
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            self._across.all_reduce_(flat)
            flat /= self.place.copies
            pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
            for gradient, piece in zip(gradients, pieces, strict=True):
                gradient.copy_(piece.view_as(gradient))

    @torch.no_grad()
    def clip(self, longest: float) -> Tensor:
        held = [(name, weight.grad) for name, weight in self.held() if weight.grad is not None]
        counted = [gradient for name, gradient in held if self.counts(name)]
        squares = torch.stack(torch._foreach_norm(counted)).square().sum()
        with self._phases("communication"):
            self._within.all_reduce_(squares)
        length = squares.sqrt()
        shorter = (longest / (length + 1e-6)).clamp(max=1.0)  # as torch does it
        torch._foreach_mul_([gradient for _, gradient in held], shorter)
        return length


def spread_over(
    model: Model, world: World, compute: ComputeSettings, device: torch.device, phases: Phases = UNMEASURED
) -> Spread:
    """The network of all processes, which have the first one's weights from now on."""
    place = MeshPlace.of(world.rank, world.size, compute.strategy, compute.parts)
    if world.size == 1:
        return Spread(model, place, phases)
    for tensor in (*model.parameters(), *model.buffers()):
        world.broadcast_(tensor.data)
    with collective():
        if compute.strategy == "tensor":
            from ringflow.train.parallel.tensor import Sliced

            return Sliced(model, place, world, phases)
        if compute.strategy == "pipeline":
            from ringflow.train.parallel.pipeline import Staged

            return Staged(model, place, world, compute, device, phases)
        kind = Sharded if compute.strategy == "shard" else Replicated
        return kind(model, place, device, phases)
