"""Tables of events: any sensible types are taken, anything else is told with its name, and candidates keep their events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fixtures.fake_events import fake_block, same
from ringflow.base.errors import DatasetError
from ringflow.data.write import columns_of
from ringflow.event.block import EventBlock
from ringflow.infer.remote import TableReconstruction, block_of, carry, table_of
from ringflow.models.file import save_model

KINDS = ("track", "cluster")


def elements(events: int = 7) -> EventBlock:
    block = fake_block(0, events)
    return EventBlock(block.event_number, {kind: block[kind] for kind in KINDS})


def table(events: int = 7) -> pa.Table:
    return table_of(elements(events), columns_of(elements(events)))


def test_a_block_goes_and_comes_back():
    assert same(block_of(table(), KINDS), elements())
    pieces = pa.concat_tables([table().slice(0, 3), table().slice(3)])  # in chunks, with offsets
    assert same(block_of(pieces, KINDS), elements())
    assert same(block_of(table().combine_chunks().to_batches()[0], KINDS), elements())
    assert all(values.flags.writeable for kind in KINDS for values in block_of(table(), KINDS)[kind].columns.values())


def test_wide_types_are_put_right():
    wide = pa.schema(
        [(f.name, pa.large_list(pa.float64()) if pa.types.is_list(f.type) else pa.int32()) for f in table().schema]
    )
    assert same(block_of(table().cast(wide), KINDS), elements())


@pytest.mark.parametrize(
    ("column", "first", "kind", "message"),
    [
        ("track_eta", [1.0] * 40, pa.list_(pa.float32()), "event 0 has 40 values in 'track_eta' but .* in 'track_pt'"),
        ("track_pt", None, pa.list_(pa.float32()), "'track_pt' has null values; fill them, an event of nothing has"),
        ("track_pt", [None] * 40, pa.list_(pa.float32()), "the column 'track_pt' has null values; fill them"),
        ("track_pt", 1.0, pa.float32(), "the column 'track_pt' is float; give a list of numbers per event"),
        ("track_pt", ["a"], pa.list_(pa.string()), "the column 'track_pt' is list<.*string>; give a list of numbers"),
        ("event_number", 1.0, pa.float32(), "the column 'event_number' is float; give integers"),
        ("event_number", None, None, "the events have no column 'event_number'; number them"),
    ],
)
def test_what_is_wrong_is_named(column: str, first: Any, kind: pa.DataType | None, message: str):
    given = table(1)
    place = given.schema.get_field_index(column)
    with pytest.raises(DatasetError, match=message):
        block_of(
            given.drop([column]) if kind is None else given.set_column(place, column, pa.array([first], kind)), KINDS
        )


def test_a_collection_that_is_missing_is_named():
    with pytest.raises(DatasetError, match="the events have no cluster columns such as 'cluster_energy'"):
        block_of(table().select(["event_number", "track_pt"]), KINDS)


@pytest.fixture
def carried(small_model: Callable[..., Any], tmp_path: Path) -> Any:
    save_model(tmp_path / "model.safetensors", small_model().model, card=small_model().card)
    return carry(tmp_path / "model.safetensors")


def test_candidates_of_tables(carried: Any):
    work, session = TableReconstruction(carried, events_at_once=8), carried.open()
    made = work(table(30))
    assert made["event_number"].to_pylist() == list(range(30))
    wanted = [session.reconstruct(elements(30).take(start, min(start + 8, 30))) for start in range(0, 30, 8)]
    px = made["candidate_px"].combine_chunks().flatten().to_pylist()
    assert px == np.concatenate([part["px"] for part in wanted]).tolist()
    wanted_columns, schema = work.plan(table().column_names)
    assert (wanted_columns, schema) == (table().column_names, made.schema)
    assert work(table().slice(0, 0)).schema == schema
    beside = TableReconstruction(carried, 8, beside=True)(table(30))
    assert beside.column_names == [*table().column_names, *schema.names[1:]]
    assert beside["candidate_px"].to_pylist() == made["candidate_px"].to_pylist()


def test_a_missing_column_is_told_before_any_event(carried: Any, small_onnx: Callable[..., Path]):
    names = [name for name in table().column_names if name != "track_calo_x"]
    for model in (carried, carry(small_onnx())):
        with pytest.raises(DatasetError, match="the track collection has no column 'calo_x'"):
            TableReconstruction(model).plan(names)
