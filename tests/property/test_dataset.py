"""Round trips: whatever events, cut however, come back to the last bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import awkward as ak
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fixtures.fake_events import FakeBlocks, fake_block, fake_request, same
from ringflow.data.manifest import make_manifest, write_manifest
from ringflow.data.outside import write_dataset
from ringflow.data.production import produce
from ringflow.data.read import Dataset
from ringflow.data.write import ShardWriter, columns_of
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.event.schema import COLLECTIONS


@st.composite
def blocks(draw: st.DrawFn) -> EventBlock:
    """Events with some of the collections and columns, and any values a column can hold; indices point to nothing."""
    num_events = draw(st.integers(1, 6))
    first = draw(st.integers(0, 10**15))
    collections = {}
    for name in draw(st.lists(st.sampled_from(sorted(COLLECTIONS)), min_size=1, max_size=4, unique=True)):
        counts = draw(arrays(np.int64, num_events, elements=st.integers(0, 5)))
        chosen = draw(st.lists(st.sampled_from(COLLECTIONS[name]), min_size=1, max_size=4, unique_by=lambda c: c.name))
        size = int(counts.sum())
        columns = {c.name: np.full(size, -1, c.dtype) if c.points_to else draw(arrays(c.dtype, size)) for c in chosen}
        ordered = {c.name: columns[c.name] for c in COLLECTIONS[name] if c.name in columns}
        collections[name] = Collection(counts, ordered)
    in_order = {name: collections[name] for name in COLLECTIONS if name in collections}
    return EventBlock(np.arange(first, first + num_events), in_order)


def bits(block: EventBlock) -> list[bytes]:
    """Every column as bytes, so that NaN equals itself."""
    parts = block.collections.values()
    return [block.event_number.tobytes(), *(v.tobytes() for p in parts for v in (p.counts, *p.columns.values()))]


@settings(max_examples=25)
@given(block=blocks(), cut=st.integers(0, 6))
def test_a_shard_gives_back_every_bit(block: EventBlock, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with ShardWriter(Path(folder) / "shard-00000.parquet") as writer:
            writer.append(block.take(0, min(cut, len(block))))
            writer.append(block.take(min(cut, len(block)), len(block)))
            shards = [writer.finish()]
        columns = columns_of(block)
        write_manifest(
            Path(folder), make_manifest(detector="d", sample="s", columns=columns, shards=shards, provenance={})
        )
        read = concatenate(list(Dataset(folder).events()))
        assert columns_of(read) == columns
        assert bits(read) == bits(block)


@settings(max_examples=10)
@given(
    events=st.integers(1, 30),
    events_per_shard=st.integers(1, 12),
    block_events=st.integers(1, 9),
    split=st.sampled_from(["train", "valid", "test"]),
)
def test_however_a_production_is_cut(events: int, events_per_shard: int, block_events: int, split: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        request = fake_request(events, events_per_shard=events_per_shard, block_events=block_events)
        produce(Path(folder) / "d", request, FakeBlocks(block_events), workers=1)
        dataset = Dataset(Path(folder) / "d")
        assert same(concatenate(list(dataset.events())), fake_block(0, events))
        packed = dataset.packed(["track", "hit_energy"], split)
        for index, number in enumerate(packed.event_number):
            event = fake_block(int(number), 1)
            assert np.array_equal(packed[index]["track"]["pt"], event["track"]["pt"])
            assert np.array_equal(packed[index]["hit"]["energy"], event["hit"]["energy"])


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=25)
@given(
    pt=st.lists(st.lists(FLOATS, max_size=4), min_size=1, max_size=8),
    events_per_shard=st.integers(1, 9),
    first=st.integers(0, 10**12),
)
def test_outside_arrays_come_back(pt: list[list[float]], events_per_shard: int, first: int) -> None:
    numbers = np.arange(first, first + len(pt))
    values = ak.values_astype(ak.Array([*pt, [0.0]])[:-1], np.float64)  # a list of empty lists alone has no type
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(
            Path(folder) / "d",
            detector="d",
            tracks={"pt": values},
            event_number=numbers,
            events_per_shard=events_per_shard,
        )
        events = dataset.to_awkward()
        assert events.track.pt.tolist() == pt
        assert events.event_number.tolist() == numbers.tolist()
        assert sum(dataset.manifest.splits.values()) == len(pt)
