"""Sessions of torch and of ONNX: candidates with indices into their events, the same however events are batched and whatever
computes them, and clear words for bad files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.fake_events import emptied, fake_block, replaced, without
from fixtures.foreign_onnx import foreign_file
from ringflow.base.errors import DatasetError, InputFileError, UsageError
from ringflow.elements.batch import TRACK, from_block
from ringflow.elements.features import FEATURES
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.infer import session as module
from ringflow.infer import shipped
from ringflow.infer.runtime import Description, EventRuntime, OnnxSession
from ringflow.infer.session import Session, open_session
from ringflow.models.file import save_model
from ringflow.models.model import MOMENTUM


def same(first: Collection, second: Collection) -> bool:
    """Equal but for rounding of momenta."""
    return np.array_equal(first.counts, second.counts) and all(
        np.allclose(first[name], second[name], rtol=2e-4 if name in ("px", "py", "pz", "energy") else 0, atol=1e-4)
        and first[name].dtype == second[name].dtype
        for name in second.columns
    )


def events() -> EventBlock:
    """Events, one of them of nothing."""
    return concatenate([fake_block(0, 3), emptied(fake_block(3, 1)), fake_block(4, 8)])


@pytest.mark.parametrize("calorimeter", ["cluster", "hit"])
def test_candidates_point_to_the_elements_they_were_made_of(calorimeter: str, small_model: Callable[..., Any]) -> None:
    block, session = events(), Session(small_model("mlp", calorimeter))
    found, elements = session.reconstruct(block), from_block(block, calorimeter)
    with torch.no_grad():
        rows = np.flatnonzero(session.model.predict(elements).particle_N.sigmoid().numpy() >= 0.5)
    assert 0 < len(found) == len(rows) < elements.num_elements
    assert list(found.columns) == ["label", "charge", "px", "py", "pz", "energy", "track", "cluster"]
    event = np.repeat(np.arange(12), found.counts)
    on_track = found["track"] >= 0
    assert np.array_equal(on_track, elements.kind_N.numpy()[rows] == TRACK)
    place = rows - elements.offsets_B.numpy()[event]
    assert np.array_equal(found["track"][on_track], place[on_track])
    element = place - block["track"].counts[event]
    if calorimeter == "hit":  # a hit is told by its cluster
        hits = block["hit"]
        element = hits["cluster"][(hits.offsets[event] + element).clip(0)]
    assert np.array_equal(found["cluster"], np.where(on_track, -1, element))


def test_batches_change_nothing(small_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    block, session = events(), Session(small_model())
    at_once = session.reconstruct(block)
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", 20)
    assert same(session.reconstruct(block), at_once)
    assert [len(session.reconstruct(block.take(event, event + 1))) for event in range(12)] == at_once.counts.tolist()
    assert at_once.counts[3] == 0


def test_a_candidate_has_the_momentum_of_its_own_element(small_model: Callable[..., Any]) -> None:
    block, session = fake_block(0, 12), Session(small_model())
    with torch.no_grad():
        session.model.heads.out.weight[-len(MOMENTUM) :] = 0.0  # trust the detector
        session.model.heads.out.bias[-len(MOMENTUM) :] = 0.0
    found = session.reconstruct(block)
    event = np.repeat(np.arange(12), found.counts)
    on_track = found["track"] >= 0
    assert 0 < on_track.sum() < len(on_track)
    tracks, clusters = block["track"], block["cluster"]
    track = (tracks.offsets[event] + found["track"])[on_track]
    cluster = (clusters.offsets[event] + found["cluster"])[~on_track]
    for name, component in (("px", np.cos), ("py", np.sin)):
        expected = tracks["pt"][track] * component(tracks["phi"][track])
        assert np.allclose(found[name][on_track], expected, rtol=1e-4, atol=1e-5)
    assert np.allclose(found["pz"][on_track], tracks["pt"][track] * np.sinh(tracks["eta"][track]), rtol=1e-4)
    assert np.allclose(found["energy"][~on_track], clusters["energy"][cluster], rtol=1e-4)
    place = np.stack([clusters[axis][cluster] for axis in "xyz"], axis=1)
    direction = np.stack([found[name][~on_track] for name in ("px", "py", "pz")], axis=1)
    along = (place * direction).sum(1) / np.linalg.norm(place, axis=1) / np.linalg.norm(direction, axis=1)
    assert np.allclose(along, 1.0, atol=1e-4)


@pytest.mark.parametrize("calorimeter", ["cluster", "hit"])
def test_columns_and_values_that_a_detector_lacks(calorimeter: str, small_model: Callable[..., Any]) -> None:
    """Without the columns of features that belong to a group, and with holes in one of the others."""
    block, session = fake_block(0, 6), Session(small_model("mlp", calorimeter))
    dedx = np.where(np.arange(len(block["track"])) % 2, block["track"]["dedx"], np.nan).astype(np.float32)
    poor = holed = replaced(block, "track", "dedx", dedx)
    for kind in ("track", calorimeter):
        needed = {name for feature in FEATURES[kind] if feature.group is None for name in feature.needs}
        poor = without(poor, kind, *(set(block[kind].columns) - needed - {"eta", "phi"}))
    for given in (holed, poor):
        found = session.reconstruct(given)
        assert len(found)
        assert all(np.isfinite(column).all() for column in found.columns.values())
    if calorimeter == "hit":
        assert (found["cluster"] == -1).all()  # such hits know no clusters


def test_a_look_is_without_dropout_and_the_training_goes_on_after_it() -> None:
    from fixtures.networks import random_network

    model, elements = random_network(dropout=0.5).train(), from_block(fake_block(0, 6))
    first, second = (module.candidates(model, elements, 0.5) for _ in range(2))
    assert same(first, second)
    assert model.training


@pytest.mark.parametrize(("backbone", "calorimeter"), [("attention", "cluster"), ("mlp", "hit")])
def test_onnx_gives_what_torch_gives_on_any_number_of_threads(
    backbone: str, calorimeter: str, small_model: Callable[..., Any], small_onnx: Callable[..., Path]
) -> None:
    session = OnnxSession(small_onnx(backbone, calorimeter), threads=2)
    made = session.reconstruct(events())
    assert len(made) > 5
    assert same(made, Session(small_model(backbone, calorimeter)).reconstruct(events()))
    alone = OnnxSession(small_onnx(backbone, calorimeter)).reconstruct(events())
    assert all(np.array_equal(made[name], alone[name]) for name in made.columns)
    assert (session.kinds, session.detector, session.threshold) == (("track", calorimeter), "fake", 0.5)
    assert session.card["data"] == "made up"
    nothing = session.reconstruct(fake_block(0, 1).take(0, 0))
    assert (len(nothing), len(nothing.counts), "label" in nothing.columns) == (0, 0, True)


@pytest.fixture
def weights(small_model: Callable[..., Any], tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_model(path, small_model("mlp").model, threshold=0.3, card={"detector": "clic"})
    return path


def test_the_engine_is_that_of_the_file(
    weights: Path, small_onnx: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    session = open_session(weights)
    assert isinstance(session, Session)
    assert (session.threshold, session.detector, session.kinds) == (0.3, "clic", ("track", "cluster"))
    assert isinstance(open_session(small_onnx()), OnnxSession)
    exported = open_session(weights, engine="onnx")
    assert "exporting the model to ONNX for this run" in capsys.readouterr().err
    assert same(exported.reconstruct(events()), session.reconstruct(events()))
    with pytest.raises(UsageError, match="is an ONNX file, which torch does not run; use --engine onnx"):
        open_session(small_onnx(), engine="torch")
    with pytest.raises(UsageError, match="no engine named 'abacus'; choose from torch, onnx"):
        open_session(weights, engine="abacus")
    with pytest.raises(UsageError, match="computes on the cpu, not on meta"):
        open_session(small_onnx(), "meta")


def test_a_missing_or_broken_file_is_one_line(
    weights: Path,
    small_onnx: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    cut, empty, other, future = (tmp_path / f"{name}.onnx" for name in ("cut", "empty", "other", "future"))
    cut.write_bytes(small_onnx().read_bytes()[:20_000])
    empty.touch()
    foreign_file(other, {})
    foreign_file(future, {"ringflow_format": "99"})
    weights.write_bytes(weights.read_bytes()[:100])
    for path, message in {
        weights: "cannot be read as a model file",
        tmp_path / "nothing": "no model file at",
        tmp_path / "none.onnx": "no ONNX file at",
        cut: r"cut\.onnx cannot be read as an ONNX file",
        empty: r"empty\.onnx (cannot be read as an ONNX file|is an ONNX file, but)",
        other: "not one that `ringflow export` wrote; export the model",
        future: "is of format 99, this version reads 1; export it again",
    }.items():
        with pytest.raises(InputFileError, match=message):
            open_session(path)
    with pytest.raises(InputFileError, match="has a broken description"):
        Description.read({"ringflow_format": "1", "inputs": "{"}, tmp_path / "model.onnx")
    monkeypatch.setattr(shipped, "MODEL", tmp_path / "nothing")
    with pytest.raises(InputFileError, match=r"comes without a model; give --model FILE, or train one: ringflow train"):
        open_session()
    assert capfd.readouterr().err == ""


def test_a_missing_column_is_told_as_torch_tells_it(small_onnx: Callable[..., Path]) -> None:
    block = fake_block(0, 2)
    lacking = without(block, "track", "pt", "calo_x")
    with pytest.raises(DatasetError) as by_torch:
        from_block(lacking)
    with pytest.raises(DatasetError) as by_onnx:
        list(EventRuntime(small_onnx()).events(lacking))
    assert str(by_onnx.value) == str(by_torch.value)
    with pytest.raises(DatasetError, match="the cluster collection has no column 'energy'"):
        list(EventRuntime(small_onnx()).events(EventBlock(block.event_number, {"track": block["track"]})))


def changed_onnx(path: Path, properties: dict[str, str]) -> Path:
    """The file with other properties, as one of a version that wrote no hash."""
    import onnx

    proto = onnx.load(path)
    kept = {one.key: one.value for one in proto.metadata_props if one.key != "ringflow_sha256"}
    onnx.helper.set_model_props(proto, kept | properties)
    onnx.save(proto, path)
    return path


def test_no_bit_of_an_exported_file_changes_unseen(small_onnx: Callable[..., Path], tmp_path: Path) -> None:
    whole, chance, path = small_onnx("mlp").read_bytes(), random.Random(1), tmp_path / "model.onnx"
    own = whole.index(b"ringflow_sha256")
    # From the tags before the name of the hash to its value, and anywhere.
    for place in [chance.randrange(*part) for part in [(own - 5, own + 81), (0, len(whole))] * 40]:
        broken = bytearray(whole)
        broken[place] ^= 1 << chance.randrange(8)
        path.write_bytes(broken)
        with pytest.raises(InputFileError):
            EventRuntime(path)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, ""),
        ({"threshold": "nan"}, "threshold is nan"),
        ({"inputs": "{}"}, "has a broken description"),
        ({"inputs": '{"track": [], "cluster": []}'}, "has a graph that does not fit its description"),
        ({"card": "7"}, "has a broken description"),
    ],
)
def test_an_exported_file_without_a_hash(
    small_onnx: Callable[..., Path], tmp_path: Path, properties: dict[str, str], message: str
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(small_onnx("mlp").read_bytes())
    changed_onnx(path, properties)
    if not message:
        assert EventRuntime(path).description.kinds == ("track", "cluster")
        return
    with pytest.raises(InputFileError, match=message):
        EventRuntime(path)
