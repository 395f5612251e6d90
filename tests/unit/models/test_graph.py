"""The learned graph: bins of the hash, and weights inside a bin against the definition."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ringflow.elements.batch import random_elements
from ringflow.models import graph
from ringflow.models.attention import Layout
from ringflow.models.graph import Bins, GraphMixer, bins_of, hash_keys
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings

COUNTS = [300, 0, 1, 5, 129, 127, 128, 64]
SIZE = 64


def layout_of(counts: list[int], longest: int | None = None) -> Layout:
    return Layout.of(random_elements(counts), longest)


def members(bins: Bins) -> list[list[int]]:
    assert bins.order_S is not None
    ends = bins.offsets.tolist()
    return [bins.order_S[first:last].tolist() for first, last in pairwise(ends)]


def drawn_keys(count: int, below: int) -> Tensor:
    return torch.randint(0, below, (count,), generator=torch.Generator().manual_seed(1))


def test_bins_are_nearly_equal_within_events_and_hold_everybody_once():
    layout = layout_of(COUNTS)
    key = torch.randperm(sum(COUNTS), generator=torch.Generator().manual_seed(1))
    filled = [part for part in members(bins_of(key, layout, SIZE)) if part]
    assert sorted(row for part in filled for row in part) == list(range(sum(COUNTS)))
    events = [{int(layout.event_N[row]) for row in part} for part in filled]
    assert all(len(event) == 1 for event in events)
    sizes = {
        event: [len(part) for part, its in zip(filled, events, strict=True) if its == {event}] for event in range(8)
    }
    assert {event: len(found) for event, found in sizes.items()} == {0: 5, 1: 0, 2: 1, 3: 1, 4: 3, 5: 2, 6: 2, 7: 1}
    assert all(max(found) - min(found) <= 1 for found in sizes.values() if found)
    assert max(max(found, default=0) for found in sizes.values()) <= SIZE


def test_equal_keys_share_a_bin_whatever_their_order():
    layout, key = layout_of(COUNTS), drawn_keys(sum(COUNTS), 60)
    found = members(bins_of(key, layout, SIZE))
    pairs = [(int(layout.event_N[row]), int(key[row]), number) for number, part in enumerate(found) for row in part]
    assert len({(event, value) for event, value, _ in pairs}) == len(set(pairs))


def test_no_bin_is_longer_than_the_bound_even_if_all_keys_are_equal():
    for key in (torch.zeros(sum(COUNTS), dtype=torch.int64), drawn_keys(sum(COUNTS), 4)):
        bins = bins_of(key, layout_of(COUNTS), SIZE)
        assert int(bins.offsets.diff().max()) <= bins.longest
        assert int(bins.offsets[-1]) == sum(COUNTS)


@pytest.mark.heavy
def test_one_compiled_program_serves_all_batches_of_a_shape(monkeypatch: pytest.MonkeyPatch):
    """Without the kernel of the accelerator, which stands apart: it must meet no value that shapes depend on."""

    def stand_in(query: Tensor, key: Tensor, value: Tensor, *_: object, **options: Tensor) -> Tensor:
        return value[options["order"]] + query.mean() + key.mean()

    monkeypatch.setattr(graph, "attend", stand_in)
    model = Model(ModelSettings(backbone="graph", width=32, heads=2, layers=2, hidden=32))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    given = torch.randn(456, len(model.embedding.mean_F)), torch.zeros(456, dtype=torch.int64), torch.randn(456, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled(*given, layout_of([100, 300, 56], longest=400)).momentum_N5.sum().backward()
        with torch._dynamo.config.patch(error_on_recompile=True):
            compiled(*given, layout_of([200, 200, 56], longest=400))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_normalised_gaussians_of_the_distance(dtype: torch.dtype):
    mixer = GraphMixer(ModelSettings(backbone="graph", width=32, heads=2))
    with torch.no_grad():
        mixer.log_temperature_H.copy_(torch.tensor([-1.0, -3.0]))
    space, value = torch.randn(2, 40, 2, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    distance = (space.float()[:, None] - space.float()[None]).square().sum(-1)
    weights = torch.softmax(-mixer.log_temperature_H.exp() * distance, dim=1)
    expected = torch.einsum("ijh,jhe->ihe", weights, value.float())
    found = mixer._convolve(space, value, None, Layout(torch.tensor([0, 40], dtype=torch.int32), torch.zeros(40), 40))
    assert (found.float() - expected).abs().max() < (1e-5 if dtype == torch.float32 else 0.05)


def test_the_hash_puts_alike_elements_together():
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(100, 32, generator=generator)
    space = centres.repeat_interleave(2, 0) + 0.01 * torch.randn(200, 32, generator=generator)
    key = hash_keys(space, torch.randn(5, 32, generator=generator))
    found = members(bins_of(key, layout_of([200]), 25))
    together = sum({row, row + 1} <= set(part) for row in range(0, 200, 2) for part in found)
    assert together > 75  # of 100; by chance 12
