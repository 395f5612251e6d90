"""Exact attention of packed sequences, against the definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ringflow.models import attention
from ringflow.models.attention import attend, groups_of_similar_length

COUNTS = [5, 0, 30, 1, 29, 7, 30]


def offsets_of(counts: list[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int()


def parts(rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    drawn = torch.randn(3, rows, 2, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    return drawn[0], drawn[1], drawn[2]


def by_definition(query: Tensor, key: Tensor, value: Tensor, counts: list[int], scale: float) -> Tensor:
    out = []
    for q, k, v in zip(*(part.split(counts) for part in (query, key, value)), strict=True):
        weights = torch.softmax(scale * torch.einsum("nhe,mhe->hnm", q, k), dim=2)
        out.append(torch.einsum("hnm,mhe->nhe", weights, v))
    return torch.cat(out)


@pytest.mark.parametrize("counts", [[40], COUNTS, [1], [8, 8, 8]])
@pytest.mark.parametrize("scale", [None, 1.0])
def test_it_is_what_the_formula_says(counts: list[int], scale: float | None):
    query, key, value = parts(sum(counts))
    expected = by_definition(query, key, value, counts, 8**-0.5 if scale is None else scale)
    found = attend(query, key, value, offsets_of(counts), max(counts), scale=scale)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("counts", [[40], COUNTS])
def test_sequences_in_another_order(counts: list[int]):
    query, key, value = parts(sum(counts))
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3))
    expected = torch.empty_like(query)
    expected[order] = by_definition(query[order], key[order], value[order], counts, 8**-0.5)
    found = attend(query, key, value, offsets_of(counts), max(counts), order=order)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(dtype: torch.dtype):
    exact = by_definition(*parts(sum(COUNTS)), COUNTS, 8**-0.5)
    found = attend(*parts(sum(COUNTS), dtype), offsets_of(COUNTS), max(COUNTS))
    assert found.dtype == dtype
    assert (found.float() - exact).abs().max() < 0.05


def test_gradients_are_those_of_the_formula():
    given = [part.requires_grad_() for part in parts(sum(COUNTS))]
    attend(*given, offsets_of(COUNTS), max(COUNTS)).square().sum().backward()
    expected = [part.detach().clone().requires_grad_() for part in given]
    by_definition(*expected, COUNTS, 8**-0.5).square().sum().backward()
    for found, wanted in zip(given, expected, strict=True):
        assert torch.allclose(found.grad, wanted.grad, atol=1e-4)


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


def test_no_sequences_no_groups():
    assert groups_of_similar_length([]) == groups_of_similar_length([0, 0]) == []


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
