"""Optimisers, schedule and average against computations by hand."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.train.device import UNMEASURED
from ringflow.train.parallel import MeshPlace, Spread
from ringflow.train.settings import OptimizerSettings
from ringflow.train.step import Average, Lamb, make_optimizer, rate_at


def lamb_by_hand(
    weight: list[float], gradients: list[list[float]], decay: float, *, adapted: bool, least: float, most: float
) -> list[float]:
    """Algorithm 2 of arXiv:1904.00962 with numbers, one after the other."""
    rate, beta1, beta2, eps = 0.1, 0.9, 0.99, 1e-6
    w = list(weight)
    m, v = [0.0] * len(w), [0.0] * len(w)
    for t, g in enumerate(gradients, start=1):
        m = [beta1 * a + (1 - beta1) * b for a, b in zip(m, g, strict=True)]
        v = [beta2 * a + (1 - beta2) * b * b for a, b in zip(v, g, strict=True)]
        r = [a / (1 - beta1**t) / (math.sqrt(b / (1 - beta2**t)) + eps) for a, b in zip(m, v, strict=True)]
        u = [a + decay * b for a, b in zip(r, w, strict=True)]
        size = min(max(math.hypot(*w), least), most)
        ratio = size / math.hypot(*u) if adapted else 1.0
        w = [a - rate * ratio * b for a, b in zip(w, u, strict=True)]
    return w


@pytest.mark.parametrize(
    ("start", "adapted"),
    [([3.0, -4.0], True), ([0.0, 0.0], True), ([30.0, 40.0], True), ([3.0, -4.0], False)],
    ids=["ordinary", "zero", "large", "not adapted"],
)
def test_lamb_moves_as_the_paper_says(start: list[float], adapted: bool):
    weight = nn.Parameter(torch.tensor(start))
    other = nn.Parameter(torch.ones(3))  # its size must not matter to the first
    optimizer = Lamb([{"params": [weight, other], "adapted": adapted}], lr=0.1, betas=(0.9, 0.99), weight_decay=0.05)
    gradients = [[0.5, -1.0], [0.2, 0.3], [-0.4, 2.0]]
    for gradient in gradients:
        weight.grad, other.grad = torch.tensor(gradient), torch.ones(3)
        optimizer.step()
    expected = lamb_by_hand(start, gradients, 0.05, adapted=adapted, least=1.0, most=10.0)
    assert weight.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_only_matrices_decay(name: str):
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    settings = OptimizerSettings.model_validate({"name": name, "rate": 0.1, "weight_decay": 0.5})
    optimizer = make_optimizer(list(model.parameters()), settings)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert moved == [True, False, False, False]


def test_biases_move_like_adam_with_lamb():
    layer = nn.Linear(2, 3)
    optimizer = make_optimizer(list(layer.parameters()), OptimizerSettings(name="lamb", rate=0.25))
    with torch.no_grad():
        layer.bias.fill_(5.0)
    layer.bias.grad = torch.full((3,), 7.0)
    optimizer.step()
    assert layer.bias.tolist() == pytest.approx([4.75] * 3, rel=1e-4)


def rates(*events: int, elements: int = 100, resized_at: int = 0, **settings: Any) -> list[float]:
    asked = OptimizerSettings.model_validate(
        {"rate": 1.0, "warmup": 0.0, "final": 1.0, "rule_elements": 100, **settings}
    )
    return [rate_at(asked, shown, 1000, elements, resized_at) for shown in events]


def test_the_rate_rises_and_falls():
    course = {"warmup": 0.2, "final": 0.1}
    assert rates(0, 100, 200, **course) == pytest.approx([0.0, 0.5, 1.0])
    assert rates(600, 1000, 1500, **course) == pytest.approx([0.55, 0.1, 0.1])
    assert rates(400, **course) == pytest.approx([0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4))])
    assert rates(0, final=0.0) == [1.0], "there may be no warm-up"


@pytest.mark.parametrize(("rule", "expected"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_rate_grows_with_the_step(rule: str, expected: float):
    assert rates(500, elements=400, rule=rule) == [expected]


def test_the_rate_rises_again_from_its_half_when_lanes_were_changed():
    assert rates(100, 110, 125, 150, 400, resized_at=100, rewarmup=0.05) == [0.5, 0.6, 0.75, 1.0, 1.0]
    assert rates(100, rewarmup=0.05) == rates(100, resized_at=100, rewarmup=0.0) == [1.0]


def test_the_average_follows_with_a_memory_that_grows_and_has_the_scaling_of_the_network():
    model = Model(ModelSettings(width=8, layers=0, heads=2, hidden=8))
    average, expected = Average(Spread(model, MeshPlace(), UNMEASURED), deepcopy(model), decay=0.5), 0.0
    with torch.no_grad():
        for step in range(12):
            model.heads.out.weight.fill_(float(step + 1))
            average.update(step)
            decay = min(0.5, (1 + step) / (10 + step))
            expected = decay * expected + (1 - decay) * (step + 1)
        model.embedding.mean_F.fill_(3.0)
    assert decay == 0.5, "the ramp must have ended for this test to see both branches"
    assert average.model().heads.out.weight[0, 0].item() == pytest.approx(expected, rel=1e-6)
    assert (average.model().embedding.mean_F == 3.0).all()
    assert not average.model().training
