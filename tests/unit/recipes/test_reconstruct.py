"""Reconstruct from file to file: the candidates of the session, whole or not at all, and going on after a sudden death."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.edm4hep_files import Content, write_frame
from fixtures.fake_events import fake_block, write_fake_dataset
from ringflow.base.errors import DatasetError, InputFileError, UsageError
from ringflow.data.candidates import CandidateFile, read_candidates
from ringflow.data.edm4hep import Edm4hepFile, load_profile
from ringflow.data.outside import write_dataset
from ringflow.data.read import Dataset, to_awkward
from ringflow.infer import reconstruct as engine
from ringflow.infer import shipped
from ringflow.infer.inputs import open_input
from ringflow.infer.remote import Place
from ringflow.infer.session import open_session
from ringflow.infer.shipped import model_file
from ringflow.models.file import save_model
from ringflow.recipes.evaluate import evaluate
from ringflow.recipes.reconstruct import reconstruct


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_fake_dataset(tmp_path / "dataset")


@pytest.fixture
def weights(tmp_path: Path, small_model: Callable[..., Any]) -> Path:
    path = tmp_path / "run" / "model.safetensors"
    path.parent.mkdir()
    save_model(path, small_model().model, card=small_model().card)
    return path


def test_a_dataset_becomes_candidates(dataset: Path, weights: Path, tmp_path: Path):
    out = tmp_path / "new" / "out.parquet"
    result = reconstruct(dataset, out, model=weights.parent)  # the folder of a run
    session = open_session(weights)
    expected = [session.reconstruct(block) for block in Dataset(dataset).events()]
    for made, wanted in zip(read_candidates(out, Dataset(dataset)), expected, strict=True):
        assert np.array_equal(made.counts, wanted.counts)
        assert all(np.array_equal(made[name], wanted[name]) for name in wanted.columns)
    assert result["events"] == result["new_events"] == 25
    assert result["candidates"] == sum(map(len, expected)) > 0
    assert result["events_per_second"] > 0
    assert (result["engine"], result["device"], result["detector"]) == ("torch", "cpu", "fake")
    assert sorted(path.name for path in out.parent.iterdir()) == ["out.parquet"]
    provenance = CandidateFile(out).record["provenance"]
    assert provenance["model"]["file"] == "model.safetensors"
    assert provenance["card"]["data"] == "made up"


def test_evaluate_takes_the_file(dataset: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shipped, "MODEL", tmp_path / "none")
    reconstruct(dataset, tmp_path / "mine.parquet", model=weights, split="train")
    results = evaluate([dataset], candidates=[tmp_path / "mine.parquet"], split="train")
    reconstruct(dataset, tmp_path / "model.parquet", model=weights, split="train")
    again = evaluate([dataset], candidates=[tmp_path / "model.parquet"], split="train")  # a name is only a name
    assert again["samples"]["fake"]["reconstructions"]["model"] == results["samples"]["fake"]["reconstructions"]["mine"]
    assert results["samples"]["fake"]["reconstructions"]["mine"]["particles_per_event"]["value"] > 0


def test_onnx_gives_what_torch_gives(
    dataset: Path, weights: Path, small_onnx: Callable[..., Path], tmp_path: Path, command: Callable[..., Any]
):
    reconstruct(dataset, tmp_path / "torch.parquet", model=weights)
    words = ("reconstruct", dataset, "-o", tmp_path / "onnx.parquet", "--model", small_onnx(), "--threads", 2, "--json")
    done = command(*words)
    assert done.code == 0
    assert json.loads(done.stdout)["engine"] == "onnx"
    assert "next: ringflow evaluate" in done.stderr
    pairs = (read_candidates(tmp_path / f"{name}.parquet", Dataset(dataset)) for name in ("torch", "onnx"))
    for one, other in zip(*pairs, strict=True):
        assert np.array_equal(one.counts, other.counts)
        assert np.array_equal(one["label"], other["label"])
        np.testing.assert_allclose(one["energy"], other["energy"], rtol=1e-4)


def test_some_events(dataset: Path, weights: Path, tmp_path: Path):
    assert reconstruct(dataset, tmp_path / "a.parquet", model=weights, events=7)["events"] == 7
    numbers = [block.event_number for block in CandidateFile(tmp_path / "a.parquet").blocks()]
    assert np.concatenate(numbers).tolist() == list(range(7))
    assert reconstruct(dataset, tmp_path / "b.parquet", model=weights, events=10**6)["events"] == 25
    result = reconstruct(dataset, tmp_path / "c.parquet", model=weights, split="train", events=9)
    assert result["events"] == 9
    [train] = [list(Dataset(dataset).events("train", columns=[]))]
    numbers = [block.event_number for block in CandidateFile(tmp_path / "c.parquet").blocks()]
    expected = np.concatenate([block.event_number for block in train])[:9]
    assert np.array_equal(np.concatenate(numbers), expected)


KILLED = """
import os, signal, sys
from pathlib import Path
from ringflow.infer import reconstruct as engine, session
from ringflow.recipes.reconstruct import reconstruct
engine.EVENTS_PER_PART = 8
made, whole = [], session.Session.reconstruct
def dying(self, block):
    made.append(block)
    if len(made) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, block)
