"""The network as a whole: names, sizes and what it takes."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pydantic
import pytest
import torch
from torch import Tensor

from ringflow.elements.batch import TRACK, ElementBatch, random_elements
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, PARTICLE_CLASSES, PHOTON
from ringflow.models.attention import AttentionMixer
from ringflow.models.graph import GraphMixer
from ringflow.models.kernel import KernelMixer
from ringflow.models.model import (
    CHARGES,
    MOMENTUM,
    NUM_CLASSES,
    Embedding,
    Heads,
    Model,
    Prediction,
    decode,
    four_momentum,
)
from ringflow.models.settings import ModelSettings


def test_the_example_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]):
    page = Path(__file__).parents[3] / "docs" / "explanation" / "models.md"
    [example] = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    exec(compile(example, str(page), "exec"), {})
    assert " 155 tensor(" in capsys.readouterr().out  # a fresh network calls every element a particle


@pytest.mark.parametrize(
    ("backbone", "mixer"),
    [("attention", AttentionMixer), ("kernel", KernelMixer), ("graph", GraphMixer), ("mlp", type(None))],
)
def test_a_backbone_is_made_of_its_mixers(backbone: str, mixer: type):
    model = Model(ModelSettings.model_validate({"backbone": backbone, "width": 16, "heads": 2, "layers": 3}))
    assert [type(block.mixer) for block in model.blocks] == [mixer] * 3


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(pydantic.ValidationError, match=r"heads\n.*width 20 must be .* four times heads \(2\), .* 16"):
        ModelSettings(width=20, heads=2)
    with pytest.raises(pydantic.ValidationError, match="width 20 must be a multiple"):
        ModelSettings(width=20)  # by the heads it has unless told


@pytest.fixture
def embedding() -> Embedding:
    return Embedding(ModelSettings(width=16, heads=2), 3)


def test_scaling_undoes_units(embedding: Embedding):
    features = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    kind = torch.zeros(50, dtype=torch.int64)
    embedding.fit(features)
    before = embedding(features, kind)
    embedding.fit(1000.0 * features - 5.0)
    assert torch.allclose(embedding(1000.0 * features - 5.0, kind), before, atol=1e-4)


def values(seed: int, scale: float, shift: float) -> Tensor:
    """Features of 200 elements, of which some are missing."""
    features = scale * torch.randn(200, 3, generator=torch.Generator().manual_seed(seed)) + shift
    features[::7, 0] = features[3::5, 2] = torch.nan
    return features


def test_scaled_anew_the_first_layer_computes_what_it_did(embedding: Embedding):
    old, new, kind = values(1, 2.0, 1.0), values(2, 2.3, 0.7), torch.arange(200) % 2
    embedding.fit(old)
    before = [embedding(features, kind) for features in (old, new)]
    assert embedding.refit(new).tolist() == [True, True, True]
    torch.testing.assert_close(embedding.mean_F, new.nanmean(0))
    for features, expected in zip((old, new), before, strict=True):
        torch.testing.assert_close(embedding(features, kind), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("scale", "shift"), [(40.0, 200.0), (1.0, 10.4), (1.5, 10.0)])
def test_a_feature_that_means_something_else_is_as_usual_there_as_before(
    embedding: Embedding, scale: float, shift: float
):
    """Hits of a TPC, of which the old scaling draws all in, or another radius: the weights stay, for all else they change."""
    old, kind = values(1, 1.0, 10.0), torch.zeros(200, dtype=torch.int64)
    embedding.fit(old)
    new = old.clone()
    new[:, 0] += 0.1
    new[:, 1] = scale * (old[:, 1] - 10.0) + shift
    before = embedding(torch.stack([new[:, 0], old[:, 1], old[:, 2]], dim=1), kind)
    assert embedding.refit(new).tolist() == [True, False, True]
    torch.testing.assert_close(embedding(new, kind), before, atol=1e-4, rtol=1e-4)


def test_what_is_missing_or_constant_in_new_data_keeps_its_deviation(embedding: Embedding):
    old, kind = values(1, 2.0, 1.0), torch.zeros(200, dtype=torch.int64)
    old[:, 2] = torch.nan
    embedding.fit(old)
    deviation = embedding.deviation_F.clone()
    new = values(2, 2.0, 1.0)
    new[:, 0], new[:, 1] = torch.nan, 1.25
    nothing = torch.full((200, 3), torch.nan)
    before = [embedding(features, kind) for features in (old, nothing)]
    assert embedding.refit(new).tolist() == [True, True, False], "the last one was never there"
    assert torch.equal(embedding.deviation_F[:2], deviation[:2])
    assert embedding.mean_F[1] == 1.25
    for features, expected in zip((old, nothing), before, strict=True):
        torch.testing.assert_close(embedding(features, kind), expected, atol=1e-5, rtol=1e-5)


def test_missing_is_not_the_mean_and_outliers_are_drawn_in(embedding: Embedding):
    kind = torch.zeros(1, dtype=torch.int64)
    far, farther, nearer = (embedding(torch.full((1, 3), value), kind) for value in (8.0, 1e30, 7.0))
    assert torch.equal(far, farther)
    assert not torch.equal(far, nearer)
    embedding.fit(torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]))
    missing = embedding(torch.full((1, 3), torch.nan), kind)
    assert missing.isfinite().all()
    assert not torch.allclose(embedding(embedding.mean_F.clone()[None], kind), missing, atol=1e-3)


def test_a_fresh_network_trusts_the_detector():
    heads = Heads(ModelSettings(width=16, heads=2))
    prediction = heads(torch.randn(5, 16), torch.randn(5, 16))
    assert [tuple(part.shape) for part in prediction] == [(5,), (5, len(PARTICLE_CLASSES) - 1), (5, 3), (5, 5)]
    assert all(not part.any() for part in prediction)
    assert CHARGES == (-1, 0, 1)
    assert MOMENTUM == ("log_pt", "log_energy", "d_eta", "sin_d_phi", "cos_d_phi")


def test_backbone_and_element_are_both_heard_and_the_result_is_full_precision():
    heads = Heads(ModelSettings(width=16, heads=2))
    torch.nn.init.normal_(heads.out.weight)
    x, embedded = torch.randn(2, 4, 16)
    before = heads(x, embedded).class_NC
    assert not torch.allclose(heads(x + 1.0, embedded).class_NC, before)
    assert not torch.allclose(heads(x, embedded + 1.0).class_NC, before)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert heads(x, embedded).class_NC.dtype == torch.float32


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


def test_a_charged_candidate_has_a_charge_and_only_a_track_is_charged(batch: ElementBatch):
    charge = torch.tensor([[2.0, 9.0, 1.0], [1.0, 9.0, 2.0]]).repeat(5, 1)
    on_track = batch.kind_N == TRACK
    for charges, sign in ((charge, -1), (charge.flip(1), 1)):
        order = [MUON, ELECTRON, CHARGED_HADRON, PHOTON, NEUTRAL_HADRON]
        decoded = decode(silent(10)._replace(class_NC=logits(10, order), charge_N3=charges), batch)
        assert decoded.label.tolist() == torch.where(on_track, MUON, PHOTON).tolist()
        assert decoded.charge.tolist() == torch.where(on_track, sign, 0).tolist()
    neutral = decode(silent(10)._replace(class_NC=logits(10, [PHOTON]), charge_N3=charge), batch)
    assert not neutral.charge.any()
