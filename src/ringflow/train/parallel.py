"""How a network is spread over processes: whole in each, or cut by tensors, by heads and channels, or by layers.

Whatever the way, the network is trained as in one process: what a checkpoint holds is whole, and can be gone on from in any
other way, by any number of processes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.futures import Future
from torch.nn.functional import linear
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ringflow.base.errors import UsageError
from ringflow.elements.batch import ElementBatch
from ringflow.models.attention import Layout
from ringflow.models.model import Model, Prediction
from ringflow.train.batches import TrainingBatch
from ringflow.train.device import (
    UNMEASURED,
    Phases,
    accelerated,
    choose_precision,
    computing_in,
    random_states,
    set_random_states,
)
from ringflow.train.settings import ComputeSettings, TrainSettings
from ringflow.train.world import World, collective, lost_peer

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
        with collective():
            self.network = self._replicas = DistributedDataParallel(
                model, device_ids=index, init_sync=False, gradient_as_bucket_view=True
            )
        # They are the same everywhere. The argument for it was renamed in torch 2.13, the attribute works in all versions.
        self._replicas.broadcast_buffers = False
        self._replicas.register_comm_hook(self, lambda self, bucket: self._add_up(bucket))
        self._failed: list[RuntimeError] = []

    def _add_up(self, bucket: Any) -> Future[Tensor]:
        """As torch does it by itself, bit for bit; but a failure is told apart from one of the backward, and it is timed."""
        gradients = bucket.buffer().mul_(1.0 / self.place.copies)
        arrived = self._phases.handed_over(gradients.nbytes)

        def there(future: Future[list[Tensor]]) -> Tensor:
            arrived()
            try:
                return future.value()[0]
            except RuntimeError as error:
                self._failed.append(error)
                raise

        under_way: Future[list[Tensor]] = dist.all_reduce(gradients, async_op=True).get_future()
        return under_way.then(there)

    @contextmanager
    def _reducing(self, now: bool) -> Iterator[None]:
        try:
            with nullcontext() if now else self._replicas.no_sync():
                yield
        except RuntimeError as error:
            if self._failed or isinstance(error, dist.DistError):  # gloo has no type for it, NCCL has
                raise lost_peer((*self._failed, error)[0]) from error
            raise


class Sharded(Spread):
    """Every process keeps a slice of each tensor; a layer is gathered when it is needed (FSDP2)."""

    def __init__(self, model: Model, place: MeshPlace, device: torch.device, phases: Phases) -> None:
        super().__init__(model, place, phases)
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

        with collective():  # of this type: else of an accelerator that is there, used or not
            mesh = init_device_mesh(device.type, (place.copies,))
        for module in (*model.blocks, model):
            sharded = fully_shard(module, mesh=mesh)
            sharded.set_custom_all_gather(_told_apart(DefaultAllGather, phases))
            sharded.set_custom_reduce_scatter(_told_apart(DefaultReduceScatter, phases))

    @collective()
    def whole(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    @torch.no_grad()
    @collective()
    def put(self, name: str, target: Tensor, value: Tensor) -> None:
        if isinstance(target, DTensor):
            value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
        target.copy_(value)

    def _reducing(self, now: bool) -> AbstractContextManager[None]:
        assert isinstance(self.model, FSDPModule), "the model is sharded"
        self.model.set_requires_gradient_sync(now)
        return nullcontext()

    def clip(self, longest: float) -> Tensor:
        return self.whole("", super().clip(longest))


def _told_apart(kind: type, phases: Phases) -> Any:
    """A collective of FSDP that counts as communication, and whose failure is another process that is gone."""

    class ToldApart(kind):  # type: ignore[misc]
        @collective()
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with phases("communication"):
                return super().__call__(*args, **kwargs)

    return ToldApart()


class InParts(Spread):
    """A part of a copy. `within` are the parts of this copy, `across` the same part of all copies."""

    def __init__(self, model: Model, place: MeshPlace, world: World, phases: Phases) -> None:
        super().__init__(model, place, phases)
        self._within, self._across = world.split(place.parts)

    @abstractmethod
    def counts(self, name: str) -> bool:
        """Whether this part is the one of its copy that counts a weight when lengths are added up."""

    @torch.no_grad()
    def _mean_over_copies(self) -> None:
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


#: Layers that widen (to heads, to channels) and those that narrow again.
_WIDENING, _NARROWING = ("mixer.to_qkv", "feed_forward.0"), ("mixer.to_out", "feed_forward.2")


class Sliced(InParts):
    """Some heads and some channels of each layer (tensor parallel), for backbones whose heads know nothing of each other.

    The layers that widen are cut by outputs and take what all have; those that narrow are cut by inputs, and what they give is
    added up (M. Shoeybi et al., arXiv:1909.08053). Everything else is the same in all parts: so are its gradients, bit for bit.
    """

    def __init__(self, model: Model, place: MeshPlace, world: World, phases: Phases) -> None:
        settings = model.settings
        fewer = {
            "heads": settings.heads // place.parts,
            "hidden": settings.hidden // place.parts,
            "head_width": settings.width_of_head,
        }
        slice_of_all = Model(settings.model_copy(update=fewer)).to(model.norm.weight.device)
        slice_of_all.load_state_dict({name: _part(name, value, place) for name, value in model.state_dict().items()})
        super().__init__(slice_of_all.train(), place, world, phases)
        for name, layer in self.model.blocks.named_modules():
            if name.endswith(_WIDENING):
                layer.register_forward_pre_hook(self._before_widening)
            elif name.endswith(_NARROWING):
                layer.forward = partial(self._narrowed, layer)

    def _before_widening(self, layer: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        """All parts have the inputs: their gradients are added up."""
        x = inputs[0].view_as(inputs[0])

        def add_up(gradient: Tensor) -> Tensor:
            return self._sum_(gradient.clone(memory_format=torch.contiguous_format))

        x.register_hook(add_up)  # type: ignore[no-untyped-call]
        return x

    def _narrowed(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """All parts have the outputs, and everybody's gradient is the same: it passes the sum as it is."""
        total = linear(x, layer.weight)
        self._sum_(total.detach())
        return total + layer.bias

    def _sum_(self, tensor: Tensor) -> Tensor:
        with self._phases("communication"):
            self._within.all_reduce_(tensor)
        return tensor

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
        self._mean_over_copies()
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


