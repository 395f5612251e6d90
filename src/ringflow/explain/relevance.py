"""Which elements and which features made a candidate: how its outputs come about, shared out over all that the network saw.

    explainer = Explainer(load_model(path), output="class")
    why = explainer.explain(event)  # an ElementBatch of one event
    why.by_element[3]  # what every element of the event did to candidate 3

Integrated gradients (Sundararajan, Taly, Yan, arXiv:1703.01365), computed by captum: the gradients along a straight line from a
baseline to what was seen, times the way. Their sum is the difference between the outputs at both ends, up to the error of an
integral over few points, which is told. At the baseline all elements are where they are, and of their kind; their features
are hidden where training hides them now and then, and else at the means of the training events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ringflow.base.errors import UsageError
from ringflow.elements.batch import ElementBatch
from ringflow.elements.features import feature_groups
from ringflow.explain.gradients import EventNetwork
from ringflow.explain.outputs import OUTPUTS, Made
from ringflow.launch.frameworks import framework
from ringflow.models.file import LoadedModel
from ringflow.models.model import Model

Floats = npt.NDArray[np.float32]
METHODS = ("integrated-gradients", "input-x-gradient")
BASELINES = ("hidden", "mean")
#: Points of the integral.
STEPS = 8
#: Numbers that captum keeps per table, so that memory stays small.
_NUMBERS_AT_ONCE = 1 << 25


@dataclass(frozen=True)
class Relevance:
    """What made the candidates of one event."""

    made: Made
    relevance: Floats  # [candidate, element, feature], in units of the output that is explained
    output: Floats  # that output, per candidate
    at_baseline: Floats  # the same if nothing but positions and kinds were known

    @property
    def by_element(self) -> Floats:
        """Summed over the features: [candidate, element]."""
        summed: Floats = self.relevance.sum(2)
        return summed

    @property
    def weight(self) -> Floats:
        """How much a candidate listens to an element, whether that speaks for it or against: [candidate, element]."""
        heard: Floats = np.abs(self.relevance).sum(2)
        return heard

    @property
    def error(self) -> Floats:
        """By how much the sum misses the difference between the ends, per candidate."""
        missed: Floats = self.relevance.sum((1, 2)) - (self.output - self.at_baseline)
        return missed

    def __len__(self) -> int:
        return len(self.output)


class Explainer:
    """Explains one output of candidates of a network."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        output: str = "class",
        method: str = METHODS[0],
        baseline: str = BASELINES[0],
        steps: int = STEPS,
    ) -> None:
        for given, known, what in (
            (output, tuple(OUTPUTS), "output"),
            (method, METHODS, "method"),
            (baseline, BASELINES, "baseline"),
        ):
            if given not in known:
                raise UsageError(f"no {what} named {given!r}; choose from {', '.join(known)}")
        self.loaded, self.output, self.method, self.baseline, self.steps = loaded, output, method, baseline, steps
        self._captum = framework("captum.attr", "explain")

    def network(self, event: ElementBatch) -> EventNetwork:
        """The network on an event."""
        return EventNetwork(self.loaded.model, event, self.loaded.threshold, self.output)

    def explain(self, event: ElementBatch, candidates: Tensor | None = None) -> Relevance:
        """What made the candidates of an event, or some of them, counted in the order in which they are reconstructed."""
        network = self.network(event)
        if candidates is not None:
            network.choose(candidates)
        baseline = network.inputs_of(baseline_of(network.model, event.features_NF, self.baseline))
        shared = torch.cat([self._share_out(network, baseline, part) for part in self._portions(network)])
        values, flags = shared.chunk(2, dim=2)
        return Relevance(
            network.made,
            (values + flags).numpy(),
            network.values(network.inputs).numpy(),
            network.values(baseline).numpy(),
        )

    def _portions(self, network: EventNetwork) -> tuple[Tensor, ...]:
        each = self.steps * max(network.inputs.numel(), 1)
        return torch.split(torch.arange(len(network.made.row)), max(_NUMBERS_AT_ONCE // each, 1))

    def _share_out(self, network: EventNetwork, baseline: Tensor, candidates: Tensor) -> Tensor:
        """Relevance [candidate, element, value] of some candidates; captum takes them as examples of one batch."""
        examples = len(candidates)
        if not examples:
            return network.inputs.new_zeros(0, *network.inputs.shape)
        everyone = network.made
        network.choose(candidates)
        inputs = network.inputs.expand(examples, -1, -1).clone().requires_grad_()
        way = self._captum.IntegratedGradients if self.method == METHODS[0] else self._captum.InputXGradient
        attribution = way(_never_called)
        attribution.gradient_func = _gradients_of(network, examples)
        if self.method == METHODS[0]:
            found = attribution.attribute(inputs, baseline.expand(examples, -1, -1), n_steps=self.steps)
        else:
            found = attribution.attribute(inputs)
        network.made = everyone
        shared: Tensor = found.detach().float()
        return shared


def baseline_of(model: Model, features: Tensor, name: str) -> Tensor:
    """Features that only say which elements there are: at their means or, if training hides them, hidden."""
    if name == "hidden":
        can_be_missing = torch.tensor([group is not None for group in feature_groups(model.kinds)])
        features = features.masked_fill(can_be_missing, torch.nan)
    return torch.where(features.isnan(), torch.nan, model.embedding.mean_F)


def _gradients_of(network: EventNetwork, examples: int) -> Any:
    """What captum calls for gradients. Examples are the candidates of one event: at every point they share their inputs."""

    def gradients(
        forward_fn: Any, inputs: tuple[Tensor, ...], target_ind: Any = None, additional_forward_args: Any = None
    ) -> tuple[Tensor]:
        return (network.gradients(inputs[0].detach()[::examples].unbind()),)

    return gradients


def _never_called(inputs: Tensor) -> Tensor:
    """Captum asks for the gradients only."""
    raise AssertionError("captum was given the gradients")
