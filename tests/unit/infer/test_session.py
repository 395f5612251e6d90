"""Sessions: candidates with indices into their events, the same however events are batched, and clear words for bad files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fixtures.fake_events import emptied, fake_block
from ringflow.base.errors import InputFileError
from ringflow.elements.batch import TRACK, from_block
from ringflow.elements.features import FEATURES
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.infer import session as module
from ringflow.infer import shipped
from ringflow.infer.session import Session, open_session
from ringflow.models.file import LoadedModel, save_model
from ringflow.models.model import MOMENTUM, Model
from ringflow.models.settings import ModelSettings


def small_model(calorimeter: str = "cluster", dropout: float = 0.0) -> Model:
    """A network of random weights that says yes to some elements."""
    torch.manual_seed(1)
    model = Model(ModelSettings(width=16, layers=1, heads=2, hidden=16, calorimeter=calorimeter, dropout=dropout))
    torch.nn.init.normal_(model.heads.out.weight, std=0.3)
    with torch.no_grad():
        elements = from_block(fake_block(0, 20), calorimeter)
        model.embedding.fit(elements.features_NF)
        model.heads.out.bias[0] -= model.predict(elements).particle_N.median() + 0.01  # nobody on the border
    return model.eval()


def small_session(calorimeter: str = "cluster") -> Session:
    return Session(LoadedModel(small_model(calorimeter), 0.5, {"detector": "fake"}))


def same(first: Collection, second: Collection) -> bool:
    return np.array_equal(first.counts, second.counts) and all(
        np.allclose(first[name], second[name], rtol=1e-4, atol=1e-4) for name in first.columns
    )


def test_candidates_point_to_the_elements_they_were_made_of() -> None:
    block = fake_block(0, 12)
    session = small_session()
    found = session.reconstruct(block)
    elements = from_block(block)
    with torch.no_grad():
        chosen = (session.model.predict(elements).particle_N.sigmoid() >= 0.5).numpy()
    assert 0 < len(found) < elements.num_elements
    assert found.counts.sum() == chosen.sum()
    assert list(found.columns) == ["label", "charge", "px", "py", "pz", "energy", "track", "cluster"]
    event = np.repeat(np.arange(12), found.counts)
    on_track = found["track"] >= 0
    assert np.array_equal(on_track, found["cluster"] < 0)
    assert (found["track"] < block["track"].counts[event]).all()
    assert (found["cluster"] < block["cluster"].counts[event]).all()
    # The same elements, counted through the packed rows.
    rows = elements.offsets_B.numpy()[event] + np.where(
        on_track, found["track"], block["track"].counts[event] + found["cluster"]
    )
    assert np.array_equal(rows, np.flatnonzero(chosen))
    assert np.array_equal(on_track, elements.kind_N.numpy()[rows] == TRACK)


def test_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    block, session = fake_block(0, 12), small_session()
    at_once = session.reconstruct(block)
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", 20)
    assert same(session.reconstruct(block), at_once)
    alone = [session.reconstruct(block.take(event, event + 1)) for event in range(12)]
    assert [len(one) for one in alone] == at_once.counts.tolist()


def test_events_without_elements() -> None:
    some, nothing = fake_block(0, 3), emptied(fake_block(0, 1))
    session = small_session()
    found = session.reconstruct(concatenate([nothing, some, nothing]))
    assert found.counts.tolist() == [0, *session.reconstruct(some).counts, 0]
    assert session.reconstruct(nothing).counts.tolist() == [0]
    assert session.reconstruct(nothing)["px"].dtype == np.float32
    assert session.reconstruct(some.take(0, 0)).counts.tolist() == []


def test_a_candidate_has_the_momentum_of_its_own_element() -> None:
    block, session = fake_block(0, 12), small_session()
    with torch.no_grad():
        session.model.heads.out.weight[-len(MOMENTUM) :] = 0.0  # trust the detector
    found = session.reconstruct(block)
    event = np.repeat(np.arange(12), found.counts)
    on_track = found["track"] >= 0
    assert on_track.any()
    assert not on_track.all()
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


def only_what_every_detector_has(block: EventBlock, calorimeter: str) -> EventBlock:
    """The block without the columns of features that belong to a group."""
    parts = {}
    for kind in ("track", calorimeter):
        needed = {name for feature in FEATURES[kind] if feature.group is None for name in feature.needs}
        kept = {name: column for name, column in block[kind].columns.items() if name in needed | {"eta", "phi"}}
        assert len(kept) < len(block[kind].columns)
        parts[kind] = Collection(block[kind].counts, kept)
    return EventBlock(block.event_number, parts)


@pytest.mark.parametrize("calorimeter", ["cluster", "hit"])
def test_columns_a_detector_lacks(calorimeter: str) -> None:
    block, session = fake_block(0, 6), small_session(calorimeter)
    poor = only_what_every_detector_has(block, calorimeter)
    found = session.reconstruct(poor)
    assert len(found)
    assert all(np.isfinite(column).all() for column in found.columns.values())
    if calorimeter == "hit":
        assert (found["cluster"] == -1).all()  # such hits know no clusters


def test_a_value_that_is_missing_for_some_tracks_only() -> None:
    block, session = fake_block(0, 6), small_session()
    tracks = {name: column.copy() for name, column in block["track"].columns.items()}
    tracks["dedx"][::2] = np.nan
    found = session.reconstruct(
        EventBlock(block.event_number, {**block.collections, "track": Collection(block["track"].counts, tracks)})
    )
    assert len(found)
    assert all(np.isfinite(column).all() for column in found.columns.values())


def test_a_candidate_on_a_hit_names_the_cluster_of_the_hit() -> None:
    block = fake_block(0, 6)
    found = small_session("hit").reconstruct(block)
    event = np.repeat(np.arange(6), found.counts)
    on_hit = found["track"] < 0
    assert on_hit.any()
    # The same hits, counted through the packed rows.
    elements = from_block(block, "hit")
    with torch.no_grad():
        rows = np.flatnonzero(small_session("hit").model.predict(elements).particle_N.sigmoid().numpy() >= 0.5)
    hit = rows - elements.offsets_B.numpy()[event] - block["track"].counts[event] + block["hit"].offsets[event]
    assert np.array_equal(found["cluster"][on_hit], block["hit"]["cluster"][hit[on_hit]])
    assert (found["cluster"][~on_hit] == -1).all()


def test_a_look_is_without_dropout_and_the_training_goes_on_after_it() -> None:
    model, elements = small_model(dropout=0.5).train(), from_block(fake_block(0, 6))
    first, second = (module.candidates(model, elements, 0.5) for _ in range(2))
    assert same(first, second)
    assert model.training


def test_a_file_is_opened_and_a_missing_or_broken_one_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, small_model(), threshold=0.3, card={"detector": "clic"})
    session = open_session(path)
    assert (session.threshold, session.detector, session.kinds) == (0.3, "clic", ("track", "cluster"))
    assert same(session.reconstruct(fake_block(0, 2)), open_session(path).reconstruct(fake_block(0, 2)))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputFileError, match="cannot be read as a model file"):
        open_session(path)
    with pytest.raises(InputFileError, match="no model file at"):
        open_session(tmp_path / "nothing")
    monkeypatch.setattr(shipped, "MODEL", tmp_path / "nothing")
    with pytest.raises(InputFileError, match=r"comes without a model; give --model FILE, or train one: ringflow train"):
        open_session()
