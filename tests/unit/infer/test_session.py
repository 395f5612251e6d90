"""Sessions: candidates with indices into their events, the same however events are batched, and clear words for bad files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "data"))

from fake_events import fake_block

from ringflow.base.errors import InputFileError
from ringflow.elements.batch import TRACK
from ringflow.elements.build import from_block
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.infer import session as module
from ringflow.infer import shipped
from ringflow.infer.session import Session, open_session
from ringflow.models.file import LoadedModel, save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings


def small_model(calorimeter: str = "cluster", seed: int = 1) -> Model:
    """A network of random weights that says yes to some elements."""
    torch.manual_seed(seed)
    model = Model(ModelSettings(width=16, layers=1, heads=2, hidden=16, calorimeter=calorimeter))
    torch.nn.init.normal_(model.heads.out.weight, std=0.3)
    with torch.no_grad():
        elements = from_block(fake_block(0, 20), calorimeter)
        model.embedding.fit(elements.features_NF)
        model.heads.out.bias[0] -= model.predict(elements).particle_N.median() + 0.01  # nobody on the border
    return model.eval()


def small_session(calorimeter: str = "cluster") -> Session:
    return Session(LoadedModel(small_model(calorimeter), 0.5, {"detector": "fake"}))


def empty_event(block: EventBlock) -> EventBlock:
    """An event with nothing in it."""
    columns = {
        name: Collection(np.zeros(1, np.int64), {key: values[:0] for key, values in part.columns.items()})
        for name, part in block.collections.items()
    }
    return EventBlock(np.array([999]), columns)


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
    some, nothing = fake_block(0, 3), empty_event(fake_block(0, 1))
    session = small_session()
    found = session.reconstruct(concatenate([nothing, some, nothing]))
    assert found.counts.tolist() == [0, *session.reconstruct(some).counts, 0]
    assert session.reconstruct(nothing).counts.tolist() == [0]
    assert session.reconstruct(nothing)["px"].dtype == np.float32
    assert session.reconstruct(some.take(0, 0)).counts.tolist() == []


def test_columns_a_detector_lacks() -> None:
    block = fake_block(0, 3)
    poor = Collection(
        block["cluster"].counts,
        {n: block["cluster"][n] for n in ("energy", "x", "y", "z", "eta", "phi")},
    )
    found = small_session().reconstruct(EventBlock(block.event_number, {**block.collections, "cluster": poor}))
    assert np.isfinite(found["px"]).all()


def test_a_candidate_on_a_hit_names_the_cluster_of_the_hit() -> None:
    block = fake_block(0, 6)
    found = small_session("hit").reconstruct(block)
    event = np.repeat(np.arange(6), found.counts)
    on_hit = found["track"] < 0
    assert on_hit.any()
    assert (found["cluster"][on_hit] >= 0).all()
    assert (found["cluster"] < block["cluster"].counts[event]).all()


def test_training_goes_on_after_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model().train()
    module.candidates(model, from_block(fake_block(0, 2)), 0.5)
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
