"""EDM4hep files as datasets: the same events, their numbers, and a folder that is whole or absent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.edm4hep_files import Content, write_frame
from ringflow.base.errors import DatasetError, InputFileError, UsageError
from ringflow.data import production
from ringflow.data.check import check
from ringflow.data.edm4hep import Edm4hepFile, load_profile
from ringflow.data.edm4hep.read import convert_edm4hep
from ringflow.data.outside import write_dataset
from ringflow.data.read import Dataset
from ringflow.data.write import ShardWriter
from ringflow.event.block import concatenate

CLD = load_profile("cld")


def test_a_file_becomes_a_dataset_that_passes_the_gates(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "events.root", Content())
    dataset = convert_edm4hep([path], tmp_path / "cld", sample="ttbar", events_per_shard=2)
    assert (dataset.manifest.detector, dataset.manifest.sample, len(dataset)) == ("cld", "ttbar", 3)
    assert [shard.num_events for shard in dataset.manifest.shards] == [2, 1]
    direct, stored = next(Edm4hepFile(path, CLD).events()), concatenate(list(dataset.events()))
    assert stored.event_number.tolist() == [7, 8, 12]
    for name, part in direct.collections.items():
        for column, values in part.columns.items():
            np.testing.assert_array_equal(stored[name][column], values)
    assert [row["gate"] for row in check(tmp_path / "cld") if not row["ok"]] == []
    assert dataset.manifest.provenance["inputs"][0]["file"] == "events.root"


def test_numbers_go_on_from_file_to_file(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "events.root", Content())
    dataset = convert_edm4hep([path, path], tmp_path / "cld")
    numbers = np.concatenate([block.event_number for block in dataset.events()])
    assert numbers.tolist() == [7, 8, 12, 13, 14, 18]


def test_files_of_different_content_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    lesser = Content()
    lesser.drop("PandoraPFOs")
    paths = [write_frame(tmp_path / "one.root", Content()), write_frame(tmp_path / "other.root", lesser)]
    with pytest.raises(InputFileError, match="does not hold the same columns"):
        convert_edm4hep(paths, tmp_path / "cld")
    with pytest.raises(UsageError, match="no files"):
        convert_edm4hep([], tmp_path / "cld")
    broken = Content()
    broken.members["PandoraPFOs"]["energy"][2][0] = float("nan")
    with pytest.raises(InputFileError, match="candidate energy is nan"):
        convert_edm4hep([write_frame(tmp_path / "broken.root", broken)], tmp_path / "cld")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.root", "one.root", "other.root"]


def test_a_folder_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cld").mkdir()
    (tmp_path / "cld" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds 'thesis\.txt', which is no part of a dataset"):
        convert_edm4hep([write_frame(tmp_path / "events.root", Content())], tmp_path / "cld")


def test_an_interrupted_conversion_goes_on_and_more_events_extend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write_frame(tmp_path / "events.root", Content()), tmp_path / "cld"
    whole = convert_edm4hep([path], tmp_path / "whole", profile="cld", events_per_shard=1)
    written: list[str] = []

    class Writer(ShardWriter):
        def __init__(self, file: Path, **options: Any) -> None:
            if len(written) == 1 and "stop" not in written:
                written.append("stop")
                raise KeyboardInterrupt
            written.append(file.name)
            super().__init__(file, **options)

    monkeypatch.setattr(production, "ShardWriter", Writer)
    with pytest.raises(KeyboardInterrupt):
        convert_edm4hep([path], out, events=2, profile="cld", events_per_shard=1)
    with pytest.raises(DatasetError, match="is unfinished; run the same command again"):
        Dataset(out)
    assert len(convert_edm4hep([path], out, events=2, profile="cld", events_per_shard=1)) == 2
    dataset = convert_edm4hep([path], out, profile="cld", events_per_shard=1)
    assert written == ["shard-00000.parquet", "stop", "shard-00001.parquet", "shard-00002.parquet"]
    assert dataset.manifest.shards == whole.manifest.shards
    capsys.readouterr()
    convert_edm4hep([path], out, profile="cld", events_per_shard=1)
    assert "is already there, made of the same settings and files" in capsys.readouterr().err
    with pytest.raises(UsageError, match="was made with sample=events, now sample=zz is asked for"):
        convert_edm4hep([path], out, sample="zz", events_per_shard=1)
    convert_edm4hep([path], out, sample="zz", overwrite=True)
    write_dataset(tmp_path / "mine", detector="mine", tracks={"pt": [[1.0]]})
    with pytest.raises(UsageError, match="mine holds a dataset of another origin; choose another folder"):
        convert_edm4hep([path], tmp_path / "mine")
    with pytest.raises(UsageError, match="the files have 3 events, 4 were asked for"):
        convert_edm4hep([path], out, events=4)


def test_the_command_makes_a_dataset_that_the_others_read(tmp_path: Path, command: Callable[..., Any]) -> None:
    path, out = write_frame(tmp_path / "events.root", Content()), tmp_path / "cld"
    told = command("evaluate", path)
    assert told.code == 1
    assert f"make one of it first: ringflow convert {path} --out data/events" in told.stderr
    done = command("convert", path, "--out", out, "--json")
    result = json.loads(done.stdout)
    assert (result["events"], result["detector"], result["profile"], result["truth"]) == (3, "cld", "cld", True)
    assert "converting: 3/3" in done.stderr
    assert f"made: {out}" in done.stderr
    checked = command("check", out)
    assert checked.code == 0
    assert f"next: ringflow evaluate {out} --out report" in checked.stderr
    evaluated = command("evaluate", out, "--reconstructions", "candidate", "--json")
    assert json.loads(evaluated.stdout)["samples"]["events"]["truth"] is True
    hepmc = command("convert", tmp_path / "events.hepmc3", "--out", out)
    assert f"ringflow simulate --hepmc {tmp_path / 'events.hepmc3'} --out data/events" in hepmc.stderr
