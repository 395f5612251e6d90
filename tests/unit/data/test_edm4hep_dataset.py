"""EDM4hep files as datasets: the same events, their numbers, and a folder that is whole or absent."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

from edm4hep_files import Content, write_frame

from ringflow.base.errors import InputFileError, UsageError
from ringflow.data.check import check
from ringflow.data.edm4hep import Edm4hepFile, load_profile
from ringflow.data.edm4hep_dataset import convert_edm4hep
from ringflow.event.block import concatenate

CLD = load_profile("cld")


def test_a_file_becomes_a_dataset_that_passes_the_gates(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "events.root", Content())
    dataset = convert_edm4hep([path], CLD, tmp_path / "cld", sample="ttbar", events_per_shard=2)
    assert (dataset.manifest.detector, dataset.manifest.sample, len(dataset)) == ("cld", "ttbar", 3)
    assert [shard.num_events for shard in dataset.manifest.shards] == [2, 1]
    direct, stored = next(Edm4hepFile(path, CLD).events()), concatenate(list(dataset.events()))
    assert stored.event_number.tolist() == [7, 8, 12]
    for name, part in direct.collections.items():
        for column, values in part.columns.items():
            np.testing.assert_array_equal(stored[name][column], values)
    assert [row["gate"] for row in check(tmp_path / "cld") if not row["ok"]] == []
    assert dataset.manifest.provenance["files"][0]["name"] == "events.root"


def test_numbers_go_on_from_file_to_file(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "events.root", Content())
    dataset = convert_edm4hep([path, path], CLD, tmp_path / "cld")
    numbers = np.concatenate([block.event_number for block in dataset.events()])
    assert numbers.tolist() == [7, 8, 12, 13, 14, 18]


def test_files_of_different_content_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    lesser = Content()
    lesser.drop("PandoraPFOs")
    paths = [write_frame(tmp_path / "one.root", Content()), write_frame(tmp_path / "other.root", lesser)]
    with pytest.raises(InputFileError, match="does not hold the same columns"):
        convert_edm4hep(paths, CLD, tmp_path / "cld")
    with pytest.raises(UsageError, match="no files"):
        convert_edm4hep([], CLD, tmp_path / "cld")
    broken = Content()
    broken.members["PandoraPFOs"]["energy"][2][0] = float("nan")
    with pytest.raises(InputFileError, match="candidate energy is nan"):
        convert_edm4hep([write_frame(tmp_path / "broken.root", broken)], CLD, tmp_path / "cld")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.root", "one.root", "other.root"]


def test_a_folder_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cld").mkdir()
    (tmp_path / "cld" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="already exists"):
        convert_edm4hep([tmp_path / "events.root"], CLD, tmp_path / "cld")
