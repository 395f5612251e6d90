"""What the network says about every element: particle or not, class, charge, momentum relative to what was measured."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.models.block import ACTIVATIONS
from ringflow.models.settings import ModelSettings

#: Classes of a particle, that is all but "none"; column c of `class_NC` is label c + 1.
NUM_CLASSES = len(PARTICLE_CLASSES) - 1
#: Charges in the order of the columns of `charge_N3`.
CHARGES = (-1, 0, 1)
#: Columns of `momentum_N5`.
MOMENTUM = ("log_pt", "log_energy", "d_eta", "sin_d_phi", "cos_d_phi")

_SIZES = (1, NUM_CLASSES, len(CHARGES), len(MOMENTUM))


class Prediction(NamedTuple):
    """Outputs per element; all zero means: trust the detector."""

    particle_N: Tensor  # logit of being the primary element of a particle
    class_NC: Tensor  # logits of label c + 1
    charge_N3: Tensor  # logits of CHARGES
    momentum_N5: Tensor  # log pt and log energy over the measured ones, d eta, sine and cosine - 1 of d phi


class Heads(nn.Module):
    """One hidden layer over the result of the backbone and, beside it, the embedded element itself; then all outputs."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.hidden = nn.Sequential(
            nn.Linear(2 * settings.width, 2 * settings.width), ACTIVATIONS[settings.activation]()
        )
        self.out = nn.Linear(2 * settings.width, sum(_SIZES))
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x_ND: Tensor, embedded_ND: Tensor) -> Prediction:
        """Predictions in full precision."""
        return self.say(self.think(x_ND, embedded_ND))

    def think(self, x_ND: Tensor, embedded_ND: Tensor) -> Tensor:
        """What is known of every element before the outputs are made of it, [N, 2 D]."""
        known: Tensor = self.hidden(torch.cat([x_ND, embedded_ND], dim=1))
        return known

    def say(self, known: Tensor) -> Prediction:
        """Predictions in full precision."""
        out = self.out(known).float()
        particle, label, charge, momentum = out.split(_SIZES, dim=1)
        return Prediction(particle[:, 0], label, charge, momentum)
