"""Adapting a network: what is found of a detector is what its file says, and nothing is needed but tracks and clusters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.detectors import DETECTORS, events_in
from fixtures.networks import random_network
from ringflow.base.errors import DatasetError, InputFileError, RingflowError, UsageError
from ringflow.data.outside import write_dataset
from ringflow.data.read import to_awkward
from ringflow.elements.batch import TRACK, from_block
from ringflow.elements.features import feature_names
from ringflow.elements.frame import Frame, what_is_usual
from ringflow.event.block import Collection, EventBlock
from ringflow.infer.session import open_session
from ringflow.models.file import load_model, save_model
from ringflow.provenance.trace import trace
from ringflow.recipes.adapt import adapt, measured_frame
from ringflow.sim.geometry import detector_path, load_detector
from ringflow.sim.tracker import frame_of

Command = Callable[..., Any]
KINDS = ("track", "cluster")
NAMES = feature_names(KINDS)


def changed(block: EventBlock, kind: str, columns: Mapping[str, Any]) -> EventBlock:
    part = block[kind]
    own = {name: np.asarray(values, part[name].dtype) for name, values in columns.items()}
    return EventBlock(block.event_number, {**block.collections, kind: Collection(part.counts, {**part.columns, **own})})


def with_hcal_at(block: EventBlock, scale: float) -> EventBlock:
    """As an HCAL of another scale would have measured it."""
    columns = block["cluster"].columns
    less = (scale - 1.0) * columns["hcal_energy"]
    return changed(block, "cluster", {"hcal_energy": columns["hcal_energy"] + less, "energy": columns["energy"] + less})


def dataset_of(path: Path, block: EventBlock, detector: str, without: tuple[str, ...] = ()) -> Path:
    """Tracks and clusters alone: nothing is labelled."""
    events = to_awkward(EventBlock(block.event_number, {kind: block[kind] for kind in KINDS}))
    tracks = events.track[[name for name in events.track.fields if name not in ("particle", *without)]]
    write_dataset(path, detector=detector, tracks=tracks, clusters=events.cluster)
    return path


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of random weights; it has seen tt events in clic."""
    model, block = random_network(features="relative"), events_in("clic")
    seen = Frame(frame_of(load_detector("clic")), KINDS).see(from_block(block))
    model.embedding.fit(seen.features_NF)
    path = tmp_path_factory.mktemp("adapt") / "several.safetensors"
    card = {"detector": "clic,ild", "seen": what_is_usual(seen, KINDS), "pruned_from": {"file": "x", "sha256": "0"}}
    save_model(path, model, threshold=0.4, card=card)
    return path


