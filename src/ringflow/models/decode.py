"""From what the network says to candidates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ringflow.elements.batch import ElementBatch
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON
from ringflow.models.heads import CHARGES, NUM_CLASSES, Prediction

#: Classes that carry a charge, and so exist on tracks only.
_CHARGED = (CHARGED_HADRON, ELECTRON, MUON)
#: Logarithms of momenta are kept within this distance from what was measured.
_FARTHEST = 4.0


@dataclass(frozen=True)
class DecodedElements:
    """Candidates, row by row in the order of their elements."""

    row: Tensor  # which element of the batch
    label: Tensor
    charge: Tensor
    momentum: Tensor  # [candidate, (px, py, pz, energy)] in GeV


def decode(prediction: Prediction, batch: ElementBatch, threshold: float = 0.5) -> DecodedElements:
    """The elements that say yes, with class, charge and four-momentum."""
    row = torch.nonzero(prediction.particle_N.sigmoid() >= threshold).squeeze(1)
    chosen = Prediction(*(output[row] for output in prediction))
    return DecodedElements(row, *decide(chosen, batch.charge_N[row] != 0, batch.reference_N4[row]))


def decide(prediction: Prediction, on_track_N: Tensor, reference_N4: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Class, charge and four-momentum of elements if they are particles."""
    best = torch.where(possible_classes(on_track_N), prediction.class_NC, -torch.inf).argmax(1)
    # A charged candidate has one of the two charges; a neutral one has none.
    negative, _, positive = prediction.charge_N3.unbind(1)
    charge = torch.where(
        _charged_classes(best.device)[best], torch.where(positive >= negative, CHARGES[2], CHARGES[0]), 0
    )
    return best + 1, charge, four_momentum(prediction.momentum_N5, reference_N4)


def possible_classes(on_track_N: Tensor) -> Tensor:
    """Which classes [N, C] an element can have: a charged one only on a track."""
    return on_track_N[:, None] | ~_charged_classes(on_track_N.device)


def _charged_classes(device: torch.device) -> Tensor:
    return torch.tensor([column + 1 in _CHARGED for column in range(NUM_CLASSES)], device=device)


def four_momentum(momentum_N5: Tensor, reference_N4: Tensor) -> Tensor:
    """(px, py, pz, energy) from the outputs and what was measured; the energy is at least the momentum."""
    log_pt, log_energy, d_eta, sine, cosine = momentum_N5.unbind(1)
    pt, eta, phi, energy = reference_N4.unbind(1)
    pt = pt * log_pt.clamp(-_FARTHEST, _FARTHEST).exp()
    energy = energy * log_energy.clamp(-_FARTHEST, _FARTHEST).exp()
    eta = (eta + d_eta).clamp(-6.0, 6.0)
    phi = phi + torch.atan2(sine, 1.0 + cosine)
    pz = pt * torch.sinh(eta)
    least = pt * torch.cosh(eta)
    return torch.stack([pt * torch.cos(phi), pt * torch.sin(phi), pz, torch.maximum(energy, least)], dim=1)
