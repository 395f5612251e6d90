"""What a network is worth while it is trained: jets, missing momentum and particles of the validation events.

    validate = Validation(blocks, "cluster")
    validate(model)  # {"jet_iqr_over_median": 0.058, "particle_f1": 0.91, ...}

The truth and its jets are worked out once. Measured on two cores, 1,000 ttbar events: 0.3 s, and what the network takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ringflow.baseline.constants import load_constants
from ringflow.baseline.rules import reconstruct_block
from ringflow.elements.batch import ElementBatch, from_block
from ringflow.evaluate.metrics import metrics
from ringflow.evaluate.momenta import checked
from ringflow.evaluate.sheet import Sheet, Truth, measure
from ringflow.event.block import Collection, EventBlock
from ringflow.infer.session import candidates
from ringflow.models.model import Model

#: Figures that are followed, see the page on metrics.
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


@dataclass
class _Sample:
    numbers: np.ndarray
    truth: Truth
    elements: ElementBatch


class Validation:
    """The validation events by sample, ready to be reconstructed again and again."""

    def __init__(self, blocks: Mapping[str, EventBlock], calorimeter: str) -> None:
        self._samples = {
            name: _Sample(block.event_number, Truth.of(block), from_block(block, calorimeter))
            for name, block in blocks.items()
        }

    def __call__(self, model: Model) -> dict[str, float]:
        """The mean of every figure over the samples, and `figure/sample` where there are several.

        A figure is NaN where there is none, for example widths of jets when there are no jets.
        """
        device = next(model.parameters()).device
        found = {}
        for name, sample in self._samples.items():
            sample.elements = sample.elements.to(device)  # once: then it stays there
            found[name] = _measured(name, sample, candidates(model, sample.elements, _THRESHOLD))
        return _means(found)

    def of_rules(self, blocks: Mapping[str, EventBlock], detector: str) -> dict[str, float]:
        """The same figures for the rules; blocks are those of the beginning. 4 ms per ttbar event."""
        constants = load_constants(detector)
        made = {name: reconstruct_block(block, constants) for name, block in blocks.items()}
        return _means({name: _measured(name, self._samples[name], found) for name, found in made.items()})


def _means(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    figures = {figure: float(np.mean([of[figure] for of in found.values()])) for figure in FIGURES}
    if len(found) > 1:
        figures |= {f"{figure}/{name}": of[figure] for name, of in found.items() for figure in FIGURES}
    return figures


def _measured(name: str, sample: _Sample, candidates: Collection) -> dict[str, float]:
    made = checked(candidates, sample.numbers, name)
    sheet = Sheet.empty(name, has_truth=True, replicates=0)  # intervals are for the final evaluation
    measure(sheet, name, sample.numbers, sample.truth, made)
    found = metrics(sheet, name)
    return {figure: np.nan if (value := found[figure]["value"]) is None else value for figure in FIGURES}
