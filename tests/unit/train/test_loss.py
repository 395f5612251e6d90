"""The loss: zero for the truth, blind to what fills up a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fixtures.made_up import filled
from ringflow.elements.batch import ElementBatch, ElementTargets, join
from ringflow.event.particles import PARTICLE_CLASSES, PHOTON
from ringflow.models.model import Prediction, four_momentum
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


@pytest.mark.parametrize("focal", [0.0, 0.5, 2.0])
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
        expected = sum(getattr(settings, key) * float(term) for key, term in terms.items() if key != "total")
        assert float(terms["total"]) == pytest.approx(expected)
    assert float(losses(mistakes["momentum"], batch, settings)["jet"]) > 0.1
    sure = Prediction(*(part.float().requires_grad_() for part in true_prediction(batch, sure=200.0)))
    without = losses(sure, batch, LossSettings(focal=focal, jet=0.0))
    assert "jet" not in without
    losses(sure, batch, settings)["total"].backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in sure), "certainty has a slope"


def test_focusing_weighs_by_the_probability_of_the_wrong_answer(events: Events):
    batch = events()
    assert batch.targets is not None
    silent = Prediction(*(torch.zeros_like(part, dtype=torch.float32) for part in true_prediction(batch)))
    silent = silent._replace(particle_N=torch.full_like(silent.particle_N, math.log(3.0)))  # 75 % sure of a particle
    plain, focused = (losses(silent, batch, LossSettings(focal=focal)) for focal in (0.0, 2.0))
    particles = int((batch.targets.label_N > 0).sum())
    others = batch.num_elements - particles
    assert float(plain["particle"]) == pytest.approx(-math.log(0.75) - others / particles * math.log(0.25), rel=1e-5)
    expected = -(0.25**2) * math.log(0.75) - others / particles * 0.75**2 * math.log(0.25)
    assert float(focused["particle"]) == pytest.approx(expected, rel=1e-5)
    classes = len(PARTICLE_CLASSES) - 1
    assert float(plain["label"]) == pytest.approx(math.log(classes), rel=1e-5)
    assert float(focused["label"]) == pytest.approx((1 - 1 / classes) ** 2 * math.log(classes), rel=1e-5)


def far_from_the_truth(batch: ElementBatch) -> ElementBatch:
    """The same truth, measured badly: other momenta, other energies, turned by up to more than half a turn."""
    generator = torch.Generator().manual_seed(3)
    pt, eta, phi, energy = batch.reference_N4.unbind(1)
    spread = torch.randn(4, len(pt), generator=generator)
    turned = torch.remainder(phi + 2.5 * spread[2] + math.pi, 2 * math.pi) - math.pi
    measured = [pt * (0.5 * spread[0]).exp(), eta + 0.5 * spread[1], turned, energy * (0.5 * spread[3]).exp()]
    return replace(batch, reference_N4=torch.stack(measured, dim=1))


def test_perfect_outputs_give_back_the_true_momentum(events: Events):
    batch = far_from_the_truth(events(40))
    targets = batch.targets
    assert targets is not None
    targets.momentum_N4[:, 3] *= 1.2  # massive
    is_particle = targets.label_N > 0
    outputs = true_outputs(batch, targets)
    found = four_momentum(outputs, batch.reference_N4)
    torch.testing.assert_close(found[is_particle], targets.momentum_N4[is_particle], rtol=1e-4, atol=1e-4)
    assert not outputs[~is_particle].any()
    assert float(losses(true_prediction(batch), batch, LossSettings())["total"]) == pytest.approx(0.0, abs=1e-3)


def test_momenta_count_by_the_root_of_the_transverse_momentum(events: Events):
    batch = events()
    targets = batch.targets
    assert targets is not None
    rows = torch.nonzero(targets.label_N > 0).squeeze(1)
    truth, shifted = true_prediction(batch), 0.2
    pt = targets.momentum_N4[:, :2].norm(dim=1)
    for row in rows[:3]:
        outputs = truth.momentum_N5.clone()
        outputs[row, 0] += shifted  # two ordinary errors of a logarithm: 1.5 by Huber, a fifth of it per column
        term = losses(truth._replace(momentum_N5=outputs), batch, LossSettings())["momentum"]
        assert float(term) == pytest.approx(1.5 / 5 * float(pt[row].sqrt() / pt[rows].sqrt().sum()), rel=1e-3)


def cone_term(batch: ElementBatch, prediction: Prediction) -> float:
    torch.manual_seed(0)
    return float(losses(prediction, batch, LossSettings(cones=200))["jet"])


def test_cones_see_what_is_lost_what_is_invented_and_what_is_too_large(events: Events):
    batch = events(40)
    targets = batch.targets
    assert targets is not None
    truth = true_prediction(batch)
    is_particle = targets.label_N > 0
    assert cone_term(batch, truth) == pytest.approx(0.0, abs=1e-4)
    assert cone_term(batch, truth._replace(particle_N=torch.full_like(truth.particle_N, -30.0))) > 1.0
    assert cone_term(batch, truth._replace(particle_N=torch.full_like(truth.particle_N, 30.0))) > 0.01
    larger = truth.momentum_N5 + torch.tensor([0.5, 0.0, 0.0, 0.0, 0.0])
    assert cone_term(batch, truth._replace(momentum_N5=larger)) > 1.0
    # What says no does not count, whatever momentum it would have.
    wild = torch.where(is_particle[:, None], truth.momentum_N5, 1.0)
    assert cone_term(batch, truth._replace(momentum_N5=wild)) == pytest.approx(0.0, abs=1e-4)


def test_the_decision_goes_forward_and_its_smooth_version_backward(events: Events):
    batch = events()
    assert batch.targets is not None
    hesitating = true_prediction(batch, sure=0.1)
    assert cone_term(batch, hesitating) == pytest.approx(0.0, abs=1e-4)
    logit = hesitating.particle_N.clone().requires_grad_()
    larger = hesitating.momentum_N5 + torch.tensor([0.5, 0.0, 0.0, 0.0, 0.0])
    losses(hesitating._replace(particle_N=logit, momentum_N5=larger), batch, LossSettings())["jet"].backward()
    assert logit.grad is not None
    assert (logit.grad[batch.targets.label_N > 0] >= 0).all()  # with too much in the cones, all should be less sure
    assert logit.grad.sum() > 0


@pytest.mark.parametrize(("angle", "counts"), [(0.3, True), (0.6, False)])
def test_a_cone_ends(angle: float, counts: bool):
    reference = torch.tensor([[10.0, 0.0, 0.0, 10.0], [10.0, 0.0, angle, 10.0]])
    momentum = torch.tensor([[10.0, 0.0, 0.0, 10.0], [0.0, 0.0, 0.0, 0.0]])
    targets = ElementTargets(torch.tensor([PHOTON, 0]), torch.zeros(2, dtype=torch.int64), momentum)
    none = torch.zeros(2, dtype=torch.int64)
    batch = ElementBatch(none, torch.zeros(2, 1), reference[:, 1:3], reference, none, torch.tensor([0, 2]), targets)
    invented = Prediction(torch.full((2,), 9.0), torch.zeros(2, 5), torch.zeros(2, 3), torch.zeros(2, 5))
    assert (cone_term(batch, invented) > 1.0) == counts


def test_cones_do_not_see_other_events(events: Events):
    one, other = events(1, 1), events(1, 2)
    both = join([one, other])
    silent = [true_prediction(batch) for batch in (one, other)]
    silent[1] = silent[1]._replace(particle_N=torch.full_like(silent[1].particle_N, -30.0))
    together = Prediction(*(torch.cat(parts) for parts in zip(*silent, strict=True)))
    # Half of the cones belong to each event, so the mean is half of what the wrong event has alone.
    assert cone_term(both, together) == pytest.approx(cone_term(other, silent[1]) / 2, rel=0.05)


def test_what_fills_up_a_batch_changes_nothing(events: Events):
    batch = events(6, 1)
    assert batch.targets is not None
    assert batch.targets.label_N[0] > 0  # the row that fills up is a particle
    full = filled(batch, 40)
    # An event that fills up has no cones: a mistake would make the mean over cones smaller.
    wrong = true_prediction(batch)
    wrong = wrong._replace(momentum_N5=wrong.momentum_N5 + 0.2)
    also_wrong = Prediction(*(torch.cat([part, part.new_full((40, *part.shape[1:]), 7)]) for part in wrong))
    settings = LossSettings(cones=2000)
    torch.manual_seed(0)
    plain = losses(wrong, batch, settings)
    torch.manual_seed(0)
    padded = losses(also_wrong, full, settings)
    for name in ("particle", "label", "charge", "momentum"):
        assert float(padded[name]) == pytest.approx(float(plain[name]), rel=1e-5)
    assert float(padded["jet"]) == pytest.approx(float(plain["jet"]), rel=0.05)
