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

Whether an explanation is true: without the elements that are said to matter, a candidate changes more than without others, see
`deletions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ringflow.elements.batch import ElementBatch, join
from ringflow.elements.features import feature_groups
from ringflow.evaluate.bootstrap import event_weights, ratio
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.launch.frameworks import framework
from ringflow.models.attention import Block, Layout
from ringflow.models.file import LoadedModel
from ringflow.models.model import CHARGES, MOMENTUM, Model, Prediction, decide, possible_classes

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
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


#: Elements that are taken out.
TAKEN = 3
#: Draws of random elements, which are averaged.
_DRAWS = 3
#: A class with fewer candidates is told, but not judged.
LEAST_CANDIDATES = 10
#: The central 95 % of the replicates.
_INTERVAL = (0.025, 0.975)
#: Rows of a batch, so that memory stays small.
_ROWS_AT_ONCE = 8192

#: How elements are chosen: first those that are judged, then whom they are compared with.
CHOSEN, RANDOM, NEAREST = "relevant", "random", "nearest"
WAYS = ("removed", "hidden")


class Change(NamedTuple):
    """How much the output of one candidate changes, by way and by choice of elements."""

    event: int
    label: int
    change: dict[tuple[str, str], float]


class _Try(NamedTuple):
    """An event without some elements, or with some that tell nothing, and the row of the candidate in it."""

    candidate: int
    way: str
    choice: str
    event: ElementBatch
    row: int


def deletions(
    explainer: Explainer, event: ElementBatch, why: Relevance, number: int, taken: int = TAKEN
) -> list[Change]:
    """The changes of the candidates of an event that are explained; the same number draws the same random elements.

    For every candidate the `taken` elements with the largest weight are taken out of the event, its own one apart, and
    the network is asked again; then as many drawn at random, and the nearest ones. The own element cannot be taken out, since
    the candidate would go with it; so a second time elements, own ones included, are put to the baseline instead.
    """
    if event.num_elements <= taken:
        return []
    draw = np.random.default_rng(number)
    distance, weight = torch.from_numpy(distances(event)), torch.from_numpy(why.weight)
    blank = baseline_of(explainer.loaded.model, event.features_NF, explainer.baseline)
    tries: list[_Try] = []
    for candidate, own in enumerate(why.made.row.tolist()):
        others = np.delete(np.arange(event.num_elements), own)
        # Of all elements and of those but the own one, which is the nearest of all, and of random ones none in particular.
        loudest = others[weight[candidate][others].topk(taken).indices.numpy()].tolist()
        nearest = others[distance[own][others].topk(taken, largest=False).indices.numpy()].tolist()
        drawn = [draw.choice(others, taken, replace=False).tolist() for _ in range(_DRAWS)]
        chosen = [(CHOSEN, loudest, weight[candidate].topk(taken).indices.tolist())]
        chosen += [(RANDOM, rows, rows) for rows in drawn]
        chosen += [(NEAREST, nearest, [own, *nearest[:-1]])]
        for name, rows, rows_with_own in chosen:
            kept = np.delete(np.arange(event.num_elements), rows)
            place = int(np.searchsorted(kept, own))
            tries.append(_Try(candidate, "removed", name, only(event, torch.from_numpy(kept)), place))
            features = event.features_NF.clone()
            features[rows_with_own] = blank[rows_with_own]
            tries.append(_Try(candidate, "hidden", name, replace(event, features_NF=features, targets=None), own))
    after = _outputs(explainer, why.made, tries) - why.output[[one.candidate for one in tries]]
    found = [Change(number, int(label), {}) for label in why.made.label]
    for one, change in zip(tries, np.abs(after).tolist(), strict=True):
        share = change / (_DRAWS if one.choice == RANDOM else 1)
        so_far = found[one.candidate].change
        so_far[one.way, one.choice] = so_far.get((one.way, one.choice), 0.0) + share
    return found


def verdicts(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Per class and control the mean difference with its interval over resampled events; PASS where that is above zero.

    The nearest elements are a hard control, told beside: what matters to a candidate mostly is what is nearest to it.
    """
    rows = []
    for label in sorted({change.label for change in changes}):
        mine = [change for change in changes if change.label == label]
        weights = event_weights(np.array([change.event for change in mine]))
        for way in WAYS:
            for control in (RANDOM, NEAREST):
                chosen, other = (np.array([c.change[way, name] for c in mine]) for name in (CHOSEN, control))
                means = ratio(weights @ (chosen - other), weights.sum(1))
                low, high = np.nanquantile(means[1:], _INTERVAL)
                rows.append(
                    {
                        "class": class_name(label),
                        "elements": way,
                        "control": control,
                        "candidates": len(mine),
                        "change": float(chosen.mean()),
                        "change_of_control": float(other.mean()),
                        "difference": float(means[0]),
                        "low": float(low),
                        "high": float(high),
                        "judged": way == "removed" and control == RANDOM and len(mine) >= LEAST_CANDIDATES,
                        "ok": bool(low > 0),
                    }
                )
    return rows


def distances(event: ElementBatch) -> Doubles:
    """Distance in eta and phi between all elements of an event, at the calorimeter."""
    eta, phi = event.position_N2.double().numpy().T
    turn = phi[:, None] - phi
    apart: Doubles = np.hypot(eta[:, None] - eta, turn - 2 * np.pi * np.round(turn / (2 * np.pi)))
    return apart


@torch.inference_mode()
def _outputs(explainer: Explainer, made: Decided, tries: Sequence[_Try]) -> Doubles:
    """The output of the candidate of every try, computed a few tries at a time."""
    found = []
    at_once = max(_ROWS_AT_ONCE // max((one.event.num_elements for one in tries), default=1), 1)
    for start in range(0, len(tries), at_once):
        part = tries[start : start + at_once]
        batch = join([one.event for one in part])
        rows = batch.offsets_B[:-1] + torch.tensor([one.row for one in part])
        whose = torch.tensor([one.candidate for one in part])
        said = of_rows(explainer.loaded.model.predict(batch), rows)
        found.append(OUTPUTS[explainer.output].value(said, of_rows(made, whose)))
    return torch.cat(found).double().numpy() if found else np.zeros(0)


def only(event: ElementBatch, rows: Tensor) -> ElementBatch:
    """An event with some of its elements only."""
    names = [field.name for field in fields(event) if field.name not in ("offsets_B", "targets")]
    return replace(
        event,
        **{name: getattr(event, name)[rows] for name in names},
        offsets_B=torch.tensor([0, len(rows)]),
        targets=None,
    )
