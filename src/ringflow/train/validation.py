"""How good the network is on events it is not trained on: its loss, and which of two validations is the better one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from ringflow.elements.batch import ElementBatch
from ringflow.models.attention import Layout
from ringflow.models.model import Model
from ringflow.train.batches import pack
from ringflow.train.device import choose_precision, undisturbed
from ringflow.train.settings import TrainSettings
from ringflow.train.step import Objective

#: The figure by which the best validation is known, if it was measured; lower is better, as for the loss.
SELECTED_BY = "jet_iqr_over_median"
#: Cones of the jet term are drawn; the same ones in every validation.
_SEED = 1


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
        objective = Objective(model, self._settings.loss, precision, self._device)
        sums: dict[str, float] = {}
        with undisturbed(self._device, _SEED):
            for batch in self._batches:
                for name, term in objective(batch, Layout.of(batch)).items():
                    sums[name] = sums.get(name, 0.0) + batch.num_events * float(term)
        events = sum(batch.num_events for batch in self._batches)
        return {"loss" if name == "total" else f"loss_{name}": value / events for name, value in sums.items()}


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

    def better(self, value: float | None, other: float | None) -> bool:
        """Whether a value is better than another; none is not."""
        return value is not None and other is not None and value != other and (value < other) == self.less_is_better


#: The loss is of the network alone; the others tell it from the rules.
FOLLOWED = (
    Followed("loss", "loss", ".4f"),
    Followed("jet_iqr_over_median", "jet width", ".4f"),
    Followed("particle_f1", "F1", ".4f", less_is_better=False),
    Followed("missing_momentum_error", "missing momentum", ".2f", " GeV"),
)


class Rules(NamedTuple):
    """What the rules make of the validation events, and a line that tells it, or why it is not known."""

    figures: Mapping[str, float | None]
    said: str


def followed(metrics: Mapping[str, float | None], rules: Mapping[str, float | None]) -> str:
    """The figures in one line, each at its place in every line, and whether they are better than those of the rules."""
    there = [one for one in FOLLOWED if one.key in metrics or one.key in rules]
    line = "  ".join(f"{one.words} {one.written(metrics.get(one.key))}" for one in there)
    compared = [one for one in there if rules.get(one.key) is not None]
    ahead = [one.words for one in compared if one.better(metrics.get(one.key), rules[one.key])]
    if not ahead:
        return line
    mark = "★ beats the rules" if len(ahead) == len(compared) else f"ahead of the rules in {', '.join(ahead)}"
    return f"{line}  {mark}"


def figure(metrics: Mapping[str, float | None]) -> float:
    """What decides; lower is better, and what was not measured is worst."""
    value = metrics.get(SELECTED_BY, metrics.get("loss"))
    return math.inf if value is None or not math.isfinite(value) else value


def plain(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The same for JSON, which has no word for a number that is not finite."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
