"""Packed elements: chosen, filled up, joined and moved without a row getting lost or into another event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ringflow.elements.batch import PADDING, ElementBatch, ElementTargets, join

Counts = st.lists(st.integers(0, 4), min_size=1, max_size=6)


def numbered(counts: Sequence[int], first: int = 1, *, with_targets: bool = True) -> ElementBatch:
    """Events of so many elements; every column of row n holds numbers that tell which row and column it is."""
    total = sum(counts)
    row = torch.arange(first, first + total)
    targets = ElementTargets(row + 1000, row + 2000, (row + 3000)[:, None] + 0.1 * torch.arange(4))
    return ElementBatch(
        kind_N=row,
        features_NF=row[:, None] + 0.1 * torch.arange(3),
        position_N2=row[:, None] + 0.1 * torch.arange(2),
        reference_N4=row[:, None] + 0.1 * torch.arange(4),
        charge_N=-row,
        offsets_B=torch.tensor([0, *counts]).cumsum(0),
        targets=targets if with_targets else None,
    )


def columns(batch: ElementBatch) -> dict[str, Tensor]:
    """Every tensor with a row per element."""
    inputs = {field.name: getattr(batch, field.name) for field in fields(batch)}
    targets, _ = inputs.pop("targets"), inputs.pop("offsets_B")
    truth = (
        {} if targets is None else {f"target {field.name}": getattr(targets, field.name) for field in fields(targets)}
    )
    return inputs | truth


def same_rows(batch: ElementBatch, source: ElementBatch, rows: Sequence[int]) -> bool:
    given, expected = columns(batch), columns(source)
    assert given.keys() == expected.keys()
    return all(torch.equal(values, expected[name][list(rows)]) for name, values in given.items())


def test_a_batch_knows_its_events():
    batch = numbered([2, 0, 3, 0])
    assert (batch.num_events, batch.num_elements) == (4, 5)
    assert batch.counts_B.tolist() == [2, 0, 3, 0]
    assert batch.event_N.tolist() == [0, 0, 2, 2, 2]
    nothing = numbered([0, 0])
    assert (nothing.num_events, nothing.num_elements) == (2, 0)
    assert nothing.event_N.tolist() == []


@given(Counts, st.data())
def test_events_are_taken_in_the_given_order(counts: list[int], data: st.DataObject):
    chosen = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=8))
    batch = numbered(counts)
    taken = batch.take(torch.tensor(chosen, dtype=torch.int64))
    assert taken.counts_B.tolist() == [counts[event] for event in chosen]
    starts = batch.offsets_B.tolist()
    assert same_rows(taken, batch, [row for event in chosen for row in range(starts[event], starts[event + 1])])


@given(Counts, st.integers(1, 5))
def test_rows_that_fill_up_a_batch_are_one_more_event_marked_as_padding(counts: list[int], more: int):
    batch = numbered([*counts, 1])
    events = torch.arange(len(counts))
    filled = batch.take(events, fill_to=sum(counts) + more)
    assert filled.counts_B.tolist() == [*counts, more]
    assert filled.num_elements == sum(counts) + more
    assert filled.targets is not None
    assert filled.targets.label_N[sum(counts) :].tolist() == [PADDING] * more
    assert same_rows(filled.take(events), batch, range(sum(counts)))
    assert batch.targets is not None
    assert PADDING not in batch.targets.label_N


def test_a_full_batch_is_not_filled_and_one_too_full_is_refused():
    batch = numbered([2, 3])
    assert batch.take(torch.tensor([1, 0]), fill_to=5).counts_B.tolist() == [3, 2]
    with pytest.raises(ValueError, match="5 elements do not fit into 4"):
        batch.take(torch.tensor([0, 1]), fill_to=4)


def test_a_batch_without_targets_is_taken_and_filled_too():
    batch = numbered([2, 3], with_targets=False)
    filled = batch.take(torch.tensor([1]), fill_to=4)
    assert filled.targets is None
    assert filled.kind_N.tolist() == [3, 4, 5, 1]


@given(st.lists(Counts, min_size=1, max_size=4), st.booleans())
def test_joined_batches_follow_each_other(parts: list[list[int]], with_targets: bool):
    firsts = [1 + sum(map(sum, parts[:number])) for number in range(len(parts))]
    made = [numbered(counts, first, with_targets=with_targets) for counts, first in zip(parts, firsts, strict=True)]
    whole = numbered([count for counts in parts for count in counts], with_targets=with_targets)
    joined = join(made)
    assert torch.equal(joined.offsets_B, whole.offsets_B)
    assert (joined.targets is not None) == with_targets
    assert same_rows(joined, whole, range(whole.num_elements))


@given(Counts, st.data())
def test_a_batch_cut_in_two_is_joined_again(counts: list[int], data: st.DataObject):
    cut = data.draw(st.integers(0, len(counts)))
    batch, events = numbered(counts), torch.arange(len(counts))
    again = join([batch.take(events[:cut]), batch.take(events[cut:])])
    assert torch.equal(again.offsets_B, batch.offsets_B)
    assert same_rows(again, batch, range(batch.num_elements))


@pytest.mark.parametrize("with_targets", [True, False])
def test_all_of_a_batch_moves(with_targets: bool):
    moved = numbered([2, 1], with_targets=with_targets).to("meta")
    assert {values.device.type for values in [moved.offsets_B, *columns(moved).values()]} == {"meta"}
    assert (moved.targets is not None) == with_targets


def test_moving_changes_nothing():
    batch = numbered([2, 0, 1])
    stayed = batch.to("cpu", non_blocking=True)
    assert torch.equal(stayed.offsets_B, batch.offsets_B)
    assert same_rows(stayed, batch, range(3))
    assert replace(stayed, targets=None).to("cpu").targets is None
