"""Packed elements: chosen, filled up, joined and moved without a row getting lost or into another event."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ringflow.base.errors import DatasetError
from ringflow.elements.batch import (
    CLUSTER,
    TRACK,
    ElementBatch,
    ElementTargets,
    from_block,
    join,
    target_collection,
    target_columns,
)
from ringflow.elements.features import FEATURES, feature_names
from ringflow.event.block import Collection, EventBlock, cast

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
    return inputs if targets is None else {**inputs, **{f"target {name}": v for name, v in vars(targets).items()}}


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


@given(st.lists(Counts, min_size=1, max_size=4), st.booleans())
def test_joined_batches_follow_each_other(parts: list[list[int]], with_targets: bool):
    firsts = [1 + sum(map(sum, parts[:number])) for number in range(len(parts))]
    made = [numbered(counts, first, with_targets=with_targets) for counts, first in zip(parts, firsts, strict=True)]
    whole = numbered([count for counts in parts for count in counts], with_targets=with_targets)
    joined = join(made)
    assert torch.equal(joined.offsets_B, whole.offsets_B)
    assert (joined.targets is not None) == with_targets
    assert same_rows(joined, whole, range(whole.num_elements))


@pytest.mark.parametrize("with_targets", [True, False])
def test_all_of_a_batch_moves(with_targets: bool):
    moved = numbered([2, 1], with_targets=with_targets).to("meta")
    assert {values.device.type for values in [moved.offsets_B, *columns(moved).values()]} == {"meta"}
    assert (moved.targets is not None) == with_targets


MOMENTUM = ("px", "py", "pz", "energy")
ESSENTIAL = {
    kind: {name for feature in FEATURES[kind] if feature.group is None for name in feature.needs} for kind in FEATURES
}
OPTIONAL = [
    (kind, name)
    for kind in FEATURES
    for name in sorted({name for feature in FEATURES[kind] for name in feature.needs} - ESSENTIAL[kind])
]


def calorimeter_of(kind: str) -> str:
    return "hit" if kind == "hit" else "cluster"


def without_column(block: EventBlock, collection: str, column: str) -> EventBlock:
    part = block[collection]
    kept = {name: values for name, values in part.columns.items() if name != column}
    return EventBlock(block.event_number, {**block.collections, collection: Collection(part.counts, kept)})


def small_block(counts: Mapping[str, list[int]], targets: list[tuple[int, int, int]] = ()) -> EventBlock:
    """Tracks of pt 1, 2, ... and clusters of energy 101, 102, ...; targets of (event, track, cluster), of pz 1, 2, ..."""
    events = len(counts["track"])
    parts = {}
    for kind, first in (("track", 1), ("cluster", 101)):
        values = np.arange(first, first + sum(counts[kind]), dtype=np.float64)
        columns = {name: np.ones(len(values)) for name in sorted(ESSENTIAL[kind])}
        columns["pt" if kind == "track" else "energy"] = values
        parts[kind] = cast(kind, np.array(counts[kind]), columns)
    event = np.array([target[0] for target in targets], dtype=np.int64)
    number = np.arange(1, len(targets) + 1)
    truth = {"label": number % 5 + 1, "charge": number % 2, **dict.fromkeys(MOMENTUM, 0.5 * number), "pz": number}
    truth |= {name: np.array([target[at] for target in targets]) for at, name in ((1, "track"), (2, "cluster"))}
    parts["target"] = cast("target", np.bincount(event, minlength=events), truth)
    return EventBlock(np.arange(events), parts)


def test_tracks_come_before_clusters_in_every_event():
    batch = from_block(small_block({"track": [2, 0, 1, 0], "cluster": [1, 2, 0, 0]}))
    assert batch.counts_B.tolist() == [3, 2, 1, 0]
    assert batch.kind_N.tolist() == [TRACK, TRACK, CLUSTER, CLUSTER, CLUSTER, TRACK]
    tracks = batch.kind_N == TRACK
    assert batch.reference_N4[tracks, 0].tolist() == [1, 2, 3]
    assert batch.reference_N4[~tracks, 3].tolist() == [101, 102, 103]
    assert batch.charge_N.tolist() == [1, 1, 0, 0, 0, 1]


def test_targets_land_on_their_elements():
    counts = {"track": [2, 0, 1, 0], "cluster": [2, 2, 0, 0]}
    targets = [(0, -1, 1), (0, 0, -1), (1, -1, 0), (2, 0, -1)]
    batch = from_block(small_block(counts, targets), with_targets=True)
    assert batch.targets is not None
    assert batch.targets.momentum_N4[:, 2].tolist() == [2, 0, 0, 1, 3, 0, 4]
    assert batch.targets.momentum_N4[:, 3].tolist() == [1, 0, 0, 0.5, 1.5, 0, 2]
    assert batch.targets.label_N.tolist() == [3, 0, 0, 2, 4, 0, 5]
    assert batch.targets.charge_N.tolist() == [0, 0, 0, 1, 1, 0, 0]
    nothing = from_block(small_block({"track": [0], "cluster": [0]}), with_targets=True)
    assert nothing.features_NF.shape == (0, len(feature_names(("track", "cluster"))))


@pytest.mark.parametrize("calorimeter", ["cluster", "hit"])
def test_reference_and_position_agree_with_the_columns(block: EventBlock, calorimeter: str):
    batch = from_block(block, calorimeter)
    is_track = batch.kind_N == TRACK
    pt, eta, phi, energy = batch.reference_N4.double().unbind(1)
    mass2 = energy**2 - (pt * torch.cosh(eta)) ** 2
    assert mass2[~is_track].abs().max() < 1e-5 * energy[~is_track].square().max()
    slow = is_track & (energy < 3)
    assert mass2[slow].sqrt() == pytest.approx(torch.full((int(slow.sum()),), 0.13957).double(), rel=1e-2)
    assert torch.equal(batch.position_N2[~is_track], batch.reference_N4[~is_track, 1:3])
    x, y, z = (block[calorimeter][axis].astype(np.float64) for axis in "xyz")
    np.testing.assert_allclose(batch.position_N2[~is_track, 0], np.arcsinh(z / np.hypot(x, y)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(phi[~is_track], np.arctan2(y, x), rtol=1e-5, atol=1e-5)
    x, y, z = (block["track"][f"calo_{axis}"].astype(np.float64) for axis in "xyz")
    expected = np.stack([np.arcsinh(z / np.hypot(x, y)), np.arctan2(y, x)], axis=1)
    np.testing.assert_allclose(batch.position_N2[is_track], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("calorimeter", ["cluster", "hit"])
def test_no_momentum_of_the_targets_is_lost(block: EventBlock, calorimeter: str):
    batch = from_block(block, calorimeter, with_targets=True)
    targets = block[target_collection(calorimeter)]
    assert batch.targets is not None
    assert int((batch.targets.label_N > 0).sum()) == len(targets)
    assert not batch.targets.momentum_N4[batch.targets.label_N == 0].any()
    for event in range(len(block)):
        one, part = batch.take(torch.tensor([event])), targets.take(event, event + 1)
        assert one.targets is not None
        for column, name in enumerate(MOMENTUM):
            # Sums without rounding: the numbers are the same ones, in another order.
            assert math.fsum(one.targets.momentum_N4[:, column].tolist()) == math.fsum(part[name].tolist())


def missing(batch: ElementBatch, names: tuple[str, ...], kind: str) -> set[str]:
    """Features of a kind that no element of it has."""
    own = [at for at, name in enumerate(names) if name.startswith(f"{kind}_")]
    rows = batch.features_NF[batch.kind_N == ("track", "cluster", "hit").index(kind)][:, own]
    return {FEATURES[kind][at].name for at in range(len(own)) if rows[:, at].isnan().all()}


@pytest.mark.parametrize(("kind", "column"), OPTIONAL)
def test_a_missing_column_makes_its_features_missing_and_no_others(block: EventBlock, kind: str, column: str):
    calorimeter = calorimeter_of(kind)
    whole = from_block(block, calorimeter)
    lacking = from_block(without_column(block, kind, column), calorimeter)
    expected = {feature.name for feature in FEATURES[kind] if column in feature.needs}
    assert expected
    assert missing(lacking, feature_names(("track", calorimeter)), kind) == expected
    there = ~lacking.features_NF.isnan()
    assert torch.equal(lacking.features_NF[there], whole.features_NF[there])
    assert torch.equal(lacking.position_N2, whole.position_N2)


ESSENTIAL_COLUMNS = [(kind, name) for kind in FEATURES for name in sorted(ESSENTIAL[kind])]
TRUTH_COLUMNS = [("target", name) for name in target_columns("cluster")]


@pytest.mark.parametrize(("kind", "column"), [*ESSENTIAL_COLUMNS, *TRUTH_COLUMNS])
def test_a_missing_column_that_is_needed_is_named(block: EventBlock, kind: str, column: str):
    with pytest.raises(DatasetError, match=f"the {kind} collection has no column '{column}';"):
        from_block(without_column(block, kind, column), calorimeter_of(kind), with_targets=kind == "target")


@pytest.mark.parametrize("kind", ["cluster", "target"])
def test_a_missing_collection_is_named(block: EventBlock, kind: str):
    rest = {name: part for name, part in block.collections.items() if name != kind}
    with pytest.raises(DatasetError, match=f"the {kind} collection has no column"):
        from_block(EventBlock(block.event_number, rest), with_targets=True)