@pytest.fixture(scope="module")
def other_scale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events of a detector of an unknown name: clic, whose HCAL gives four fifths."""
    folder = tmp_path_factory.mktemp("data") / "mine"
    return dataset_of(folder, with_hcal_at(events_in("clic"), 0.8), "mine")


@pytest.mark.parametrize("detector", DETECTORS)
def test_the_measured_face_is_that_of_the_detector(detector: str) -> None:
    block, known = events_in(detector), frame_of(load_detector(detector))
    found = measured_frame(block["track"], block["cluster"], detector)
    assert found.radius == pytest.approx(known.radius, abs=1.0)
    assert found.z == pytest.approx(known.z, abs=1.0)
    assert found.sides == known.sides
    assert 0.98 * known.half_length < found.half_length <= known.half_length + 1.0
    assert found.detector == detector
    assert (found.barrel_lengths, found.endcap_lengths) == (known.barrel_lengths, known.endcap_lengths)
    assert found.hits is not None
    assert known.hits is not None
    assert found.hits[:3] == pytest.approx(known.hits[:3], rel=0.15)
    for parameter, rows in known.errors.items():  # of 2, 5 and 20 GeV: softer ones curl up
        ratio = np.array(found.errors[parameter])[:3, 3:6] / np.array(rows)[:3, 3:6]
        assert np.median(np.abs(np.log(ratio))) < 0.15, parameter


def test_a_round_barrel_has_no_sides() -> None:
    block = events_in("clic")
    track = block["track"]
    x, y, z = (track[f"calo_{axis}"].astype(float) for axis in "xyz")
    in_barrel = np.abs(z) < 2300.0
    scale = np.where(in_barrel, 1600.0 / np.hypot(x, y), 1.0)
    on_cylinder = changed(block, "track", {"calo_x": x * scale, "calo_y": y * scale})["track"]
    found = measured_frame(on_cylinder, None, "clic")
    assert (found.sides, found.entry_sides, found.radius) == (0, None, pytest.approx(1600.0, abs=1.0))
    found = measured_frame(on_cylinder, block["cluster"], "clic")  # which lie behind flat sides all the same
    assert (found.sides, found.entry_sides) == (12, 0)


def test_scales_are_found_around_tracks(network: Path, other_scale: Path, tmp_path: Path) -> None:
    found = adapt(str(other_scale), tmp_path / "mine.safetensors", model=network)
    assert found["hcal_scale"] == pytest.approx(1.25, rel=0.03)
    assert found["ecal_scale"] == 1.0
    assert (found["detector"], found["match"], found["events"]) == ("mine", "scales", 60)
    made, before = load_model(tmp_path / "mine.safetensors"), load_model(network)
    assert made.model.frame is not None
    assert made.model.frame.settings.detector == made.card["detector"] == "mine"
    assert made.card["adapted"]["from"] == "clic,ild"
    assert made.card["seen"] == before.card["seen"]
    assert made.threshold == 0.4
    for name, value in before.model.state_dict().items():
        assert torch.equal(value, made.model.state_dict()[name])
    # What it is given then is what it would have been given in the other detector.
    right = Frame(frame_of(load_detector("clic")), KINDS).see(from_block(events_in("clic")))
    wrong = from_block(with_hcal_at(events_in("clic"), 0.8))
    mended, is_cluster = made.model.see(wrong), right.kind_N != TRACK
    for batch, close in ((mended, True), (wrong, False)):
        ratio = (batch.reference_N4 / right.reference_N4)[is_cluster, 3]
        assert (abs(float(ratio.quantile(0.05)) - 1.0) < 0.03) == close
    assert len(open_session(tmp_path / "mine.safetensors").reconstruct(events_in("clic", 5))) > 0


@pytest.mark.parametrize("detector", DETECTORS)
def test_a_calibrated_detector_keeps_its_scales(network: Path, detector: str, tmp_path: Path) -> None:
    folder = dataset_of(tmp_path / "data", events_in(detector), detector)
    found = adapt(str(folder), tmp_path / "model.safetensors", model=network)
    assert (found["ecal_scale"], found["hcal_scale"]) == (1.0, 1.0)


def test_geometry_alone_leaves_the_scales(network: Path, other_scale: Path, tmp_path: Path) -> None:
    found = adapt(str(other_scale), tmp_path / "mine.safetensors", model=network, match="geometry", events=40)
    assert (found["ecal_scale"], found["hcal_scale"], found["events"]) == (1.0, 1.0, 40)
    assert "matched" not in found


def test_features_are_matched(network: Path, tmp_path: Path) -> None:
    block = events_in("clic")
    more = {"num_hits": block["cluster"]["num_hits"] * 3, "width_along": block["cluster"]["width_along"] * 0.5}
    strange = changed(changed(block, "cluster", more), "track", {"dedx": block["track"]["dedx"] * 1.7})
    folder = dataset_of(tmp_path / "data", strange, "mine")
    matching = ("scales", "features")
    seen = {}
    for match in matching:
        found = adapt(str(folder), tmp_path / f"{match}.safetensors", model=network, match=match)
        seen[match] = load_model(tmp_path / f"{match}.safetensors").model.see(from_block(strange)).features_NF
    right = Frame(frame_of(load_detector("clic")), KINDS).see(from_block(block)).features_NF
    assert {"cluster_log_num_hits", "track_dedx"} < set(found["matched"])
    for name in ("cluster_log_num_hits", "cluster_log_hit_energy", "cluster_log_width_along", "track_dedx"):
        column = NAMES.index(name)
        there = ~right[:, column].isnan()
        off = {match: (seen[match] - right)[there, column].abs().median() for match in matching}
        assert off["features"] < 0.03 < 0.3 < off["scales"], name
    assert "cluster_log_energy" not in found["matched"]  # which the collision decides


def test_a_detector_can_be_given_by_its_name_or_its_file(network: Path, tmp_path: Path) -> None:
    mine = tmp_path / "sid.toml"
    mine.write_bytes(detector_path("sid").read_bytes())
    for number, source in enumerate(("sid", "sid~0.1", str(mine))):
        found = adapt(source, tmp_path / f"{number}.safetensors", model=network)
        frame = load_model(tmp_path / f"{number}.safetensors").model.frame
        assert frame is not None
        assert frame.settings == frame_of(load_detector("sid"))
        assert (found["match"], found["events"]) == ("geometry", 0)


def test_where_it_came_from_can_be_traced(network: Path, tmp_path: Path) -> None:
    model = tmp_path / network.name
    model.write_bytes(network.read_bytes())
    adapt("cld", tmp_path / "cld.safetensors", model=model)
    node = trace(tmp_path / "cld.safetensors")
    sources = dict(node.sources)
    assert sources["adapted from"].path == model


def test_the_command_says_what_to_do_next(network: Path, other_scale: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "mine.safetensors"
    done = command("adapt", other_scale, "--model", network, "--out", out, "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["hcal_scale"] == pytest.approx(1.25, rel=0.03)
    done = command("adapt", "cld", "--model", network, "--out", out, "--overwrite")
    assert done.code == 0, done.stderr
    assert f"ringflow serve --model {out}" in done.stderr


def refused(source: Any, out: Path, model: Path, kind: type[RingflowError] = DatasetError, **more: Any) -> str:
    with pytest.raises(kind) as caught:
        adapt(str(source), out, model=model, **more)
    assert "\n" not in str(caught.value)
    assert not out.exists() or out.read_bytes() == b"precious"
    return str(caught.value)


def test_what_cannot_be_adapted(network: Path, other_scale: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    by = partial(refused, out=out)
    save_model(absolute := tmp_path / "absolute.safetensors", random_network(), card={"detector": "clic"})
    assert "cannot be adapted without training" in by(other_scale, model=absolute, kind=UsageError)
    (exported := tmp_path / "model.onnx").write_bytes(b"")
    assert "adapt the model file" in by(other_scale, model=exported, kind=UsageError)
    assert "nothing at nowhere" in by("nowhere", model=network, kind=InputFileError)
    assert "compares events" in by("cld", model=network, kind=UsageError, match="features")
    assert "write clic~0.1" in by("clic~9", model=network, kind=UsageError)
    (text := tmp_path / "events.txt").write_text("no events")
    assert "EDM4hep" in by(text, model=network, kind=InputFileError)
    save_model(silent := tmp_path / "silent.safetensors", random_network(features="relative"), card={})
    assert "does not say what it has seen" in by(other_scale, model=silent, kind=InputFileError)
    assert adapt(str(other_scale), tmp_path / "geometry.safetensors", model=silent, match="geometry")["events"] == 60
    out.write_bytes(b"precious")
    assert "--overwrite" in by(other_scale, model=network, kind=UsageError)
    with pytest.raises(UsageError, match=r"\.safetensors"):
        adapt("cld", tmp_path / "model.pt", model=network)


def test_events_that_say_nothing_of_a_detector(network: Path, tmp_path: Path) -> None:
    block, out = events_in("clic"), tmp_path / "out.safetensors"
    by = partial(refused, out=out, model=network)
    track = block["track"]
    x, y, z = (track[f"calo_{axis}"].astype(float) for axis in "xyz")
    few = dataset_of(tmp_path / "few", block.take(0, 2), "clic")
    assert "too few to see where it begins" in by(few)
    assert "no column 'calo_x'" in by(dataset_of(tmp_path / "nowhere", block, "clic", ("calo_x",)))
    assert "no column 'reaches_calo'" in by(dataset_of(tmp_path / "unsaid", block, "clic", ("reaches_calo",)))
    rng = np.random.default_rng(1)
    spread = {"calo_z": z * rng.uniform(0.6, 1.0, len(z))}
    assert "do not lie on its endcaps" in by(dataset_of(tmp_path / "z", changed(block, "track", spread), "clic"))
    scale = np.where(np.abs(z) < 2300.0, rng.uniform(0.6, 1.0, len(x)), 1.0)
    spread = {"calo_x": x * scale, "calo_y": y * scale}
    assert "mm of a face, not on it" in by(dataset_of(tmp_path / "r", changed(block, "track", spread), "clic"))
    forward = {"reaches_calo": track["reaches_calo"] * (np.abs(z) > 2300.0)}
    assert "enter the barrel" in by(dataset_of(tmp_path / "f", changed(block, "track", forward), "clic"))
    energy = {name: block["cluster"][name] * 1000 for name in ("energy", "ecal_energy", "hcal_energy", "muon_energy")}
    in_mev = dataset_of(tmp_path / "mev", changed(block, "cluster", energy), "clic")
    found = adapt(str(in_mev), tmp_path / "mev.safetensors", model=network)  # no clusters go with a track
    assert (found["ecal_scale"], found["hcal_scale"]) == (1.0, 1.0)
    energy = {name: block["cluster"][name] * 0.35 for name in energy}
    assert "do not belong together" in by(dataset_of(tmp_path / "third", changed(block, "cluster", energy), "clic"))


def test_a_network_of_hits_gets_no_scales(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds, block = ("track", "hit"), events_in("clic", 10)
    model = random_network(features="relative", calorimeter="hit")
    seen = Frame(frame_of(load_detector("clic")), kinds).see(from_block(block, "hit"))
    save_model(tmp_path / "hits.safetensors", model, card={"detector": "clic", "seen": what_is_usual(seen, kinds)})
    later = changed(block, "track", {"dedx": block["track"]["dedx"] * 1.7})
    of = to_awkward(EventBlock(later.event_number, {kind: later[kind] for kind in kinds}))
    hits = of.hit[[name for name in of.hit.fields if name != "cluster"]]
    tracks = of.track[[name for name in of.track.fields if name != "particle"]]
    write_dataset(tmp_path / "data", detector="mine", tracks=tracks, hits=hits)
    out = tmp_path / "mine.safetensors"
    found = adapt(str(tmp_path / "data"), out, model=tmp_path / "hits.safetensors", match="features")
    assert "track_dedx" in found["matched"]
    assert not any(name.startswith("hit_") for name in found["matched"])
    assert "hits say too little" in capsys.readouterr().err
    assert len(open_session(out).reconstruct(block)) > 0
