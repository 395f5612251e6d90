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
from ringflow.infer.frames import CANDIDATES, block_of, event_columns, reconstruct_tables, require_columns, table_of
from ringflow.infer.session import Session

KINDS = ("track", "cluster")


def elements(events: int = 7) -> EventBlock:
    block = fake_block(0, events)
    return EventBlock(block.event_number, {kind: block[kind] for kind in KINDS})


def table(events: int = 7) -> pa.Table:
    return table_of(elements(events), columns_of(elements(events)))


def changed(column: str, values: pa.Array) -> pa.Table:
    given = table()
    return given.set_column(given.schema.get_field_index(column), column, values)


def test_a_block_goes_and_comes_back():
    assert same(block_of(table(), KINDS), elements())
    pieces = pa.concat_tables([table().slice(0, 3), table().slice(3)])  # in chunks, with offsets
    assert same(block_of(pieces, KINDS), elements())
    assert same(block_of(table().combine_chunks().to_batches()[0], KINDS), elements())


def test_wide_types_are_put_right():
    wide = pa.schema(
        [(f.name, pa.large_list(pa.float64()) if pa.types.is_list(f.type) else pa.int32()) for f in table().schema]
    )
    assert same(block_of(table().cast(wide), KINDS), elements())


def test_memory_can_be_written_to():
    assert all(values.flags.writeable for kind in KINDS for values in block_of(table(), KINDS)[kind].columns.values())


def test_what_is_wrong_is_named():
    lists, eta = (table()[name].to_pylist() for name in ("track_pt", "track_eta"))
    words = [["a"] * len(values) for values in lists]
    with pytest.raises(DatasetError, match="event 2 has 1 values in 'track_eta' but"):
        block_of(changed("track_eta", pa.array([*eta[:2], [1.0], *eta[3:]], pa.list_(pa.float32()))), KINDS)
    with pytest.raises(DatasetError, match="the column 'track_pt' has null values; fill them, an event of nothing has"):
        block_of(changed("track_pt", pa.array([None, *lists[1:]], pa.list_(pa.float32()))), KINDS)
    with pytest.raises(DatasetError, match="the column 'track_pt' has null values; fill them"):
        block_of(changed("track_pt", pa.array([[None] * len(lists[0]), *lists[1:]], pa.list_(pa.float32()))), KINDS)
    with pytest.raises(DatasetError, match="the column 'track_pt' is float; give a list of numbers per event"):
        block_of(changed("track_pt", pa.array([1.0] * 7, pa.float32())), KINDS)
    with pytest.raises(DatasetError, match="the column 'track_pt' has lists of string; give numbers"):
        block_of(changed("track_pt", pa.array(words, pa.list_(pa.string()))), KINDS)
    with pytest.raises(DatasetError, match="the column 'event_number' is float; give integers"):
        block_of(changed("event_number", pa.array([1.0] * 7, pa.float32())), KINDS)
    with pytest.raises(DatasetError, match="the events have no column 'event_number'; number them"):
        event_columns(["track_pt", "cluster_energy"], KINDS)
    with pytest.raises(DatasetError, match="the events have no cluster columns such as 'cluster_energy'"):
        event_columns(["event_number", "track_pt"], KINDS)


def test_candidates_of_tables(small_model: Callable[..., Any]):
    session = Session(small_model())
    pairs = list(reconstruct_tables([table(30), table(5)], session, events_at_once=8))
    made = pa.concat_tables([candidates for _, candidates in pairs])
    assert [events.num_rows for events, _ in pairs] == [8, 8, 8, 6, 5]
    assert made["event_number"].to_pylist() == [*range(30), *range(5)]
    pieces = [elements(30).take(0, 8), elements(30).take(8, 16), elements(30).take(16, 24), elements(30).take(24, 30)]
    wanted = [session.reconstruct(piece) for piece in [*pieces, elements(5)]]
    assert (
        made["candidate_px"].combine_chunks().flatten().to_pylist()
        == np.concatenate([part["px"] for part in wanted]).tolist()
    )
    assert made.schema.names == table_of(EventBlock(np.arange(5), {"candidate": wanted[-1]}), CANDIDATES).schema.names
    assert list(reconstruct_tables([table().slice(0, 0)], session)) == []


def test_a_missing_column_is_told_before_any_event(small_model: Callable[..., Any], small_onnx: Callable[..., Path]):
    from ringflow.infer.runtime import OnnxSession

    columns = columns_of(elements())
    for session in (Session(small_model()), OnnxSession(small_onnx())):
        require_columns(session, columns)
        lacking = {**columns, "track": tuple(name for name in columns["track"] if name != "calo_x")}
        with pytest.raises(DatasetError, match="the track collection has no column 'calo_x'"):
            require_columns(session, lacking)
