"""Events of a frame on their way into a dataset: which columns, which split, and what is refused. No Spark is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fixtures.fake_events import fake_block, replaced
from ringflow.base.errors import DatasetError, UsageError
from ringflow.data.check import check
from ringflow.data.chunks import require_learnable, training_columns
from ringflow.data.read import TRUTH_COLUMNS, Dataset
from ringflow.data.write import columns_of
from ringflow.event.block import EventBlock
from ringflow.infer.remote import table_of
from ringflow.spark.events import _finish, _written, learning_columns, split_rule

_MADE = fake_block(100, 130)
#: Numbers of which a rule by remainders would hold out none.
BLOCK = EventBlock(10 * _MADE.event_number, _MADE.collections)
ALL = columns_of(BLOCK)
NAMES = ["event_number", *(f"{name}_{column}" for name, part in ALL.items() for column in part)]


def written(folder: Path, block: EventBlock, calorimeter: str = "cluster", validation: float = 0.2) -> Dataset:
    """A dataset of two shards, as two executors write them."""
    rule = split_rule(validation)
    folder.mkdir()
    shards = []
    for index, (start, stop) in enumerate([(0, 60), (60, 130)]):
        table = table_of(block.take(start, stop), ALL).select(learning_columns(NAMES, calorimeter))
        shards.append(_written(table.to_batches(max_chunksize=50), folder, index, rule, calorimeter))
    _finish(folder, [shard for shard in reversed(shards) if shard], rule, "fake")
    return Dataset(folder)


@pytest.mark.parametrize("calorimeter", ["cluster", "hit"])
def test_a_training_can_read_what_executors_write(calorimeter: str, tmp_path: Path) -> None:
    dataset = written(tmp_path / "events", BLOCK, calorimeter)
    require_learnable(dataset, "fake", calorimeter)
    training_columns(dataset, calorimeter)
    assert dataset.manifest.splits == {"train": 104, "valid": 26, "test": 0}
    kept = dataset.to_awkward()
    assert kept.track.pt.tolist() == BLOCK_TRACKS
    valid = dataset.to_awkward("valid").event_number.tolist()
    assert len(valid) == 26
    assert all(number % 5 == 4 for number in valid)
    assert [row for row in check(dataset.path) if not row["ok"]] == []


BLOCK_TRACKS = [BLOCK["track"].take(event, event + 1)["pt"].tolist() for event in range(len(BLOCK))]


def test_the_truth_of_particles_is_kept_where_it_is_whole() -> None:
    assert set(TRUTH_COLUMNS) <= set(learning_columns(NAMES, "cluster"))
    without = [name for name in NAMES if name != "particle_pdg"]
    assert not [name for name in learning_columns(without, "cluster") if name.startswith("particle")]


def test_columns_that_are_missing_are_all_named() -> None:
    gone = {"event_number", "track_pt", "target_label", "cluster_num_hits"}
    with pytest.raises(DatasetError) as caught:
        learning_columns([name for name in NAMES if name not in gone], "cluster")
    assert "the events have no event_number, track_pt, target_label, and a training needs them" in str(caught.value)
    assert "cluster_num_hits" not in str(caught.value)  # which a network can do without


@pytest.mark.parametrize(("share", "size", "valid"), [(0.1, 10, 1), (0.25, 4, 1), (0.15, 20, 3), (0.01, 100, 1)])
def test_a_share_of_the_events_is_held_out(share: float, size: int, valid: int) -> None:
    rule = split_rule(share)
    assert rule.count(np.arange(size)) == {"train": size - valid, "valid": valid, "test": 0}


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 0.001])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(UsageError, match=f"validation={share} is no share of the events"):
        split_rule(share)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("track", 99, "is on track 99 and cluster -?\\d+, which are not there; count from 0"),
        ("cluster", -1, "is on track -1 and cluster -1, which are not there"),
        ("energy", np.inf, "target energy is inf in event 1000"),
    ],
)
def test_truth_that_is_on_no_element_is_refused(column: str, value: float, said: str, tmp_path: Path) -> None:
    values = np.full(len(BLOCK["target"]), value)
    with pytest.raises(DatasetError, match=said):
        written(tmp_path / "events", replaced(BLOCK, "target", column, values))
    assert list((tmp_path / "events").iterdir()) == []