class Visit(NamedTuple):
    """What a batch leaves behind in a stage until its gradients come back."""

    arrived: tuple[Tensor, ...]
    left: tuple[Tensor, ...]
    terms: dict[str, Tensor]


class Staged(InParts):
    """Some layers (pipeline parallel). Weights of other stages are on the device `meta`: they have names and shapes, and no
    memory.

    The batches of a step follow each other, so that while one is in the later layers the next is in the earlier ones: forward
    until the pipeline is full, then one forward and one backward in turn (1F1B, D. Narayanan et al., arXiv:2104.04473). Every
    process has all batches of its copy, so only what layers give travels, with the state of the random numbers: whatever is
    drawn on the way is as in one process. What goes through are the rows of the batch and, beside them, the embedded elements.
    """

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
        blocks, last = len(model.blocks), place.parts - 1
        self._stage_of = {"embedding": 0, "rotary": 0, "norm": last, "heads": last}
        self._stage_of |= {f"blocks.{n}": n * place.parts // blocks for n in range(blocks)}
        self._layers = [block for n, block in enumerate(model.blocks) if self._stage_of[f"blocks.{n}"] == place.part]
        for name, module in model.named_modules():
            for own, weight in list(module.named_parameters(recurse=False)):
                if not self.counts(f"{name}.{own}"):
                    setattr(module, own, nn.Parameter(weight.to("meta")))
        self._device, self._precision = device, choose_precision(device, compute.precision)
        self._back = world.split(place.parts)[0]  # a channel for each direction, so that neither waits for the other
        self._is_first, self._is_last = place.part == 0, place.part == last
        self._sent: list[Callable[[], None]] = []
        self._walk = accelerated(self._walked, device, compute.compile)
        self.network = self._finished

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
        under_way: deque[Visit] = deque()
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
        self._mean_over_copies()
        with self._phases("communication"):
            last = self.place.parts - 1
            names = self._within.broadcast(list(sums), last)
            values = torch.stack(list(sums.values())) if sums else torch.empty(len(names), device=self._device)
            self._within.broadcast_(values, last)
        return dict(zip(names, values.unbind(), strict=True))

    def _forward(self, batch: TrainingBatch, prepare: Prepare, loss: Loss, divided_by: Tensor | None) -> Visit:
        elements, turns = prepare(batch)
        arrived: tuple[Tensor, ...] = ()
        if not self._is_first:
            with self._phases("communication"):
                arrived = self._receive(elements.num_elements)
        with self._phases("forward"):
            if self._is_last:
                return Visit(arrived, (), loss(elements, batch.layout, turns, divided_by, arrived))
            left = self._walk(elements, batch.layout, turns, arrived)
        with self._phases("communication"):  # rows and random states, to the next stage
            states = [state.to(self._device) for state in random_states(self._device).values()]
            packets = [torch.stack([part.detach() for part in left]), *states]
            self._sent += [self._within.send(packet, self.place.part + 1) for packet in packets]
        return Visit(arrived, left, {})

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

    def _backward(self, visit: Visit) -> None:
        if self._is_last:
            with self._phases("backward"):
                torch.autograd.backward(visit.terms["total"])
        else:
            with self._phases("communication"):
                gradients = torch.empty(2, *visit.left[0].shape, device=self._device)
                self._back.receive_(gradients, self.place.part + 1)
            with self._phases("backward"):
                torch.autograd.backward(visit.left, gradients.unbind())
        if not self._is_first:
            with self._phases("communication"):
                back = [torch.zeros_like(part) if part.grad is None else part.grad for part in visit.arrived]
                self._sent.append(self._back.send(torch.stack(back), self.place.part - 1))

    def _walked(
        self, batch: ElementBatch, layout: Layout, turns: Turns, arrived: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """What a stage before the last hands on, in full precision."""
        with computing_in(self._precision, self._device):
            embedded_ND = arrived[1] if arrived else self.model.embedding(batch.features_NF, batch.kind_N)
            x_ND = self._through(arrived[0] if arrived else embedded_ND, turns, layout)
        # A copy of what only passes, so that its gradient arrives at one place.
        return x_ND.float(), embedded_ND.float().clone()

    def _finished(
        self,
        features: Tensor,
        kind: Tensor,
        position: Tensor,
        layout: Layout,
        turns: Turns,
        x_ND: Tensor,
        embedded_ND: Tensor,
    ) -> Prediction:
        """What the last stage says; called as a network is."""
        rows_ND = self.model.norm(self._through(x_ND, turns, layout))
        prediction: Prediction = self.model.heads(rows_ND, embedded_ND)
        return prediction

    def _through(self, x_ND: Tensor, turns: Turns, layout: Layout) -> Tensor:
        for layer in self._layers:
            x_ND = layer(x_ND, turns, layout)
        return x_ND


def spread_over(
    model: Model, world: World, compute: ComputeSettings, device: torch.device, phases: Phases = UNMEASURED
) -> Spread:
    """The network of all processes, which have the first one's weights from now on."""
    place = MeshPlace.of(world.rank, world.size, compute.strategy, compute.parts)
    if world.size == 1:
        return Spread(model, place, phases)
    for tensor in (*model.parameters(), *model.buffers()):
        world.broadcast_(tensor.data)
    if compute.strategy == "tensor":
        return Sliced(model, place, world, phases)
    if compute.strategy == "pipeline":
        return Staged(model, place, world, compute, device, phases)
    kind = Sharded if compute.strategy == "shard" else Replicated
    return kind(model, place, device, phases)
