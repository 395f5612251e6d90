"""What can be explained: one number per candidate, smooth in what the network saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.models.model import CHARGES, MOMENTUM, Prediction, decide, possible_classes


class Made(NamedTuple):
    """What a candidate was decided to be: rows of one event, in order."""

    row: Tensor
    label: Tensor
    charge: Tensor
    momentum: Tensor  # [candidate, (px, py, pz, energy)]
    on_track: Tensor


def made_by(prediction: Prediction, charge: Tensor, reference: Tensor, threshold: float) -> Made:
    """The candidates of an event, as the decoding makes them; `charge` and `reference` are those of its elements."""
    row = torch.nonzero(prediction.particle_N.sigmoid() >= threshold).squeeze(1)
    on_track = charge[row] != 0
    return Made(row, *decide(of_rows(prediction, row), on_track, reference[row]), on_track)


def of_rows(prediction: Prediction, row: Tensor) -> Prediction:
    """What is said of some elements."""
    return Prediction(*(output[row] for output in prediction))


def _particle(said: Prediction, made: Made) -> Tensor:
    return said.particle_N


def _class(said: Prediction, made: Made) -> Tensor:
    return log_odds(said.class_NC.masked_fill(~possible_classes(made.on_track), -torch.inf), made.label - 1)


def _charge(said: Prediction, made: Made) -> Tensor:
    return log_odds(said.charge_N3, made.charge - CHARGES[0])


def _momentum(name: str) -> Callable[[Prediction, Made], Tensor]:
    column = MOMENTUM.index(name)
    return lambda said, made: said.momentum_N5[:, column]


#: One number of a candidate by name.
OUTPUTS: Mapping[str, Callable[[Prediction, Made], Tensor]] = {
    "particle": _particle,
    "class": _class,
    "charge": _charge,
    "energy": _momentum("log_energy"),
    "pt": _momentum("log_pt"),
    "eta": _momentum("d_eta"),
}
#: The same in words.
MEANING: Mapping[str, str] = {
    "particle": "log odds of being a particle",
    "class": "log odds of its class against all others",
    "charge": "log odds of its charge against the others",
    "energy": "logarithm of its energy over what its own element measured",
    "pt": "logarithm of its pT over what its own element measured",
    "eta": "its η minus that of its own element",
}


def log_odds(logits: Tensor, chosen: Tensor) -> Tensor:
    """Log odds of one of several, by row."""
    others = logits.scatter(1, chosen[:, None], -torch.inf)
    return logits.gather(1, chosen[:, None]).squeeze(1) - others.logsumexp(1)


def class_name(label: int) -> str:
    """A class as people call it."""
    return PARTICLE_CLASSES[label].replace("_", " ")