session.Session.reconstruct = dying
reconstruct(Path(sys.argv[1]), Path(sys.argv[2]), model=Path(sys.argv[3]))
"""


def test_it_goes_on_after_kill(
    dataset: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(engine, "EVENTS_PER_PART", 8)
    out, whole = tmp_path / "out.parquet", tmp_path / "whole" / "out.parquet"
    words = [sys.executable, "-c", KILLED, str(dataset), str(out), str(weights)]
    assert subprocess.run(words, capture_output=True, check=False).returncode == -9
    assert not out.exists()
    assert (tmp_path / "out.parquet.parts").is_dir()
    result = reconstruct(dataset, out, model=weights)
    assert 0 < result["new_events"] < result["events"] == 25
    assert "going on after" in capsys.readouterr().err
    reconstruct(dataset, whole, model=weights)
    assert out.read_bytes() == whole.read_bytes()
    assert not (tmp_path / "out.parquet.parts").exists()


def tell_of_detector(dataset: Path, provenance: dict[str, Any]) -> None:
    manifest = json.loads((dataset / "manifest.json").read_text())
    (dataset / "manifest.json").write_text(json.dumps({**manifest, "provenance": provenance}))


def test_a_dataset_of_an_own_detector_becomes_a_root_file(weights: Path, tmp_path: Path):
    """Its field is known from the dataset, wherever the file of the detector is by now."""
    import uproot

    from ringflow.recipes.simulate import simulate
    from ringflow.sim.geometry import DETECTORS
    from ringflow.sim.settings import SimulateSettings

    mine = tmp_path / "mine.toml"
    text = (DETECTORS / "clic.toml").read_text(encoding="utf-8")
    mine.write_text(text.replace('name = "clic"', 'name = "mine"').replace("field = 4.0", "field = 3.0"))
    asked = [f"detector={mine}", "generator.sample=gun_pion", "production.events=5", "production.block_events=5"]
    simulate(SimulateSettings.resolve(None, asked), tmp_path / "d")
    mine.unlink()
    out = tmp_path / "out.root"
    reconstruct(tmp_path / "d", out, model=weights)
    tracks = [block["track"] for block in Dataset(tmp_path / "d").events()]
    pt = np.concatenate([part["pt"] for part in tracks])
    with uproot.open(out) as file:
        omega = np.concatenate(file["events"]["_RingflowTracks_trackStates.omega"].array().to_list())
        location = np.concatenate(file["events"]["_RingflowTracks_trackStates.location"].array().to_list())
    np.testing.assert_allclose(0.299792458e-3 * 3.0 / np.abs(omega[location == 1]), pt, rtol=1e-5)


@pytest.mark.parametrize(
    ("told", "field"),
    [
        ({"settings": {"profile": {"field": 3.5}}}, 3.5),  # of an EDM4hep file
        ({"geometry": {"field": 5}}, 5.0),
        ({"field": 2.5, "settings": None}, 2.5),  # of anybody's data
    ],
)
def test_the_field_is_what_the_dataset_tells(told: dict[str, Any], field: float, dataset: Path):
    tell_of_detector(dataset, told)
    assert open_input(dataset, None, None, None).field == field


@pytest.mark.parametrize("told", [{}, {"field": "strong"}, {"field": -1.0}, {"geometry": 4}])
def test_a_field_that_nobody_tells_is_asked_for_at_once(
    told: dict[str, Any], dataset: Path, weights: Path, tmp_path: Path
):
    tell_of_detector(dataset, told)
    with pytest.raises(InputFileError, match=r"does not tell the magnetic field of its detector 'fake'.*parquet"):
        reconstruct(dataset, tmp_path / "out.root", model=weights)
    assert list(tmp_path.glob("out*")) == []


def test_a_root_file_comes_out_and_goes_in(dataset: Path, weights: Path, tmp_path: Path):
    import uproot

    tell_of_detector(dataset, {"field": 4.0})
    out = tmp_path / "out.root"
    result = reconstruct(dataset, out, model=weights, events=6)
    with uproot.open(out) as file:
        energies = file["events"]["RingflowPFOs.energy"].array()
        assert len(energies) == 6
        assert sum(map(len, energies)) == result["candidates"]
    reconstruct(dataset, tmp_path / "out.parquet", model=weights, events=6)
    [*blocks] = CandidateFile(tmp_path / "out.parquet").blocks()
    wanted = np.concatenate([block["candidate"]["energy"] for block in blocks])
    assert np.concatenate([np.asarray(event) for event in energies]).tolist() == wanted.tolist()


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_an_edm4hep_file_goes_in(
    engine: str, weights: Path, small_onnx: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    import uproot

    source = write_frame(tmp_path / "events.root", Content())
    model = weights if engine == "torch" else small_onnx()
    result = reconstruct(source, tmp_path / "out.parquet", model=model, profile="cld")
    assert (result["events"], result["detector"], result["engine"]) == (3, "cld", engine)
    assert "the model was trained for the detector 'fake', the events are of 'cld'" in capsys.readouterr().err
    file = CandidateFile(tmp_path / "out.parquet")
    [block] = file.blocks()
    assert block.event_number.tolist() == [7, 8, 12]
    assert block["candidate"].counts[1] == 0  # an event of nothing
    assert (file.record["sample"], file.record["manifest_sha256"]) == ("events", "")
    assert file.record["provenance"]["input"]["file"] == "events.root"
    expected = open_session(model).reconstruct(next(Edm4hepFile(source, load_profile("cld")).events()))
    assert all(np.array_equal(block["candidate"][name], expected[name]) for name in expected.columns)
    reconstruct(source, tmp_path / "out.root", model=model, profile="cld", events=2)
    with uproot.open(tmp_path / "out.root") as made:
        assert made["events"]["EventHeader.eventNumber"].array().tolist() == [[7], [8]]
        assert len(made["events"]["RingflowTracks.chi2"].array()[0]) == 2


def test_a_missing_profile_is_told(weights: Path, tmp_path: Path):
    source = write_frame(tmp_path / "events.root", Content())
    with pytest.raises(UsageError, match="unknown profile 'cdl': did you mean 'cld'"):
        reconstruct(source, tmp_path / "out.parquet", model=weights, profile="cdl")


def test_a_wrong_detector_is_said(
    dataset: Path, small_model: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    other = tmp_path / "other.safetensors"
    save_model(other, small_model().model, card={"detector": "clic"})
    reconstruct(dataset, tmp_path / "out.parquet", model=other, events=2)
    assert "the model was trained for the detector 'clic', the events are of 'fake'" in capsys.readouterr().err


def test_what_is_asked_for_must_make_sense(dataset: Path, weights: Path, tmp_path: Path):
    out = tmp_path / "out.parquet"
    with pytest.raises(
        UsageError, match=r"cannot tell the format of .*out\.csv; let its name end in \.parquet or \.root"
    ):
        reconstruct(dataset, tmp_path / "out.csv", model=weights)
    with pytest.raises(InputFileError, match=r"nothing at .*nowhere; give the folder of a dataset"):
        reconstruct(tmp_path / "nowhere", out, model=weights)
    with pytest.raises(UsageError, match="--profile cld is for ROOT files"):
        reconstruct(dataset, out, model=weights, profile="cld")
    with pytest.raises(UsageError, match="unknown split 'tset'"):
        reconstruct(dataset, out, model=weights, split="tset")
    (tmp_path / "events.root").touch()
    with pytest.raises(UsageError, match="--split test is for datasets"):
        reconstruct(tmp_path / "events.root", out, model=weights, split="test")
    with pytest.raises(InputFileError, match=r"no model at .*nothing; give a model file"):
        reconstruct(dataset, out, model=tmp_path / "nothing")
    with pytest.raises(InputFileError, match=r"has no model\.safetensors"):
        reconstruct(dataset, out, model=dataset)
    with pytest.raises(UsageError, match="device 'abacus' cannot be used"):
        reconstruct(dataset, out, model=weights, device="abacus")
    out.write_text("precious")
    with pytest.raises(UsageError, match="is there already; give another name, or --overwrite"):
        reconstruct(dataset, out, model=weights)
    assert out.read_text() == "precious"
    reconstruct(dataset, out, model=weights, events=2, overwrite=True)
    assert len(CandidateFile(out)) == 2


def test_not_a_root_file(weights: Path, tmp_path: Path):
    broken = tmp_path / "broken.root"
    broken.write_text("no root file")
    with pytest.raises(InputFileError, match=r"broken\.root"):
        reconstruct(broken, tmp_path / "out.parquet", model=weights, profile="cld")


def test_a_dataset_without_what_is_needed(weights: Path, tmp_path: Path):
    events = to_awkward(fake_block(0, 10))
    tracks = events.track[[name for name in events.track.fields if name not in ("calo_x", "particle")]]
    write_dataset(tmp_path / "lacking", detector="fake", tracks=tracks, clusters=events.cluster)
    with pytest.raises(DatasetError, match="the track collection has no column 'calo_x'"):
        reconstruct(tmp_path / "lacking", tmp_path / "out.parquet", model=weights)
    assert not (tmp_path / "out.parquet").exists()


def test_which_model_is_meant(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert model_file(weights) == model_file(weights.parent) == weights
    monkeypatch.setattr(shipped, "MODEL", weights)
    assert model_file(None) == model_file(Path("shipped")) == weights
    monkeypatch.setattr(shipped, "MODEL", tmp_path / "none")
    with pytest.raises(InputFileError, match="this installation comes without a model"):
        model_file(Path("shipped"))


def of_another_detector(path: Path, sample: str = "ttbar", events: int = 12) -> Path:
    from ringflow.recipes.simulate import simulate
    from ringflow.sim.settings import SimulateSettings

    asked = ["detector=cld", f"generator.sample={sample}", f"production.events={events}"]
    simulate(SimulateSettings.resolve(None, [*asked, "production.keep_hits=false"]), path)
    return path


def test_events_of_which_nothing_is_known_are_refused(tmp_path: Path, command: Callable[..., Any]):
    """The shipped network has learned on `clic`."""
    foreign, out = of_another_detector(tmp_path / "foreign"), tmp_path / "out.parquet"
    words = ("reconstruct", foreign, "-o", out, "--json")
    done = command(*words)
    assert (done.code, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"ringflow: error: clic.safetensors knows nothing of events such as {foreign}: ")
    assert "its face is at radius 1500 mm and |z| 2307 mm in 'clic', here at radius 21" in line
    assert "the magnetic field is 2 T instead of 4 T" in line
    assert f"ringflow adapt {foreign} --out" in line
    assert line.endswith("start=shipped, or --force")
    assert list(tmp_path.glob("out*")) == []
    forced = command(*words, "--force")
    assert forced.code == 0
    assert "WARNING: " in forced.stderr
    found = json.loads(forced.stdout)
    assert (found["events"], found["likeness"]["verdict"], found["likeness"]["events"]) == (12, "hopeless", 12)
    assert found["candidates"] > 100
    assert command(*words).code == 2  # that it is there already changes nothing
    assert re.search(r"likeness +hopeless", command(*words[:-1], "--force").stderr)


def test_workers_begin_nothing_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def begin(*_: object) -> None:
        raise AssertionError("a cluster was begun")

    monkeypatch.setattr("ringflow.recipes.reconstruct.open_cluster", begin)
    with pytest.raises(UsageError, match="or --force"):
        reconstruct(of_another_detector(tmp_path / "foreign"), tmp_path / "out.parquet", on=Place("spark"))
    with pytest.raises(AssertionError, match="a cluster was begun"):
        reconstruct(tmp_path / "foreign", tmp_path / "out.parquet", on=Place("spark"), force=True)


def test_an_evaluation_of_another_detector_warns_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    foreign = of_another_detector(tmp_path / "foreign")
    asked: dict[str, Any] = {"reconstructions": ["target", "model"]}
    found = evaluate([foreign], out=tmp_path / "report", **asked)["samples"]["ttbar"]
    assert found["likeness"]["verdict"] == "hopeless"
    assert found["reconstructions"]["model"]["particles_per_event"]["value"] > 0
    assert "ttbar: WARNING: the network was made for other data" in capsys.readouterr().err
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "was made for other data, and these events are nothing that it knows" in page
    assert "the magnetic field is 2 T instead of 4 T" in page
    assert "likeness" not in evaluate([foreign], reconstructions=["target"])["samples"]["ttbar"]
    assert "WARNING" not in capsys.readouterr().err
