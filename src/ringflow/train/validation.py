"""How good the network is on events it is not trained on: its loss, and which of two validations is the better one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ringflow.elements.batch import ElementBatch
from ringflow.models.layout import Layout
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


def figure(metrics: Mapping[str, float | None]) -> float:
    """What decides; lower is better, and what was not measured is worst."""
    value = metrics.get(SELECTED_BY, metrics.get("loss"))
    return math.inf if value is None or not math.isfinite(value) else value


def plain(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The same for JSON, which has no word for a number that is not finite."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
