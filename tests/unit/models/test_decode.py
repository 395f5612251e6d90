"""From predictions to candidates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ringflow.elements.batch import TRACK, ElementBatch, random_elements
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, PHOTON
from ringflow.models.model import NUM_CLASSES, Prediction, decode, four_momentum


@pytest.fixture
def batch() -> ElementBatch:
    return random_elements([4, 6])


def silent(rows: int) -> Prediction:
    return Prediction(torch.zeros(rows), torch.zeros(rows, NUM_CLASSES), torch.zeros(rows, 3), torch.zeros(rows, 5))


def logits(rows: int, order: list[int]) -> Tensor:
    """Class logits that prefer these labels, the first most."""
    values = torch.full((rows, NUM_CLASSES), -10.0)
    for place, label in enumerate(order):
        values[:, label - 1] = 10.0 - place
    return values


def test_zero_output_is_what_the_detector_measured(batch: ElementBatch):
    pt, eta, phi, energy = batch.reference_N4.unbind(1)
    expected = torch.stack([pt * phi.cos(), pt * phi.sin(), pt * eta.sinh(), energy], dim=1)
    assert torch.allclose(four_momentum(torch.zeros(10, 5), batch.reference_N4), expected, rtol=1e-5)


def test_outputs_are_relative_to_what_was_measured():
    reference = torch.tensor([[2.0, 0.5, 3.0, 20.0]])
    turn = 0.4
    outputs = torch.tensor([[0.3, -0.2, 0.1, math.sin(turn), math.cos(turn) - 1.0]])
    px, py, pz, energy = four_momentum(outputs, reference)[0].tolist()
    pt = math.hypot(px, py)
    assert pt == pytest.approx(2.0 * math.exp(0.3), rel=1e-5)
    assert math.asinh(pz / pt) == pytest.approx(0.6, rel=1e-5)
    assert (math.atan2(py, px) - 3.0) % (2 * math.pi) == pytest.approx(turn, rel=1e-4)
    assert energy == pytest.approx(20.0 * math.exp(-0.2), rel=1e-5)


def test_energy_is_at_least_the_momentum_and_nothing_runs_away(batch: ElementBatch):
    wild = 100.0 * torch.randn(10, 5, generator=torch.Generator().manual_seed(1))
    momentum = four_momentum(wild, batch.reference_N4)
    assert momentum.isfinite().all()
    assert (momentum[:, 3] >= momentum[:, :3].norm(dim=1) * (1 - 1e-5)).all()
    pt = momentum[:, :2].norm(dim=1)
    assert (pt <= 1.001 * batch.reference_N4[:, 0] * torch.tensor(4.0).exp()).all()


def test_the_threshold_decides(batch: ElementBatch):
    chance = torch.linspace(0.05, 0.95, 10)
    prediction = silent(10)._replace(particle_N=torch.logit(chance))
    assert decode(prediction, batch, 0.5).row.tolist() == [5, 6, 7, 8, 9]
    assert decode(prediction, batch, 0.8).row.tolist() == [8, 9]
    assert len(decode(prediction, batch, 0.99).momentum) == 0


def test_a_cluster_is_never_charged(batch: ElementBatch):
    prediction = silent(10)._replace(class_NC=logits(10, [MUON, ELECTRON, CHARGED_HADRON, PHOTON, NEUTRAL_HADRON]))
    decoded = decode(prediction, batch)
    on_track = batch.kind_N == TRACK
    assert (decoded.label[on_track] == MUON).all()
    assert (decoded.label[~on_track] == PHOTON).all()
    assert (decoded.charge[~on_track] == 0).all()


def test_a_charged_candidate_has_a_charge_and_a_neutral_one_has_none(batch: ElementBatch):
    charge = torch.tensor([[2.0, 9.0, 1.0], [1.0, 9.0, 2.0]]).repeat(5, 1)
    charged = decode(silent(10)._replace(class_NC=logits(10, [CHARGED_HADRON]), charge_N3=charge), batch)
    assert charged.charge[batch.kind_N == TRACK].tolist() == [-1] * 5
    swapped = decode(silent(10)._replace(class_NC=logits(10, [CHARGED_HADRON]), charge_N3=charge.flip(1)), batch)
    assert swapped.charge[batch.kind_N == TRACK].tolist() == [1] * 5
    neutral = decode(silent(10)._replace(class_NC=logits(10, [PHOTON]), charge_N3=charge), batch)
    assert not neutral.charge.any()
