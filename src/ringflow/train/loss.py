"""The loss: what an element says against its target, and what cones of them sum to against the truth.

Terms per element: particle or not, class, charge (cross-entropy or focal), momenta (Huber, weighted by the square root of
the transverse momentum). The jet term compares the momentum inside cones around true particles, of the elements that say yes
with the true one: an element is then right when its surroundings are, which is what jets measure.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, huber_loss, softplus

from ringflow.elements.batch import PADDING, ElementBatch, ElementTargets
from ringflow.models.model import CHARGES, Prediction, four_momentum
from ringflow.train.settings import LossSettings

#: Size of an ordinary error of each column of the momentum, in which the Huber loss counts.
_SPREAD = (0.1, 0.1, 0.01, 0.01, 0.01)
#: Probability of the wrong answer below which focusing stops: a power has no slope at zero.
_LEAST_ERROR = 1e-6
_CONE = 0.4  # rad
_CONE_EDGE = 0.01  # in the cosine: how soft the border of a cone is
_CONE_SPREAD = 0.05  # relative error of the momentum in a cone from which on the loss grows linearly
#: Momentum (GeV) below which a cone's relative error counts less and less.
_SOFT_CONE = 5.0


def norms(batch: ElementBatch, settings: LossSettings) -> Tensor:
    """What the terms are divided by: particles, the weights of their momenta, cones.

    Several batches of one step are divided by the sum of theirs, and are then as one.
    """
    targets = _targets(batch)
    is_particle = targets.label_N > 0
    moving = (is_particle & (targets.momentum_N4[:, :3].norm(dim=1) > 0)).float()
    with_cones = torch.zeros_like(batch.counts_B, dtype=torch.float32).scatter_reduce(0, batch.event_N, moving, "amax")
    return torch.stack([is_particle.float().sum(), _weights(targets).sum(), settings.cones * with_cones.sum()])


def losses(
    prediction: Prediction, batch: ElementBatch, settings: LossSettings, divided_by: Tensor | None = None
) -> dict[str, Tensor]:
    """The terms and their weighted sum `total`, divided by the batch's own `norms` unless others are given."""
    targets = _targets(batch)
    valid = (targets.label_N != PADDING).float()
    is_particle = (targets.label_N > 0).float()
    given = norms(batch, settings) if divided_by is None else divided_by
    particles, weights, cones = given[0].clamp_min(1.0), given[1].clamp_min(1e-6), given[2].clamp_min(1.0)
    charges = cross_entropy(prediction.charge_N3, targets.charge_N - CHARGES[0], reduction="none")
    terms = {
        "particle": (valid * _binary(prediction.particle_N, is_particle, settings.focal)).sum() / particles,
        "label": (is_particle * _classes(prediction, targets, settings.focal)).sum() / particles,
        "charge": (is_particle * charges).sum() / particles,
        "momentum": (_weights(targets) * _momenta(prediction, batch, targets)).sum() / weights,
    }
    if settings.jet > 0:
        terms["jet"] = _jets(prediction, batch, targets, settings.cones) / cones
    # Attribute by attribute: a compiler does not see through the dump of a settings object.
    return {"total": torch.stack([getattr(settings, name) * term for name, term in terms.items()]).sum(), **terms}


def _targets(batch: ElementBatch) -> ElementTargets:
    assert batch.targets is not None, "a batch for training has targets"
    return batch.targets


def _weights(targets: ElementTargets) -> Tensor:
    return (targets.label_N > 0).float() * torch.hypot(targets.momentum_N4[:, 0], targets.momentum_N4[:, 1]).sqrt()


def _binary(logit: Tensor, truth: Tensor, focal: float) -> Tensor:
    sign = 1.0 - 2.0 * truth
    loss = softplus(sign * logit)
    return loss if focal == 0 else loss * torch.sigmoid(sign * logit).clamp_min(_LEAST_ERROR).pow(focal)


def _classes(prediction: Prediction, targets: ElementTargets, focal: float) -> Tensor:
    loss = cross_entropy(prediction.class_NC, (targets.label_N - 1).clamp_min(0), reduction="none")
    return loss if focal == 0 else loss * (1.0 - (-loss).exp()).clamp_min(_LEAST_ERROR).pow(focal)


