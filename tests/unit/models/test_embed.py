"""Scaling of features and flags for what is missing."""

from __future__ import annotations

import pytest
import torch

from ringflow.elements.batch import CLUSTER, TRACK
from ringflow.models.model import Embedding
from ringflow.models.settings import ModelSettings

NAN = torch.nan


@pytest.fixture
def embedding() -> Embedding:
    return Embedding(ModelSettings(width=16, heads=2), 3)


def test_scaling_is_fitted_to_the_values_that_are_there(embedding: Embedding):
    embedding.fit(torch.tensor([[1.0, NAN, 7.0], [3.0, NAN, 7.0], [NAN, NAN, 7.0], [5.0, NAN, 7.0]]))
    assert embedding.mean_F.tolist() == [3.0, 0.0, 7.0]
    assert embedding.deviation_F[0] == pytest.approx((8 / 3) ** 0.5)
    assert embedding.deviation_F[1:].tolist() == pytest.approx([1e-3, 1e-3])  # a constant is not divided by zero


def test_scaling_is_exact_for_large_offsets(embedding: Embedding):
    values = 1e4 + torch.randn(40_000, 3, generator=torch.Generator().manual_seed(1))
    embedding.fit(values)
    assert embedding.deviation_F == pytest.approx(torch.ones(3), rel=0.03)


def test_scaling_undoes_units(embedding: Embedding):
    features = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    kind = torch.zeros(50, dtype=torch.int64)
    embedding.fit(features)
    before = embedding(features, kind)
    embedding.fit(1000.0 * features - 5.0)
    assert torch.allclose(embedding(1000.0 * features - 5.0, kind), before, atol=1e-4)


def test_missing_is_not_the_mean(embedding: Embedding):
    embedding.fit(torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]))
    mean, missing = embedding.mean_F.clone()[None], torch.full((1, 3), NAN)
    kind = torch.zeros(1, dtype=torch.int64)
    assert embedding(missing, kind).isfinite().all()
    assert not torch.allclose(embedding(mean, kind), embedding(missing, kind), atol=1e-3)


def test_outliers_are_drawn_in(embedding: Embedding):
    kind = torch.zeros(1, dtype=torch.int64)
    far, farther = torch.full((1, 3), 8.0), torch.full((1, 3), 1e30)
    assert torch.equal(embedding(far, kind), embedding(farther, kind))
    assert not torch.equal(embedding(far, kind), embedding(torch.full((1, 3), 7.0), kind))


def test_kinds_are_told_apart(embedding: Embedding):
    features = torch.zeros(2, 3)
    track, cluster = embedding(features, torch.tensor([TRACK, CLUSTER]))
    assert not torch.allclose(track, cluster, atol=1e-3)
