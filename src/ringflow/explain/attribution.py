"""Which elements and which features made a candidate: how its outputs come about, shared out over all that the network saw.

    explainer = Explainer(load_model(path), output="class")
    why = explainer.explain(event)  # an ElementBatch of one event
    why.by_element[3]  # what every element of the event did to candidate 3

Integrated gradients (Sundararajan, Taly, Yan, arXiv:1703.01365), computed by captum: the gradients along a straight line from a
baseline to what was seen, times the way. Their sum is the difference between the outputs at both ends, up to the error of an
integral over few points, which is told. At the baseline all elements are where they are, and of their kind; their features
are hidden where training hides them now and then, and else at the means of the training events.

After the last layer in which elements talk, every element thinks for itself: there one pass backward serves all candidates.
Below, the candidates of a portion go backward side by side through one pass forward. Measured with the shipped model on a ttbar
event of 148 elements and 97 candidates: 0.7 s of one core per point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ringflow.elements.batch import ElementBatch
from ringflow.elements.features import feature_groups
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.launch.frameworks import framework
from ringflow.models.attention import Block, Layout
from ringflow.models.file import LoadedModel
from ringflow.models.model import CHARGES, MOMENTUM, Model, Prediction, decide, possible_classes

Floats = npt.NDArray[np.float32]
Rows = TypeVar("Rows", bound=tuple[Tensor, ...])

#: Numbers that captum keeps per table, so that memory stays small.
_CAPTUM_AT_ONCE = 1 << 25
#: Numbers in one of the tables that go backward side by side; more would not fit the caches.
_BACKWARD_AT_ONCE = 1 << 19


class Decided(NamedTuple):
    """What a candidate was decided to be: rows of one event, in order."""

    row: Tensor
    label: Tensor
    charge: Tensor
    momentum: Tensor  # [candidate, (px, py, pz, energy)]
    on_track: Tensor


def made_by(prediction: Prediction, charge: Tensor, reference: Tensor, threshold: float) -> Decided:
    """The candidates of an event, as the decoding makes them; `charge` and `reference` are those of its elements."""
    row = torch.nonzero(prediction.particle_N.sigmoid() >= threshold).squeeze(1)
    on_track = charge[row] != 0
    return Decided(row, *decide(of_rows(prediction, row), on_track, reference[row]), on_track)


def of_rows(parts: Rows, row: Tensor) -> Rows:
    """What is said of some elements, or what some candidates were decided to be."""
    return type(parts)(*(part[row] for part in parts))


class Output(NamedTuple):
    """One number of a candidate: what it means, and how it comes about."""

    meaning: str
    value: Callable[[Prediction, Decided], Tensor]


def _momentum(name: str) -> Callable[[Prediction, Decided], Tensor]:
    column = MOMENTUM.index(name)
    return lambda said, made: said.momentum_N5[:, column]


#: What can be explained, by name; all of it is smooth in what the network saw.
OUTPUTS: Mapping[str, Output] = {
    "particle": Output("log odds of being a particle", lambda said, made: said.particle_N),
    "class": Output(
        "log odds of its class against all others",
        lambda said, made: log_odds(
            said.class_NC.masked_fill(~possible_classes(made.on_track), -torch.inf), made.label - 1
        ),
    ),
    "charge": Output(
        "log odds of its charge against the others",
        lambda said, made: log_odds(said.charge_N3, made.charge - CHARGES[0]),
    ),
    "energy": Output("logarithm of its energy over what its own element measured", _momentum("log_energy")),
    "pt": Output("logarithm of its pT over what its own element measured", _momentum("log_pt")),
    "eta": Output("its η minus that of its own element", _momentum("d_eta")),
}


def log_odds(logits: Tensor, chosen: Tensor) -> Tensor:
    """Log odds of one of several, by row."""
    others = logits.scatter(1, chosen[:, None], -torch.inf)
    return logits.gather(1, chosen[:, None]).squeeze(1) - others.logsumexp(1)


def class_name(label: int) -> str:
    """A class as people call it."""
    return PARTICLE_CLASSES[label].replace("_", " ")


class EventNetwork:
    """A network on one event; `inputs` [element, value] are its scaled features and, behind them, the flags of missing ones."""

    def __init__(self, model: Model, event: ElementBatch, threshold: float, output: str) -> None:
        assert event.num_events == 1, "one event at a time"
        self.model, self.event = model, event
        self._output = OUTPUTS[output].value
        self._blocks = cast(list[Block], list(model.blocks))
        self._layout = Layout.of(event)
        with torch.no_grad():
            self._turns = model.rotary(event.position_N2)
            self.inputs = self.inputs_of(event.features_NF)
            self.made: Decided = made_by(self.predict(self.inputs), event.charge_N, event.reference_N4, threshold)

    def inputs_of(self, features: Tensor) -> Tensor:
        """Inputs of features, some of which may be missing."""
        scaled, missing = self.model.embedding.scale(features)
        return torch.cat([scaled, missing.to(scaled.dtype)], dim=1)

    def predict(self, inputs: Tensor) -> Prediction:
        """What the network says of all elements."""
        return self._upper(*self._lower(inputs))

    @torch.no_grad()
    def values(self, inputs: Tensor, made: Decided) -> Tensor:
        """The number that is explained, of some candidates."""
        return self._output(of_rows(self.predict(inputs), made.row), made)

    def gradients(self, points: Sequence[Tensor], made: Decided) -> Tensor:
        """Its gradient by all inputs, for inputs at some points [point and candidate, element, value].

        Every core takes a point: the steps of one are too short to be shared out.
        """
        threads = torch.get_num_threads()
        # The fused kernels cannot go backward side by side.
        with sdpa_kernel(SDPBackend.MATH), ThreadPoolExecutor(threads) as cores:
            torch.set_num_threads(1 if len(points) > 1 else threads)
            try:
                return torch.cat(list(cores.map(lambda inputs: self._gradients_at(inputs, made), points)))
            finally:
                torch.set_num_threads(threads)

    def _gradients_at(self, inputs: Tensor, made: Decided) -> Tensor:
        inputs = inputs.detach().requires_grad_()
        at_once = max(_BACKWARD_AT_ONCE // (self.model.settings.hidden * len(inputs)), 1)
        with torch.enable_grad():
            below, embedded = self._lower(inputs)
            own = [part.detach()[made.row].requires_grad_() for part in (below, embedded)]
            by_own = torch.autograd.grad(self._output(self._upper(*own), made).sum(), own)
            found = [
                torch.autograd.grad(
                    (below, embedded),
                    inputs,
                    [_spread(part[chosen], made.row[chosen], len(inputs)) for part in by_own],
                    is_grads_batched=True,
                    retain_graph=True,
                )[0]
                for chosen in torch.split(torch.arange(len(made.row)), at_once)
            ]
        return torch.cat(found)

    def _lower(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Rows after the last talk, and the embedded elements."""
        scaled, missing = inputs.chunk(2, dim=1)
        embedded = self.model.embedding.embed(scaled, missing, self.event.kind_N)
        rows = embedded
        for block in self._blocks[:-1]:
            rows = block(rows, self._turns, self._layout)
        for block in self._blocks[-1:]:
            rows = block.mix(rows, self._turns, self._layout)
        return rows, embedded

    def _upper(self, rows: Tensor, embedded: Tensor) -> Prediction:
        for block in self._blocks[-1:]:
            rows = block.transform(rows)
        prediction: Prediction = self.model.heads(self.model.norm(rows), embedded)
        return prediction


