"""How good the network is on events it is not trained on: its loss, jets, missing momentum and particles, beside the rules.

    validate = Validation(blocks, {name: from_block(block) for name, block in blocks.items()}, {"ttbar": "clic"})
    validate(model)  # {"jet_iqr_over_median": 0.058, "particle_f1": 0.91, ...}

The truth and its jets are worked out once. Measured on two cores, 1,000 ttbar events: 0.3 s, and what the network takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from ringflow.baseline.rules import load_constants, reconstruct_block
from ringflow.elements.batch import ElementBatch
from ringflow.evaluate.metrics import metrics
from ringflow.evaluate.momenta import checked
from ringflow.evaluate.sheet import Sheet, Truth, measure
from ringflow.event.block import Collection, EventBlock
from ringflow.infer.session import candidates
from ringflow.models.attention import Layout
from ringflow.models.model import Model
from ringflow.train.batches import pack
from ringflow.train.device import choose_precision, undisturbed
from ringflow.train.settings import TrainSettings
from ringflow.train.step import make_objective

#: The figure by which the best validation is known, if it was measured; lower is better, as for the loss.
SELECTED_BY = "jet_iqr_over_median"
#: Cones of the jet term are drawn; the same ones in every validation.
_SEED = 1
#: Figures that are measured, see the page on metrics.
FIGURES = (
    "jet_iqr_over_median",
    "jet_median",
    "jet_matched_fraction",
    "met_iqr_over_median",
    "missing_momentum_error",
    "visible_energy_resolution",
    "particle_f1",
    "particle_efficiency",
    "particle_fake_rate",
)
_THRESHOLD = 0.5


class ValidationLoss:
    """Terms of the loss on the same events each time."""

    def __init__(self, events: ElementBatch, settings: TrainSettings, device: torch.device) -> None:
        self._settings, self._device = settings, device
        plan = pack(events.counts_B.cpu(), settings.compute.batch_elements, (_SEED,))
        self._batches = [events.take(chosen).to(device) for chosen in plan]

    @torch.no_grad()
    def measure(self, model: Model) -> dict[str, float]:
        """Mean terms, named `loss` (their weighted sum) and `loss_TERM`."""
        precision = choose_precision(self._device, self._settings.compute.precision)
        objective = make_objective(model, self._settings.loss, precision, self._device)
        sums: dict[str, float] = {}
        with undisturbed(self._device, _SEED):
            for batch in self._batches:
                for name, term in objective(batch, Layout.of(batch)).items():
                    sums[name] = sums.get(name, 0.0) + batch.num_events * float(term)
        events = sum(batch.num_events for batch in self._batches)
        return {"loss" if name == "total" else f"loss_{name}": value / events for name, value in sums.items()}


class Validation:
    """The validation events by sample, ready to be reconstructed again and again."""

    def __init__(
        self, blocks: Mapping[str, EventBlock], elements: Mapping[str, ElementBatch], detectors: Mapping[str, str]
    ) -> None:
        """`elements` as networks see them; detectors for the rules."""
        self._detectors = detectors
        self.blocks, self.num_events = blocks, sum(map(len, blocks.values()))
        self._truth = {name: Truth.of(block) for name, block in blocks.items()}
        self._elements = {name: replace(seen, targets=None) for name, seen in elements.items()}

    def __call__(self, model: Model) -> dict[str, float]:
        """The mean of every figure over the samples, and `figure/sample` where there are several.

        A figure is NaN where there is none, for example widths of jets when there are no jets.
        """
        device = next(model.parameters()).device
        self._elements = {name: elements.to(device) for name, elements in self._elements.items()}  # and stay there
        return self._figures({name: candidates(model, here, _THRESHOLD) for name, here in self._elements.items()})

    def of_rules(self, named: str | None = None) -> dict[str, float]:
        """The same figures for the rules with the constants of a file, or of the detectors. 4 ms per ttbar event."""
        constants = {name: load_constants(named or detector) for name, detector in self._detectors.items()}
        return self._figures({name: reconstruct_block(block, constants[name]) for name, block in self.blocks.items()})

    def _figures(self, made: Mapping[str, Collection]) -> dict[str, float]:
        found: dict[str, dict[str, float]] = {}
        for name, truth in self._truth.items():
            numbers = self.blocks[name].event_number
            sheet = Sheet.empty(name, has_truth=True, replicates=0)  # intervals are for the final evaluation
            measure(sheet, name, numbers, truth, checked(made[name], numbers, name))
            values = metrics(sheet, name)
            found[name] = {
                figure: np.nan if (value := values[figure]["value"]) is None else value for figure in FIGURES
            }
        figures = {figure: float(np.mean([of[figure] for of in found.values()])) for figure in FIGURES}
        if len(found) > 1:
            figures |= {f"{figure}/{name}": of[figure] for name, of in found.items() for figure in FIGURES}
        return figures


def figure(metrics: Mapping[str, float | None]) -> float:
    """What decides; lower is better, and what was not measured is worst."""
    value = metrics.get(SELECTED_BY, metrics.get("loss"))
    return math.inf if value is None or not math.isfinite(value) else value


class Followed(NamedTuple):
    """A figure that people follow: its name, what it is called and how it is written."""

    key: str
    words: str
    form: str
    unit: str = ""
    less_is_better: bool = True

    def written(self, value: float | None) -> str:
        """The value, as wide as any other."""
        return f"{format(value, self.form) if value is not None else '-':>7}{self.unit}"


#: The loss is of the network alone; the others tell it from the rules.
FOLLOWED = (
    Followed("loss", "loss", ".4f"),
    Followed("jet_iqr_over_median", "jet width", ".4f"),
    Followed("particle_f1", "F1", ".4f", less_is_better=False),
    Followed("missing_momentum_error", "missing momentum", ".2f", " GeV"),
)


def followed(metrics: Mapping[str, float | None], rules: Mapping[str, float | None]) -> str:
    """The figures in one line, each at its place in every line, and whether they are better than those of the rules."""
    there = [one for one in FOLLOWED if one.key in metrics or one.key in rules]
    line = "  ".join(f"{one.words} {one.written(metrics.get(one.key))}" for one in there)
    compared, ahead = 0, []
    for one in there:
        value, other = metrics.get(one.key), rules.get(one.key)
        compared += other is not None
        if value is not None and other is not None and (value < other if one.less_is_better else value > other):
            ahead.append(one.words)
    if not ahead:
        return line
    mark = "★ beats the rules" if len(ahead) == compared else f"ahead of the rules in {', '.join(ahead)}"
    return f"{line}  {mark}"
