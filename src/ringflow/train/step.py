"""One step of a training: hide features, predict, compare, move the weights by AdamW or LAMB at the rate of the moment.

Nothing in a step waits for an accelerator. What a step gives (terms of the loss, length of the gradient) stays on the device
until it is read, and checked for NaN, every few tens of steps; on a CPU after every step.

Letters of tensor names: B event, N element, F feature, G group of features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from ringflow.elements.batch import ElementBatch
from ringflow.elements.features import feature_groups
from ringflow.models.attention import Layout
from ringflow.models.kernel import redraw
from ringflow.models.model import Model, Prediction
from ringflow.train.batches import DataPosition, TrainingBatch, mixed_seed
from ringflow.train.device import UNMEASURED, Phases, accelerated, choose_precision, computing_in, is_accelerator
from ringflow.train.loss import losses, norms
from ringflow.train.parallel import Loss, Spread, spread_over
from ringflow.train.settings import LossSettings, OptimizerSettings, SourceSettings, TrainSettings
from ringflow.train.world import ALONE, World

#: Steps between two looks at what an accelerator computed.
_STEPS_UNSEEN = 50


class Record(NamedTuple):
    """What one step gave."""

    #: Counted from 1: the steps done when this one is.
    step: int
    #: Where its batches are, by lane of this process.
    positions: tuple[DataPosition, ...]
    #: Means over all processes: the terms of the loss, their sum `total`, the length of the `gradient`.
    values: dict[str, float]
    #: Whether everything was finite in this process.
    finite_here: bool = True

    @property
    def not_finite(self) -> list[str]:
        """Names of values that are NaN or infinite."""
        return [name for name, value in self.values.items() if not math.isfinite(value)]


class TrainingStep:
    """Moves a network and its average, step after step, together with the other processes of a world."""

    def __init__(
        self,
        model: Model,
        settings: TrainSettings,
        device: torch.device,
        world: World = ALONE,
        phases: Phases = UNMEASURED,
    ) -> None:
        self._settings, self._world, self._phases = settings, world, phases
        plain = deepcopy(model)  # whole wherever the other is not
        self.spread = spread_over(model.train(), world, settings.compute, device, phases)
        self.model = self.spread.model
        self.average = Average(self.spread, plain, settings.optimizer.average)
        self.optimizer = make_optimizer([weight for _, weight in self.spread.held()], settings.optimizer)
        self._precision = choose_precision(device, settings.compute.precision)
        objective = make_objective(self.spread.network, settings.loss, self._precision, device)
        self._objective = accelerated(objective, device, settings.compute.compile)
        self._hide = HideFeatures(model.kinds, settings.source, device)
        self._clip = settings.optimizer.clip or math.inf
        self._redraw_steps = settings.model.kernel.redraw_steps if settings.model.backbone == "kernel" else 0
        self._unread: list[tuple[int, tuple[DataPosition, ...], dict[str, Tensor]]] = []
        self._most_unread = _STEPS_UNSEEN if is_accelerator(device) else 1

    def take(self, batches: Sequence[TrainingBatch], step: int, rate: float) -> None:
        """Step number `step`, counted from 0, at this rate, on the batches of this process's lanes.

        Whatever is drawn depends on the seed of a batch: lanes may be shared out among processes in any way.
        """
        self.redraw(step)
        terms = self.gradients(batches)
        values = {**terms, "gradient": self.move(step, rate)}
        self._unread.append((step + 1, tuple(batch.position for batch in batches), values))

    @property
    def to_be_read(self) -> bool:
        """Whether it is time to look at what the last steps gave."""
        return len(self._unread) >= self._most_unread

    def read(self) -> list[Record]:
        """What the steps since the last reading gave; this waits for the device, and all processes have to read."""
        if not self._unread:
            return []
        mean = torch.stack([torch.stack(list(values.values())) for _, _, values in self._unread])
        finite = mean.isfinite().all(1).tolist()
        self._world.all_reduce_(mean)
        records = [
            Record(step, positions, dict(zip(values, row, strict=True)), finite_here)
            for (step, positions, values), row, finite_here in zip(
                self._unread, (mean / self._world.size).tolist(), finite, strict=True
            )
        ]
        self._unread.clear()
        return records

    def redraw(self, step: int) -> None:
        """Draw other random features, if step number `step` is one that begins so."""
        if self._redraw_steps and step and step % self._redraw_steps == 0:
            redraw(self.model, torch.Generator().manual_seed(mixed_seed(self._settings.seed, step)))

    def gradients(self, batches: Sequence[TrainingBatch]) -> dict[str, Tensor]:
        """Leave the gradients of batches, taken as one, in the weights; the terms of their loss."""
        divided_by = self._norms(batches)
        self.optimizer.zero_grad(set_to_none=True)
        return self.spread.accumulate(batches, self._prepared, self._objective, divided_by)

    def move(self, step: int, rate: float) -> Tensor:
        """Move the weights along their gradients, and the average after them; the length of the gradient."""
        with self._phases("optimizer"):
            length = self.spread.clip(self._clip)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.average.update(step)
        return length

    def _prepared(self, batch: TrainingBatch) -> tuple[ElementBatch, tuple[Tensor, Tensor]]:
        """What the network shall see of a batch; the generators are then as its seed and nothing else made them.

        The turns of the positions are worked out before what is compiled: a compiler would do it again for every layer.
        """
        torch.manual_seed(batch.seed)
        elements = self._hide(batch.elements, batch.layout.event_N)
        with torch.no_grad():
            cosine, sine = self.model.rotary(elements.position_N2)
            return elements, (cosine.to(self._precision), sine.to(self._precision))

    @torch.no_grad()
    def _norms(self, batches: Sequence[TrainingBatch]) -> Tensor | None:
        """What all batches of a step are divided by, so that the mean over processes is as if they were one batch."""
        if len(batches) == 1 and self._world.size == 1:
            return None
        total = torch.stack([norms(batch.elements, self._settings.loss) for batch in batches]).sum(0)
        with self._phases("idle"):
            self._world.all_reduce_(total)
        return total / self._world.size


def make_objective(
    network: Callable[..., Prediction], settings: LossSettings, precision: torch.dtype, device: torch.device
) -> Loss:
    """Forward and loss, which is what is compiled."""

    def objective(
        batch: ElementBatch,
        layout: Layout,
        turns: tuple[Tensor, Tensor] | None = None,
        divided_by: Tensor | None = None,
        arrived: tuple[Tensor, ...] = (),
    ) -> dict[str, Tensor]:
        """Terms of the loss and their weighted sum `total`; `arrived` is what the network gets beside the batch."""
        with computing_in(precision, device):
            prediction = network(batch.features_NF, batch.kind_N, batch.position_N2, layout, turns, *arrived)
        # Sums over a batch are not for half precision.
        return losses(prediction, batch, settings, divided_by)

    return objective


class HideFeatures:
    """Hides groups of features in some events, as a detector that lacks them would; essential features have no group."""

    def __init__(self, kinds: Sequence[str], settings: SourceSettings, device: torch.device) -> None:
        groups = feature_groups(kinds)
        names = sorted({group for group in groups if group is not None})
        self._probability, self._num_groups = settings.hide, len(names)
        self._lacking_share = settings.lacking_share if settings.lacking else 0.0
        # The column after the last group is never hidden; kept on the device, so that no step waits for a copy.
        columns = [len(names) if group is None else names.index(group) for group in groups]
        self._column_F = torch.tensor(columns, device=device)
        self._lacking_G = torch.tensor([name in settings.lacking for name in [*names, ""]], device=device)

    def __call__(self, batch: ElementBatch, event_N: Tensor) -> ElementBatch:
        """The batch with some features NaN, as torch's generator draws it."""
        if self._probability == 0.0 and self._lacking_share == 0.0:
            return batch
        shape = (batch.num_events, self._num_groups + 1)
        hidden_BG = torch.rand(shape, device=event_N.device) < self._probability
        hidden_BG[:, -1] = False
        if self._lacking_share > 0.0:
            lacks_B = torch.rand(batch.num_events, device=event_N.device) < self._lacking_share
            hidden_BG |= lacks_B.unsqueeze(1) & self._lacking_G
        hidden_NF = hidden_BG[:, self._column_F][event_N]
        return replace(batch, features_NF=batch.features_NF.masked_fill(hidden_NF, torch.nan))


