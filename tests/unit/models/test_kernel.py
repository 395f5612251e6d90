"""Random features: how near they come to exact attention, and that nothing overflows or leaks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ringflow.elements.batch import random_elements
from ringflow.models.attention import Layout, attend
from ringflow.models.kernel import Chunks, kernel_attention, orthogonal_gaussian, redraw
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings

WIDTH = 16
COUNTS = [70, 0, 1, 64, 65, 130]


def layout_of(counts: list[int]) -> Layout:
    return Layout.of(random_elements(counts))


def approximate(query: Tensor, key: Tensor, value: Tensor, projection: Tensor, layout: Layout) -> Tensor:
    chunks = Chunks.of(layout, len(query))
    cut = [chunks.cut(part).transpose(1, 2) for part in (query, key, value)]
    return chunks.join(kernel_attention(cut[0], cut[1], cut[2], projection, chunks).transpose(1, 2))


def parts(rows: int, size: float) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = torch.randn(3, rows, 2, WIDTH, generator=torch.Generator().manual_seed(1))
    return size * query, size * key, value


def test_the_error_falls_like_one_over_the_root_of_the_features():
    query, key, value = parts(sum(COUNTS), 0.4)
    layout = layout_of(COUNTS)
    exact = attend(query, key, value, layout.offsets_B, layout.longest)
    generator = torch.Generator().manual_seed(5)
    sizes, errors = [16, 64, 256, 1024], []
    for features in sizes:
        draws = [orthogonal_gaussian(features, WIDTH, generator) for _ in range(12)]
        squared = [(approximate(query, key, value, draw, layout) - exact).square().mean() for draw in draws]
        errors.append(float(torch.stack(squared).mean().sqrt()))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.08)
    assert errors[-1] < 0.01


@pytest.mark.parametrize("counts", [[40], COUNTS])
def test_large_numbers_neither_overflow_nor_vanish(counts: list[int]):
    query, key, value = parts(sum(counts), 60.0)
    out = approximate(query, key, value, orthogonal_gaussian(64, WIDTH), layout_of(counts))
    assert out.isfinite().all()
    assert (out.abs() <= value.abs().max() + 1e-4).all()  # a mean of values, with weights that sum to one


def test_features_are_redrawn_and_stored():
    model = Model(ModelSettings(backbone="kernel", width=32, heads=2, layers=2, hidden=32))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    redraw(model, torch.Generator().manual_seed(1))
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["blocks.0.mixer.projection_ME", "blocks.1.mixer.projection_ME"]
    first = model.state_dict()[changed[0]].clone()
    redraw(model, torch.Generator().manual_seed(1))
    assert torch.equal(model.state_dict()[changed[0]], first)
    assert not torch.equal(model.state_dict()[changed[1]], first)
