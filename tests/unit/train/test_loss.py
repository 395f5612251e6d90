"""The loss: zero for the truth, blind to what fills up a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ringflow.elements.batch import PADDING, ElementBatch
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.models.heads import Prediction
from ringflow.train.loss import losses, true_outputs
from ringflow.train.settings import LossSettings

Events = Callable[..., ElementBatch]


def true_prediction(batch: ElementBatch, sure: float = 30.0) -> Prediction:
    """What a network that knows the truth says; of what is no particle, class and charge do not matter."""
    assert batch.targets is not None
    label, charge = batch.targets.label_N, batch.targets.charge_N
    classes = torch.nn.functional.one_hot(torch.where(label > 0, label - 1, 2), len(PARTICLE_CLASSES) - 1)
    charges = torch.nn.functional.one_hot(torch.where(label > 0, charge + 1, 0), 3)
    particle = torch.where(label > 0, sure, -sure)
    return Prediction(particle, sure * classes, sure * charges, true_outputs(batch, batch.targets))


def test_the_truth_has_no_loss(events: Events):
    batch = events()
    terms = losses(true_prediction(batch), batch, LossSettings())
    assert set(terms) == {"total", "particle", "label", "charge", "momentum", "jet"}
    assert all(float(term) == pytest.approx(0.0, abs=1e-4) for term in terms.values())


@pytest.mark.parametrize("focal", [0.0, 2.0])
def test_every_term_sees_its_own_mistake(events: Events, focal: float):
    batch = events()
    settings = LossSettings(focal=focal)
    truth = true_prediction(batch)
    mistakes = {
        "particle": truth._replace(particle_N=-truth.particle_N),
        "label": truth._replace(class_NC=-truth.class_NC),
        "charge": truth._replace(charge_N3=-truth.charge_N3),
        "momentum": truth._replace(momentum_N5=truth.momentum_N5 + 0.3),
    }
    for name, prediction in mistakes.items():
        terms = losses(prediction, batch, settings)
        wrong = {key for key, term in terms.items() if float(term) > 1e-3} - {"total", "jet"}
        assert wrong == {name}
    assert float(losses(mistakes["momentum"], batch, settings)["jet"]) > 0.1


def test_the_total_is_the_weighted_sum(events: Events):
    batch = events()
    silent = Prediction(*(torch.zeros_like(part, dtype=torch.float32) for part in true_prediction(batch)))
    settings = LossSettings(particle=2.0, label=3.0, charge=4.0, momentum=5.0, jet=0.0)
    terms = losses(silent, batch, settings)
    assert "jet" not in terms
    expected = 2 * terms["particle"] + 3 * terms["label"] + 4 * terms["charge"] + 5 * terms["momentum"]
    assert float(terms["total"]) == pytest.approx(float(expected))


def test_what_fills_up_a_batch_changes_nothing(events: Events):
    batch = events(6)
    filled = batch.take(torch.arange(6), fill_to=batch.num_elements + 40)
    assert filled.targets is not None
    assert (filled.targets.label_N[-40:] == PADDING).all()
    # An event that fills up has no cones: a mistake would make the mean over cones smaller.
    wrong = true_prediction(batch)
    wrong = wrong._replace(momentum_N5=wrong.momentum_N5 + 0.2)
    also_wrong = Prediction(*(torch.cat([part, part.new_full((40, *part.shape[1:]), 7)]) for part in wrong))
    settings = LossSettings(cones=64)
    torch.manual_seed(0)
    plain = losses(wrong, batch, settings)
    torch.manual_seed(0)
    padded = losses(also_wrong, filled, settings)
    for name in ("particle", "label", "charge", "momentum"):
        assert float(padded[name]) == pytest.approx(float(plain[name]), rel=1e-5)
    assert float(padded["jet"]) == pytest.approx(float(plain["jet"]), rel=0.05)