class Average:
    """Weights that follow those of a network, spread over processes as these are. The memory is short at first, so that the
    start is forgotten. `plain` is a network of the same settings that is not spread."""

    def __init__(self, followed: Spread, plain: Model, decay: float) -> None:
        self._decay, self._followed = decay, followed
        self.plain = plain.eval().requires_grad_(False)
        named = followed.model.named_parameters()
        self.weights: dict[str, Tensor] = {name: weight.detach().clone() for name, weight in named}
        held = dict(followed.held())
        self._own = [_here(self.weights[name]) for name in held]
        self._theirs = [_here(weight.detach()) for weight in held.values()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights as they are after step number `step`, counted from 0."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._own, self._theirs, 1.0 - decay)

    @torch.no_grad()
    def model(self) -> Model:
        """The averaged network, in evaluation mode; all processes have to ask. What is no weight (scaling, drawn features)
        is as in the other."""
        for own, (name, average) in zip(self.plain.parameters(), self.weights.items(), strict=True):
            own.copy_(self._followed.whole(name, average))
        for buffer, theirs in zip(self.plain.buffers(), self._followed.model.buffers(), strict=True):
            buffer.copy_(theirs)
        return self.plain


def _here(tensor: Tensor) -> Tensor:
    """The slice of a tensor that is here, as the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def make_optimizer(weights: Sequence[nn.Parameter], settings: OptimizerSettings) -> Optimizer:
    """The optimiser of the weights of a network. Weight decay is for matrices, not for biases and norms."""
    matrices = [weight for weight in weights if weight.ndim >= 2]
    vectors = [weight for weight in weights if weight.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if settings.name == "lamb":
        groups[1]["adapted"] = False
        return Lamb(groups, lr=settings.rate, betas=settings.betas)
    try:
        return AdamW(groups, lr=settings.rate, betas=settings.betas, fused=True)
    except RuntimeError:  # not every device has the fused kernel
        return AdamW(groups, lr=settings.rate, betas=settings.betas)


def rate_at(settings: OptimizerSettings, events: int, total: int, elements: int, resized_at: int = 0) -> float:
    """The rate of a step of so many elements, after which `events` of `total` have been shown.

    Gradients of larger steps are less noisy and are followed further: in proportion for plain gradient descent (P. Goyal et
    al., arXiv:1706.02677), with the square root for optimisers that divide by the size of the gradient (S. Malladi et al.,
    arXiv:2205.10287). The rate rises in a straight line, then follows half a cosine. After a change of the number of lanes at
    `resized_at` events (0: there was none) the optimiser knows only steps of the other size: the rate rises again from half
    of its value (RASDA, M. Aach et al., arXiv:2412.02729).
    """
    power = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[settings.rule]
    highest = settings.rate * (elements / settings.rule_elements) ** power
    fraction, warmup = min(events / total, 1.0), settings.warmup
    if fraction < warmup:
        factor = fraction / warmup
    else:
        along = (fraction - warmup) / (1.0 - warmup)
        factor = settings.final + (1.0 - settings.final) * 0.5 * (1.0 + math.cos(math.pi * along))
    span = settings.rewarmup * total if resized_at else 0.0
    again = min(1.0, 0.5 + 0.5 * (events - resized_at) / span) if span else 1.0
    return float(highest * factor * again)


class Lamb(AdamW):
    """Steps of Adam, scaled per tensor to the size of the tensor (You et al., arXiv:1904.00962, algorithm 2).

    The trust ratio is phi(|w|) / |u|, with u the step of Adam plus the decoupled weight decay, and phi(z) = z kept within
    `bounds`: the lower one lets a tensor that starts at zero leave it, the upper one is that of the paper's training of
    BERT. Groups with `adapted=False` move like Adam.
    """

    def __init__(self, params: Any, bounds: tuple[float, float] = (1.0, 10.0), **options: Any) -> None:
        super().__init__(params, eps=1e-6, **options)
        self._bounds = bounds

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move the weights once, along the gradients they have."""
        held = [weight for group in self.param_groups for weight in group["params"] if weight.grad is not None]
        before = {weight: weight.clone() for weight in held}
        asked = [(group["lr"], group["weight_decay"]) for group in self.param_groups]
        # A step of Adam that begins at zero, at the rate one, is the step itself.
        for weight in before:
            weight.zero_()
        for group in self.param_groups:
            group["lr"], group["weight_decay"] = 1.0, 0.0
        super().step()
        for group, (rate, decay) in zip(self.param_groups, asked, strict=True):
            group["lr"], group["weight_decay"] = rate, decay
            for weight in [weight for weight in group["params"] if weight in before]:
                update = decay * before[weight] - weight
                if group.get("adapted", True):
                    length = update.norm()
                    update *= torch.where(length > 0, before[weight].norm().clamp(*self._bounds) / length, 1.0)
                weight.copy_(before[weight] - rate * update)
