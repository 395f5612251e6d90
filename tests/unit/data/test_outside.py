"""Outside data: whatever exists goes in and comes out equal, and what does not fit is refused in one line."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest

from fixtures.fake_events import fake_block
from ringflow.base.errors import FailureError, UsageError
from ringflow.data.check import check
from ringflow.data.outside import write_dataset
from ringflow.data.read import Dataset, to_awkward

TRACKS = ak.Array([[{"pt": 1.0, "eta": 0.5}, {"pt": 2.0, "eta": -0.5}], [], [{"pt": 3.0, "eta": 1.5}]])


def test_a_whole_simulated_dataset_goes_through(tmp_path: Path) -> None:
    events = to_awkward(fake_block(0, 25))
    arrays = {f"{name}s": events[name] for name in fake_block(0, 1).collections}
    dataset = write_dataset(tmp_path / "mine", detector="mine", events_per_shard=10, **arrays)
    assert ak.array_equal(dataset.to_awkward(), events, dtype_exact=True)
    assert len(dataset.manifest.shards) == 3
    assert [row["gate"] for row in check(tmp_path / "mine") if not row["ok"]] == []


def test_tracks_alone(tmp_path: Path) -> None:
    more: dict[str, Any] = {"event_number": [8, 18, 40], "provenance": {"run": 7}}
    dataset = write_dataset(tmp_path / "mine", detector="mine", sample="cosmics", tracks=TRACKS, **more)
    assert dataset.manifest.splits == {"train": 1, "valid": 2, "test": 0}
    assert Dataset(tmp_path / "mine").manifest.provenance == {"run": 7}
    assert (dataset.manifest.sample, dataset.manifest.detector) == ("cosmics", "mine")
    assert dataset.columns == {"track": ("pt", "eta")}
    assert dataset.to_awkward().track.tolist() == TRACKS.tolist()
    rows = {row["gate"]: row for row in check(tmp_path / "mine")}
    assert all(row["ok"] for row in rows.values())
    assert rows["hit energy against its links"]["observed"] == "absent"
    with pytest.raises(UsageError, match="already exists"):
        write_dataset(tmp_path / "mine", detector="mine", tracks=TRACKS)
    given = {"pt": [[1, 2], []], "charge": [[1.0, -1.0], []]}  # of other types
    tracks = next(write_dataset(tmp_path / "other", detector="mine", tracks=given).events())["track"]
    assert (tracks["charge"].tolist(), tracks["charge"].dtype, tracks["pt"].dtype) == ([1, -1], np.int8, np.float32)


def nested(function: Callable[[ak.Array], Any]) -> dict[str, Any]:
    return {"tracks": {"pt": TRACKS.pt, "eta": function(TRACKS.eta)}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no collection was given"),
        (
            {"tracks": ak.zip({"pt": TRACKS.pt, "etta": TRACKS.eta})},
            "track.etta is not in the schema; did you mean 'eta'",
        ),
        ({"tracks": ak.Array([[1.0], [2.0]])}, "track: give records with named fields, for example track.pt"),
        (nested(lambda eta: eta[:, :1]), "track.eta and track.pt differ in their numbers of objects"),
        (nested(lambda eta: ak.mask(eta, eta > 0)), r"track.eta has missing values \(None\)"),
        (nested(lambda eta: ak.where(eta > 1, np.nan, eta)), "track.eta has 1 values that are not finite"),
        (nested(lambda eta: eta * 1e300), "track.eta has values beyond the range of float32"),
        (nested(lambda eta: [["a", "b"], [], ["c"]]), "track.eta must hold"),
        (nested(lambda eta: ak.flatten(eta)), "track.eta must hold one list of numbers per event"),
        ({"tracks": {"charge": TRACKS.pt * 0.5}}, "track.charge must hold whole numbers, not 0.5"),
        ({"tracks": {"charge": TRACKS.pt * 100}}, "track.charge goes from 100.0 to 300.0, which int8 cannot hold"),
        ({"tracks": TRACKS, "clusters": {"energy": [[1.0]]}}, "differ in their numbers of events"),
        ({"tracks": {"pt": ak.Array([[1.0]])[:0]}}, "there are no events to write"),
        ({"tracks": {"particle": [[0], [1]]}}, "track.particle points into particle, which was not given"),
        (
            {"tracks": {"particle": [[0], [1]]}, "particles": {"px": [[1.0], [1.0]]}},
            "track.particle is 1 in event 1, where there are 1 particle objects",
        ),
        ({"tracks": TRACKS, "event_number": [0, 2, 1]}, "event_number must rise"),
        ({"tracks": TRACKS, "event_number": [-1, 1, 2]}, "not be negative"),
        ({"tracks": TRACKS, "event_number": [0, 1]}, "event_number must be 3 whole numbers"),
        ({"tracks": TRACKS, "events_per_shard": 0}, "events_per_shard must be at least 1, not 0"),
        ({"tracks": TRACKS, "provenance": {"a": {1, 2}}}, "provenance cannot be written as JSON"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        write_dataset(tmp_path / "mine", detector="mine", **arguments)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(FailureError, match="the disk is full"):
        write_dataset(tmp_path / "mine", detector="mine", tracks=TRACKS)
    assert list(tmp_path.iterdir()) == []


ROOT = Path(__file__).parents[3]


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "outside_data.py"), run_name="__main__")
    assert "56 of 56 gates passed" in capsys.readouterr().out
