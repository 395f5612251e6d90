"""What can be shown: datasets, reports, candidate files, EDM4hep files; and what is refused."""

from __future__ import annotations

import json
import shutil
import time
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
from ringflow.display.scene import errors_by_event
from ringflow.display.server import Ranking
from ringflow.display.source import open_source
from ringflow.evaluate.momenta import momenta, visible
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
    errors = source.errors(0, 2)
    assert errors is not None
    assert errors["mine"]["energy"][1] == pytest.approx(made["errors"]["energy"], rel=1e-3)
    assert errors["mine"]["jet"][1] == pytest.approx(made["errors"]["jet"], rel=1e-3)
    assert "target" not in errors


def test_a_jet_that_is_missing_or_made_up_is_wrong_by_all_it_has(shown: Path) -> None:
    block = next(Dataset(shown).events())
    truth = visible(block)
    nothing = momenta(Collection(np.zeros(1, np.int64), {key: np.zeros(0) for key in ("px", "py", "pz", "energy")}))
    jet, energy = errors_by_event(nothing, truth)
    assert energy[0] == pytest.approx(truth.energy.sum())
    again, none = errors_by_event(truth, truth)
    assert again[0] == pytest.approx(0.0, abs=1e-9)
    assert none[0] == pytest.approx(0.0, abs=1e-9)
    assert errors_by_event(truth, nothing)[0][0] == pytest.approx(jet[0])
    assert jet[0] > 5.0


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
    assert source.errors(0, 3) is None
    assert "baseline" not in [one["name"] for one in scene["reconstructions"]]
    assert any("no rules: " in note and "width_across" in note for note in source.notes)
    with pytest.raises(UsageError, match="--sample x does not go with"):
        open_source(out, sample="x")
    with pytest.raises(InputFileError, match="was made of 'zuds_91', not of"):
        open_source(out, profile=str(profile), candidates=[mine(shown, tmp_path / "mine.parquet")])


def test_what_is_wrong_is_said(shown: Path, tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="nothing at"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match="not a dataset"):
        open_source(tmp_path)
    with pytest.raises(DatasetError, match=f"give a folder that has one, such as {shown}"):
        open_source(shown.parent)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputFileError, match=r"notes.txt is no file of events; give the folder of a dataset"):
        open_source(tmp_path / "notes.txt")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.safetensors").touch()
    for network in (tmp_path / "run", tmp_path / "run" / "model.safetensors"):
        with pytest.raises(InputFileError, match=f"display DATASET --model {network}$"):
            open_source(network)
    with pytest.raises(UsageError, match="--profile clic does not go with"):
        open_source(shown, profile="clic")
    with pytest.raises(InputFileError, match="no candidate file"):
        open_source(shown, candidates=[tmp_path / "none.parquet"])
    with pytest.raises(InputFileError, match="no model at"):
        open_source(shown, model=tmp_path / "none.safetensors")
    first = mine(shown, tmp_path / "a.parquet", "a")
    with pytest.raises(UsageError, match="two reconstructions called 'a'"):
        open_source(shown, candidates=[first, first])


def test_the_ranking_grows_and_says_why_it_ends() -> None:
    asked = []

    def compute(start: int, stop: int) -> dict[str, dict[str, list[float]]]:
        asked.append((start, stop))
        if start >= 20:
            raise DatasetError("the shard is gone")
        return {"model": {"jet": [float(event) for event in range(start, stop)]}}

    def ended(ranking: Ranking) -> dict[str, Any]:
        until = time.monotonic() + 60.0
        while (known := ranking.known())["done"] < known["of"] and not known["failure"]:
            assert time.monotonic() < until
            time.sleep(0.01)
        ranking.stop()
        return known

    ranking = Ranking(compute, 30)
    assert asked == []  # nobody has asked for it
    known = ended(ranking)
    assert known["errors"]["model"]["jet"] == [float(event) for event in range(20)]
    assert (known["done"], known["of"], known["failure"]) == (20, 30, "the shard is gone")
    assert asked == [(event, event + 1) for event in range(21)]
    assert ended(Ranking(lambda start, stop: None, 5))["done"] == 5  # without truth


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