def true_outputs(batch: ElementBatch, targets: ElementTargets) -> Tensor:
    """What the momentum outputs should be; rows that are no particle get zeros."""
    px, py, pz, energy = targets.momentum_N4.unbind(1)
    is_particle = targets.label_N > 0
    pt = torch.hypot(px, py)
    safe = torch.where(is_particle, pt.clamp_min(1e-3), 1.0)
    reference_pt, reference_eta, reference_phi, reference_energy = batch.reference_N4.unbind(1)
    d_phi = torch.atan2(py, px) - reference_phi
    outputs = torch.stack(
        [
            torch.log(safe / reference_pt.clamp_min(1e-3)),
            torch.log(energy.clamp_min(1e-3) / reference_energy.clamp_min(1e-3)),
            torch.asinh(pz / safe) - reference_eta,
            torch.sin(d_phi),
            torch.cos(d_phi) - 1.0,
        ],
        dim=1,
    )
    return torch.where(is_particle[:, None], outputs, 0.0)


def _momenta(prediction: Prediction, batch: ElementBatch, targets: ElementTargets) -> Tensor:
    spread = prediction.momentum_N5.new_tensor(_SPREAD)
    truth = true_outputs(batch, targets)
    return huber_loss(prediction.momentum_N5 / spread, truth / spread, reduction="none", delta=1.0).mean(1)


def _jets(prediction: Prediction, batch: ElementBatch, targets: ElementTargets, cones: int) -> Tensor:
    """Sum of the relative errors of the momentum in cones around true particles, chosen by their momentum; soft borders."""
    event = batch.event_N
    truth = targets.momentum_N4[:, :3]
    centre_BK3, exists_BK = _centres(truth, targets.label_N, batch, cones)
    soft = prediction.particle_N.sigmoid()
    # The decision of the decoding goes forward, its smooth version backward.
    chosen = soft + ((soft >= 0.5).float() - soft).detach()
    valid = (targets.label_N != PADDING).float()
    predicted = four_momentum(prediction.momentum_N5, batch.reference_N4)[:, :3]
    truth_in = _in_cones(truth, centre_BK3, event, (targets.label_N > 0).float())
    found_in = _in_cones(predicted, centre_BK3, event, chosen * valid)
    error = (found_in - truth_in) / (truth_in + _SOFT_CONE) / _CONE_SPREAD
    loss = huber_loss(error, torch.zeros_like(error), reduction="none", delta=1.0)
    return (loss * exists_BK).sum()


def _centres(truth_N3: Tensor, label_N: Tensor, batch: ElementBatch, cones: int) -> tuple[Tensor, Tensor]:
    """Directions of true particles, drawn in proportion to their momentum: winners of exponential races per event."""
    event, count = batch.event_N, batch.num_events
    waiting_KN = torch.empty(cones, len(label_N), device=label_N.device).exponential_()
    speed_KN = torch.where(label_N > 0, truth_N3.norm(dim=1) / waiting_KN.clamp_min(1e-9), 0.0)
    # Positive floats order like their bits: speed and row in one number give the winner's row in one pass.
    row_N = torch.arange(len(label_N), device=label_N.device)
    key_KN = (speed_KN.view(torch.int32).long() << 32) | row_N
    best_KB = torch.zeros(cones, count, dtype=torch.int64, device=label_N.device)
    best_KB.scatter_reduce_(1, event.expand(cones, -1), key_KN, "amax")
    winner_BK = (best_KB & 0xFFFFFFFF).T
    exists = ((best_KB >> 32) > 0).float().T
    return torch.nn.functional.normalize(truth_N3[winner_BK], dim=2), exists


def _in_cones(momentum_N3: Tensor, centre_BK3: Tensor, event_N: Tensor, weight_N: Tensor) -> Tensor:
    """Momentum along the cone's axis of what lies in each cone, [B, K]."""
    size = momentum_N3.norm(dim=1).clamp_min(1e-6)
    along_NK = torch.einsum("nc,nkc->nk", momentum_N3, centre_BK3[event_N])
    inside_NK = torch.sigmoid((along_NK / size[:, None] - math.cos(_CONE)) / _CONE_EDGE)
    sums = torch.zeros(centre_BK3.shape[:2], device=momentum_N3.device, dtype=momentum_N3.dtype)
    return sums.index_add(0, event_N, weight_N[:, None] * inside_NK * along_NK)
