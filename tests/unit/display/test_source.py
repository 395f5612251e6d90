"""What can be shown: datasets, reports, candidate files, EDM4hep files; and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringflow.base.errors import DatasetError, InputFileError, UsageError
from ringflow.data.candidates import write_candidates
from ringflow.data.manifest import manifest_hash
from ringflow.data.outside import write_dataset
from ringflow.data.read import Dataset
from ringflow.display.source import open_source
from ringflow.event.block import Collection, EventBlock
from ringflow.recipes.reconstruct import reconstruct


def mine(dataset: Path, out: Path, name: str = "mine") -> Path:
    """A candidate file in which every particle has twice its energy."""
    opened = Dataset(dataset)

    def blocks() -> list[EventBlock]:
        made = []
        for block in opened.events():
            target = block["target"]
            columns = {**target.columns, **{key: 2 * target[key] for key in ("px", "py", "pz", "energy")}}
            made.append(EventBlock(block.event_number, {"candidate": Collection(target.counts, columns)}))
        return made

    write_candidates(out, opened, blocks(), reconstruction=name, provenance={})
    return out


def test_candidate_files_stand_beside_the_truth(shown: Path, tmp_path: Path) -> None:
    source = open_source(shown, candidates=[mine(shown, tmp_path / "mine.parquet")], events=2)
    assert [one["name"] for one in source.about["reconstructions"]][:3] == ["target", "mine", "model"]
    assert source.num_events == 2
    made = {one["name"]: one for one in source.scene(1)["reconstructions"]}["mine"]
    assert made["errors"]["energy"] == pytest.approx(made["errors"]["true_energy"], rel=1e-3)
    assert source.errors(1)["mine"] == {by: made["errors"][by] for by in ("jet", "energy")}
    assert "target" not in source.errors(1)


def test_a_report_leads_to_its_dataset(shown: Path, tmp_path: Path) -> None:
    shutil.copytree(shown, tmp_path / "jets")
    report = tmp_path / "report"
    report.mkdir()
    sample = {"dataset": "jets", "manifest_sha256": manifest_hash(shown)}
    (report / "metrics.json").write_text(json.dumps({"samples": {"zuds": sample}}))
    assert open_source(report).num_events == 3
    assert open_source(report, sample="zuds").about["sample"] == "zuds_91"
    with pytest.raises(UsageError, match="no sample 'ttbar'"):
        open_source(report, sample="ttbar")
    (report / "metrics.json").write_text(json.dumps({"samples": {"zuds": {**sample, "manifest_sha256": "0"}}}))
    with pytest.raises(InputFileError, match="give the folder of the dataset"):
        open_source(report)
    (report / "metrics.json").write_text("{}")
    with pytest.raises(InputFileError, match="not a report"):
        open_source(report)


def test_a_file_of_candidates_leads_to_its_dataset(shown: Path, tmp_path: Path) -> None:
    shutil.copytree(shown, tmp_path / "renamed")
    file = mine(shown, tmp_path / "mine.parquet")
    source = open_source(file)
    assert (source.about["source"], source.num_events) == ("renamed", 3)
    assert [one["name"] for one in source.about["reconstructions"]][:2] == ["target", "mine"]
    (tmp_path / "far" / "away").mkdir(parents=True)
    alone = file.rename(tmp_path / "far" / "away" / "mine.parquet")
    with pytest.raises(InputFileError, match=f"'zuds_91', .* show those, with --candidates {alone}"):
        open_source(alone)


PROFILE = """
name = "own"
description = "what ringflow reconstruct writes"
detector = "clic"
field = 4.0
face_radius = 1500.0
face_z = 2307.0
event_header = "EventHeader"
candidates = "RingflowPFOs"

[tracks]
collection = "RingflowTracks"

[clusters]
collections = ["RingflowClusters"]
"""


def test_an_edm4hep_file_is_shown(shown: Path, tmp_path: Path) -> None:
    out, profile = tmp_path / "out.root", tmp_path / "own.toml"
    reconstruct(shown, out, device="cpu")
    profile.write_text(PROFILE)
    source = open_source(out, profile=str(profile))
    scene = source.scene(2)
    assert scene["tracks"]["lines"]
    assert scene["event"]["number"] == 2
    file = {one["name"]: one for one in scene["reconstructions"]}["candidate"]
    model = {one["name"]: one for one in open_source(shown).scene(2)["reconstructions"]}["model"]
    assert file["candidates"]["energy"] == pytest.approx(model["candidates"]["energy"], rel=1e-4)
    assert file["candidates"]["track"] == model["candidates"]["track"]
    assert source.errors(0) == {}
    assert "baseline" not in [one["name"] for one in scene["reconstructions"]]
    assert any("no rules: " in note and "'ecal_energy', which" in note for note in source.notes)
    with pytest.raises(UsageError, match="--sample x does not go with"):
        open_source(out, sample="x")
    with pytest.raises(InputFileError, match="was made of 'zuds_91', not of"):
        open_source(out, profile=str(profile), candidates=[mine(shown, tmp_path / "mine.parquet")])


def test_what_is_wrong_is_said(shown: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "run").mkdir()
    network = tmp_path / "run" / "model.safetensors"
    network.touch()
    twice = [mine(shown, tmp_path / "a.parquet", "a")] * 2
    for path, given, said in (
        (tmp_path / "nowhere", {}, "nothing at"),
        (tmp_path, {}, "not a dataset"),
        (shown.parent, {}, f"give a folder that has one, such as {shown}"),
        (tmp_path / "notes.txt", {}, r"notes.txt is no file of events; give the folder of a dataset"),
        (network, {}, f"display DATASET --model {network}$"),
        (network.parent, {}, f"display DATASET --model {network.parent}$"),
        (shown, {"profile": "clic"}, "--profile clic does not go with"),
        (shown, {"candidates": [tmp_path / "none.parquet"]}, "no candidate file"),
        (shown, {"model": tmp_path / "none.safetensors"}, "no model at"),
        (shown, {"candidates": twice}, "two reconstructions called 'a'"),
    ):
        with pytest.raises((DatasetError, InputFileError, UsageError), match=said):
            open_source(path, **given)


def test_events_that_nothing_can_be_reconstructed_of_are_shown_as_measured(
    tmp_path: Path, command: Callable[..., Any]
) -> None:
    """With the columns that the page about outside data begins with."""
    tracks = {"pt": [[12.5]], "eta": [[0.3]], "phi": [[1.1]], "charge": [[1]]}
    clusters = {"energy": [[14.0]], "x": [[900.0]], "y": [[1500.0]], "z": [[520.0]]}
    write_dataset(tmp_path / "mine", detector="mine", tracks=tracks, clusters=clusters)
    source = open_source(tmp_path / "mine")
    assert [one["title"] for one in source.about["reconstructions"]] == ["Measured"]
    scene = source.scene(0)
    assert scene["reconstructions"][0]["candidates"]["energy"] == []
    assert scene["clusters"]["eta"][0] == pytest.approx(np.arcsinh(520 / np.hypot(900, 1500)), abs=1e-3)
    assert command("display", tmp_path / "mine", "--static", tmp_path / "page").code == 0
