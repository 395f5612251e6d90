"""The loss on events apart, and what makes one validation better than another."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from ringflow.elements.batch import ElementBatch
from ringflow.models.model import NUM_CLASSES, Model
from ringflow.train.settings import TrainSettings
from ringflow.train.validation import ValidationLoss, figure, plain

CPU = torch.device("cpu")


def test_the_same_network_has_the_same_loss_each_time(
    tiny: Callable[..., TrainSettings], events: Callable[..., ElementBatch]
):
    settings = tiny()
    model = Model(settings.model).eval()
    torch.nn.init.normal_(model.heads.out.weight)
    loss = ValidationLoss(events(20), settings, CPU)
    state = torch.get_rng_state()
    first = loss.measure(model)
    assert set(first) == {"loss", "loss_particle", "loss_label", "loss_charge", "loss_momentum", "loss_jet"}
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    assert loss.measure(model) == first


def test_events_count_alike_whatever_batches_they_are_in(
    tiny: Callable[..., TrainSettings], events: Callable[..., ElementBatch]
):
    model = Model(tiny().model).eval()
    # Of an untrained network the class says nothing: every particle costs the logarithm of the number of classes.
    some, all_at_once = (
        ValidationLoss(events(20), tiny(f"compute.batch_elements={budget}"), CPU).measure(model)
        for budget in (40, 10_000)
    )
    assert some["loss_label"] == pytest.approx(all_at_once["loss_label"], rel=1e-5)
    assert some["loss_label"] == pytest.approx(math.log(NUM_CLASSES), rel=1e-5)


def test_jets_decide_before_the_loss_and_lower_is_better():
    assert figure({"loss": 3.0}) == 3.0
    assert figure({"loss": 3.0, "jet_iqr_over_median": 0.2}) == 0.2
    assert figure({"loss": 3.0, "jet_iqr_over_median": None}) == math.inf


def test_numbers_without_a_word_in_json_are_none():
    assert plain({"a": 1.0, "b": math.nan, "c": math.inf}) == {"a": 1.0, "b": None, "c": None}
