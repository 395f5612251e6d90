"""Packing: every event once, no batch over its budget; filled batches hold the same events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ringflow.base.errors import FailureError, UsageError
from ringflow.elements.batch import PADDING
from ringflow.train.batches import DataPosition, Feed, pack

Source = Callable[..., Any]


def make_feed(source: Any, **options: Any) -> Feed:
    return Feed(source, **{"budget": 100, "reuse": 1, "seed": 1, "device": torch.device("cpu"), **options})


@given(st.lists(st.integers(0, 60), max_size=80), st.integers(60, 200), st.integers(0, 5))
def test_every_event_is_packed_once_and_no_batch_is_over_its_budget(counts: list[int], budget: int, seed: int):
    sizes = torch.tensor(counts, dtype=torch.int64)
    batches = pack(sizes, budget, (seed,))
    assert sorted(event for batch in batches for event in batch.tolist()) == list(range(len(counts)))
    assert all(int(sizes[batch].sum()) <= budget for batch in batches)
    assert [batch.tolist() for batch in pack(sizes, budget, (seed,))] == [batch.tolist() for batch in batches]


def test_batches_are_full_even_of_large_events():
    counts = torch.randint(1000, 6000, (2000,), generator=torch.Generator().manual_seed(3))
    filled = [int(counts[batch].sum()) / 16_384 for batch in pack(counts, 16_384, (1,))[:-1]]
    assert sum(filled) / len(filled) > 0.97


def test_an_event_over_the_budget_says_which_budget_to_try():
    with pytest.raises(UsageError, match=r"700 elements, more than compute.batch_elements=512; .*batch_elements=1024"):
        pack(torch.tensor([3, 700]), 512, (1,))


def test_a_feed_goes_through_chunks_and_turns_and_shows_every_event(source: Source):
    given_source = source()
    feed = make_feed(given_source, reuse=2)
    seen: dict[tuple[int, int], int] = {}
    for _ in range(14):
        batch = feed.next(10**9)
        turn = batch.position[:2]
        seen[turn] = seen.get(turn, 0) + batch.num_events
        assert batch.num_elements == batch.elements.num_elements
    assert list(seen) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert all(count == 24 for turn, count in seen.items() if turn != (2, 0))
    assert given_source.asked == [0, 1, 2]
    assert given_source.prefetched == [1, 2, 3]
    assert DataPosition(3, 0, 1).next_turn(2) == (3, 1, 0)
    assert DataPosition(3, 1, 1).next_turn(2) == (4, 0, 0)


def test_every_turn_has_an_order_of_its_own(source: Source):
    feed = make_feed(source(), reuse=2, budget=1000)
    first, second = (feed.next(10**9).elements.reference_N4 for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first.sort(0).values, second.sort(0).values)


@pytest.mark.parametrize(("left", "prefetched"), [(48, []), (49, [1])])
def test_the_chunk_after_the_last_is_not_prepared(source: Source, left: int, prefetched: list[int]):
    given_source = source()
    make_feed(given_source, reuse=2).next(left)
    assert given_source.prefetched == prefetched


def test_a_feed_taken_up_gives_the_same_batches_and_any_can_be_made_again(source: Source):
    feed = make_feed(source(), reuse=2, fill=True)
    batches = [feed.next(10**9) for _ in range(12)]
    assert batches[-1].position.chunk == 1
    again = make_feed(source(), reuse=2, fill=True, position=batches[4].position)
    for batch in batches[4:]:
        following = again.next(10**9)
        assert following.position == batch.position
        assert torch.equal(following.elements.reference_N4, batch.elements.reference_N4)
    for batch in batches:
        real = batch.elements.reference_N4[: batch.num_elements]
        assert torch.equal(feed.again(batch.position).reference_N4, real)


def test_filled_batches_have_one_shape_and_the_same_events(source: Source):
    plain, filled = make_feed(source()), make_feed(source(), fill=True)
    shapes = set()
    for _ in range(8):
        a, b = plain.next(10**9), filled.next(10**9)
        for field in fields(a.elements):
            if field.name not in ("offsets_B", "targets"):
                rows, same = getattr(b.elements, field.name)[: a.num_elements], getattr(a.elements, field.name)
                assert torch.equal(rows.nan_to_num(9.0), same.nan_to_num(9.0))
        assert torch.equal(b.elements.targets.label_N[: a.num_elements], a.elements.targets.label_N)
        assert (b.elements.targets.label_N[a.num_elements :] == PADDING).all()
        assert torch.equal(b.elements.offsets_B[: a.num_events + 1], a.elements.offsets_B)
        assert (b.num_events, b.num_elements) == (a.num_events, a.num_elements)
        shapes.add((b.elements.num_elements, b.elements.num_events, b.layout.longest))
    assert shapes == {(100, 64, 512)}


def test_what_fills_a_batch_keeps_to_the_bound_of_an_event(source: Source):
    batch = make_feed(source(), budget=3000, fill=True).next(10**9)
    assert batch.elements.offsets_B[-1] == batch.elements.num_elements == 3000
    assert int(batch.elements.counts_B.min()) == 0
    assert int(batch.elements.counts_B.max()) == batch.layout.longest == 512


def test_a_shape_grows_only_when_it_must(source: Source):
    shape, slots = None, []
    for num_events in (24, 240, 24):
        feed = make_feed(source(num_events=num_events), budget=1000, fill=True, shape=shape)
        feed.next(1)
        shape = feed.shape
        slots.append(shape.slots)
    assert slots[0] == 64 < slots[1] == slots[2]


def test_a_chunk_without_events_is_an_error(source: Source):
    with pytest.raises(FailureError, match="chunk 0 of the training data has no events"):
        make_feed(source(num_events=0)).next(1)


def test_a_source_does_not_disturb_the_random_numbers(source: Source):
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    make_feed(source()).next(1)
    assert torch.equal(torch.rand(2), expected)