def _spread(own: Tensor, row: Tensor, num_elements: int) -> Tensor:
    """One table per candidate that is zero but for the candidate's own row."""
    tables = own.new_zeros(len(own), num_elements, own.shape[1])
    tables[torch.arange(len(own)), row] = own
    return tables


@dataclass(frozen=True)
class Relevance:
    """What made the candidates of one event."""

    made: Decided
    relevance: Floats  # [candidate, element, feature], in units of the output that is explained
    output: Floats  # that output, per candidate
    at_baseline: Floats  # the same if nothing but positions and kinds were known

    @property
    def by_element(self) -> Floats:
        """Summed over the features: [candidate, element]."""
        return np.asarray(self.relevance.sum(2))

    @property
    def weight(self) -> Floats:
        """How much a candidate listens to an element, whether that speaks for it or against: [candidate, element]."""
        return np.asarray(np.abs(self.relevance).sum(2))

    @property
    def error(self) -> Floats:
        """By how much the sum misses the difference between the ends, per candidate."""
        return np.asarray(self.relevance.sum((1, 2)) - (self.output - self.at_baseline))

    def __len__(self) -> int:
        return len(self.output)


class Explainer:
    """Explains one output of candidates of a network."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        output: str = "class",
        method: str = "integrated-gradients",
        baseline: str = "hidden",
        steps: int = 8,
    ) -> None:
        self.loaded, self.output, self.method, self.baseline, self.steps = loaded, output, method, baseline, steps
        self._captum = framework("captum.attr", "explain")

    def network(self, event: ElementBatch) -> EventNetwork:
        """The network on an event."""
        return EventNetwork(self.loaded.model, event, self.loaded.threshold, self.output)

    def explain(self, event: ElementBatch, candidates: Tensor | None = None) -> Relevance:
        """What made the candidates of an event, or some of them, counted in the order in which they are reconstructed."""
        network = self.network(event)
        made = network.made if candidates is None else of_rows(network.made, candidates)
        baseline = network.inputs_of(baseline_of(network.model, event.features_NF, self.baseline))
        at_once = max(_CAPTUM_AT_ONCE // (self.steps * max(network.inputs.numel(), 1)), 1)
        parts = torch.split(torch.arange(len(made.row)), at_once) if len(made.row) else ()
        shared = [self._share_out(network, baseline, of_rows(made, part)) for part in parts]
        shared = shared or [network.inputs.new_zeros(0, *network.inputs.shape)]
        values, flags = torch.cat(shared).chunk(2, dim=2)
        at_ends = (network.values(inputs, made).numpy() for inputs in (network.inputs, baseline))
        return Relevance(made, (values + flags).numpy(), *at_ends)

    def _share_out(self, network: EventNetwork, baseline: Tensor, made: Decided) -> Tensor:
        """Relevance [candidate, element, value]; captum takes candidates as examples of one batch.

        At every point these share their inputs, so the gradients are not those of captum, which would go through the whole
        network for each.
        """
        examples = len(made.row)

        def gradients(forward_fn: Any, inputs: tuple[Tensor, ...], *_: Any, **__: Any) -> tuple[Tensor]:
            return (network.gradients(inputs[0].detach()[::examples].unbind(), made),)

        inputs = network.inputs.expand(examples, -1, -1).clone().requires_grad_()
        if self.method == "integrated-gradients":
            attribution = self._captum.IntegratedGradients(network.predict)
            line = {"baselines": baseline.expand(examples, -1, -1), "n_steps": self.steps}
        else:
            attribution, line = self._captum.InputXGradient(network.predict), {}
        attribution.gradient_func = gradients
        shared: Tensor = attribution.attribute(inputs, **line).detach().float()
        return shared


def baseline_of(model: Model, features: Tensor, name: str) -> Tensor:
    """Features that only say which elements there are: at their means or, if training hides them, hidden."""
    if name == "hidden":
        can_be_missing = torch.tensor([group is not None for group in feature_groups(model.kinds)])
        features = features.masked_fill(can_be_missing, torch.nan)
    return torch.where(features.isnan(), torch.nan, model.embedding.mean_F)
