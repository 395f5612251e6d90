"""Relevance adds up to what it explains, is the true gradient's, and lies on what the network can know."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.fake_events import fake_block
from ringflow.base.errors import FailureError
from ringflow.elements.features import feature_groups, feature_names
from ringflow.explain.attribution import OUTPUTS, EventNetwork, Explainer, baseline_of, log_odds
from ringflow.infer.session import Session

Make = Callable[..., Any]
BACKBONES = ("attention", "kernel", "graph", "mlp")


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("calorimeter", ["cluster", "hit"])
def test_relevance_adds_up_to_the_difference(backbone: str, calorimeter: str, listening: Make, events: Make) -> None:
    explainer = Explainer(listening(backbone, calorimeter), output="energy", steps=100)
    why = explainer.explain(events(1, calorimeter, first=3)[0])
    assert len(why) > 1
    explained = np.abs(why.output - why.at_baseline).sum()
    assert explained > 0.1
    # A hash into bins, and whom azimuth is counted from, jump on the way: that much no integral sees.
    assert np.abs(why.error).sum() < (0.5 if backbone in ("graph", "kernel") else 0.02) * explained


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_gradients_of_all_candidates_are_those_of_each(
    backbone: str, output: str, listening: Make, events: Make
) -> None:
    loaded = listening(backbone)
    event = events(1, first=5)[0]
    network = EventNetwork(loaded.model, event, loaded.threshold, output)
    found = network.gradients([network.inputs], network.made)
    assert found.shape == (len(network.made.row), *network.inputs.shape)
    inputs = network.inputs.clone().requires_grad_()
    said = network.predict(inputs)
    for ours, theirs in zip(said, loaded.model.predict(event), strict=True):
        torch.testing.assert_close(ours, theirs)  # the network in two halves is the network
    made = network.made
    values = OUTPUTS[output].value(type(said)(*(part[made.row] for part in said)), made)
    for candidate, value in enumerate(values):
        (expected,) = torch.autograd.grad(value, inputs, retain_graph=True)
        torch.testing.assert_close(found[candidate], expected, rtol=1e-3, atol=1e-5)


def test_candidates_are_those_of_a_session(listening: Make, events: Make) -> None:
    loaded = listening()
    made = Explainer(loaded, steps=1).explain(events(1, first=3)[0]).made
    expected = Session(loaded).reconstruct(fake_block(3, 1))
    assert len(expected) > 1
    assert made.label.tolist() == expected["label"].tolist()
    assert made.charge.tolist() == expected["charge"].tolist()
    np.testing.assert_allclose(made.momentum[:, 3].numpy(), expected["energy"], rtol=1e-5)


def test_without_talk_only_the_own_element_counts(listening: Make, events: Make) -> None:
    event = events(1)[0]
    why = Explainer(listening("mlp"), steps=4).explain(event)
    others = why.weight.copy()
    others[np.arange(len(why)), why.made.row.numpy()] = 0.0
    assert why.weight.max() > 0.1
    assert np.abs(others).max() == 0.0
    talking = Explainer(listening("attention"), steps=4).explain(event).weight
    assert (talking > 0).all()


def test_only_features_that_the_network_reads_count(listening: Make, events: Make) -> None:
    loaded = listening()
    names = feature_names(loaded.model.kinds)
    read = names.index("cluster_log_energy")
    first = loaded.model.embedding.layers[0].weight
    kept = first[:, read].clone()
    with torch.no_grad():
        first[:, : 2 * len(names)] = 0.0
        first[:, read] = kept
    why = Explainer(loaded, steps=4).explain(events(1)[0])
    by_feature = np.abs(why.relevance).sum((0, 1))
    assert by_feature[read] > 0
    assert np.delete(by_feature, read).max() == 0.0


def test_some_candidates_are_explained_as_among_all(listening: Make, events: Make) -> None:
    explainer = Explainer(listening(), steps=4)
    event = events(1, first=3)[0]
    everyone, some = explainer.explain(event), explainer.explain(event, torch.tensor([1]))
    assert some.made.row.tolist() == everyone.made.row.tolist()[1:2]
    np.testing.assert_allclose(some.relevance[0], everyone.relevance[1], rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        explainer.loaded.model.heads.out.bias[0] = -1e3
    none = explainer.explain(event)
    assert len(none) == 0
    assert none.by_element.shape == (0, event.num_elements)


def test_the_baseline_hides_what_training_hides(listening: Make, events: Make) -> None:
    model = listening().model
    features = events(1)[0].features_NF
    mean, hidden = (baseline_of(model, features, name) for name in ("mean", "hidden"))
    can_be_missing = torch.tensor([group is not None for group in feature_groups(model.kinds)])
    assert torch.equal(mean.isnan(), features.isnan())
    assert hidden[:, can_be_missing].isnan().all()
    assert torch.equal(hidden[:, ~can_be_missing].isnan(), features[:, ~can_be_missing].isnan())
    scaled, _ = model.embedding.scale(mean)
    assert scaled.abs().max() == 0.0


def test_log_odds_are_those_of_the_softmax() -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]])
    chosen = torch.tensor([0, 2])
    share = logits.softmax(1).gather(1, chosen[:, None]).squeeze(1)
    torch.testing.assert_close(log_odds(logits, chosen), torch.log(share / (1 - share)))


def test_without_captum_one_line_says_how_to_get_it(listening: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(FailureError, match=r"captum is not installed; pip install 'ringflow\[explain\]'"):
        Explainer(listening())
