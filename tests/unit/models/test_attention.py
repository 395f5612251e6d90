"""Exact attention of packed sequences, against the definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ringflow.elements.batch import random_elements
from ringflow.models import attention
from ringflow.models.attention import (
    ACTIVATIONS,
    Block,
    Layout,
    RotaryPositions,
    attend,
    from_leader,
    groups_of_similar_length,
    turn,
    turn_back,
)
from ringflow.models.settings import ModelSettings

COUNTS = [5, 0, 30, 1, 29, 7, 30]


def offsets_of(counts: list[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int()


def by_definition(query: Tensor, key: Tensor, value: Tensor, counts: list[int], scale: float) -> Tensor:
    out = []
    for q, k, v in zip(*(part.split(counts) for part in (query, key, value)), strict=True):
        weights = torch.softmax(scale * torch.einsum("nhe,mhe->hnm", q, k), dim=2)
        out.append(torch.einsum("hnm,mhe->nhe", weights, v))
    return torch.cat(out)


@pytest.mark.parametrize("counts", [[40], COUNTS, [1], [8, 8, 8]])
@pytest.mark.parametrize(("scale", "shuffled"), [(None, False), (1.0, False), (None, True)])
def test_it_is_what_the_formula_says(counts: list[int], scale: float | None, shuffled: bool):
    parts = torch.randn(3, sum(counts), 2, 8, generator=torch.Generator().manual_seed(1)).unbind()
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)) if shuffled else None
    rows = torch.arange(sum(counts)) if order is None else order
    expected = torch.empty_like(parts[0])
    expected[rows] = by_definition(*(part[rows] for part in parts), counts, 8**-0.5 if scale is None else scale)
    found = attend(*parts, offsets_of(counts), max(counts), scale=scale, order=order)
    assert torch.allclose(found, expected, atol=1e-5)


def test_groups_are_of_similar_length_small_and_complete(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "_GROUP_ROWS", 100)
    lengths = [50, 49, 3, 0, 41, 39, 10, 10, 10, 9, 200]
    groups = groups_of_similar_length(lengths)
    assert sorted(event for group in groups for event in group) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
    for group in groups:
        longest, shortest = max(lengths[event] for event in group), min(lengths[event] for event in group)
        assert shortest >= 0.8 * longest
        assert len(group) == 1 or len(group) * longest <= 100
    assert [0, 1] in groups
    assert [10] in groups  # longer than any group may be: alone


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("width", [4, 8, 12])
def test_the_kernel_of_accelerators_gets_widths_that_it_takes(
    width: int, scale: float | None, monkeypatch: pytest.MonkeyPatch
):
    def kernel(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, *_: object, scale: float | None) -> Tensor:
        assert query.shape[-1] % 8 == key.shape[-1] % 8 == value.shape[-1] % 8 == 0
        return attend(query, key, value, offsets, 9, scale=scale)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    query, key, value = torch.randn(3, 16, 2, width, generator=torch.Generator().manual_seed(1)).unbind()
    offsets = torch.tensor([0, 9, 9, 16], dtype=torch.int32)
    heard = attention._attend_packed(query, key, value, offsets, 9, scale)
    assert heard.shape == query.shape
    torch.testing.assert_close(heard, attend(query, key, value, offsets, 9, scale=scale))


WIDTH = 16


@pytest.fixture
def rotary() -> RotaryPositions:
    return RotaryPositions(WIDTH, finest=0.013)


def vectors(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 2, WIDTH, generator=torch.Generator().manual_seed(1))


def products(rotary: RotaryPositions, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    turned = turn(x, *rotary(position))
    return torch.einsum("nhe,mhe->hnm", turned, turned)


def positions(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 2, generator=torch.Generator().manual_seed(2))


def test_products_depend_on_distances_only(rotary: RotaryPositions):
    x, position = vectors(), positions()
    moved = products(rotary, x, position + torch.tensor([0.7, -2.1]))
    assert torch.allclose(moved, products(rotary, x, position), atol=1e-3)
    assert not torch.allclose(products(rotary, x, 1.1 * position), products(rotary, x, position), atol=0.1)


def test_turning_keeps_lengths_can_be_undone_and_once_around_is_nothing(rotary: RotaryPositions):
    x, position = vectors(), positions()
    angles = rotary(position)
    turned = turn(x, *angles)
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
    assert torch.allclose(turn_back(turned, *angles), x, atol=1e-5)
    assert not torch.allclose(turned, x, atol=0.1)
    around = position.clone()
    around[2, 1] += 2 * torch.pi
    assert torch.allclose(turn(x, *rotary(around)), turned, atol=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # angles keep full precision
        assert all(torch.equal(*pair) for pair in zip(rotary(position), angles, strict=True))


def layout_of(counts: list[int]) -> Layout:
    return Layout.of(random_elements(counts))


@pytest.mark.parametrize("counts", [[6], [2, 0, 4]])
def test_azimuth_from_the_leader_keeps_products_and_forgets_the_turn(rotary: RotaryPositions, counts: list[int]):
    x, position, layout = vectors(), positions(), layout_of(counts)
    score = torch.tensor([0.3, 0.1, 0.2, 0.9, -0.5, 0.4])
    plain, relative = turn(x, *rotary(position)), turn(x, *from_leader(rotary(position), score, layout))
    later = turn(x, *from_leader(rotary(position + torch.tensor([0.0, 1.7])), score, layout))
    assert torch.allclose(relative, later, atol=1e-3)
    assert not torch.allclose(plain, turn(x, *rotary(position + torch.tensor([0.0, 1.7]))), atol=0.1)
    for event in range(len(counts)):
        mine = layout.event_N == event
        before, after = (torch.einsum("nhe,mhe->hnm", part[mine], part[mine]) for part in (plain, relative))
        assert torch.allclose(before, after, atol=1e-4)


LAYOUT = Layout(torch.tensor([0, 5], dtype=torch.int32), torch.zeros(5, dtype=torch.int64), 5)
ROTARY = torch.ones(5, 8), torch.zeros(5, 8)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_layer_takes_every_activation(activation: str):
    settings = ModelSettings.model_validate({"width": 16, "heads": 2, "hidden": 24, "activation": activation})
    x = torch.randn(5, 16)
    assert Block(settings, None)(x, ROTARY, LAYOUT).isfinite().all()


def test_dropout_acts_in_training_only():
    block, x = Block(ModelSettings(width=16, heads=2, dropout=0.5), None), torch.randn(5, 16)
    assert not torch.equal(block(x, ROTARY, LAYOUT), block(x, ROTARY, LAYOUT))
    block.eval()
    assert torch.equal(block(x, ROTARY, LAYOUT), block(x, ROTARY, LAYOUT))
