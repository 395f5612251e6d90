"""Scenes: what is in them is what the dataset says."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from ringflow.base.errors import UsageError
from ringflow.data.read import Dataset
from ringflow.display.scene import errors_of, event_scene, helices, listed, outline
from ringflow.display.source import open_source
from ringflow.evaluate.momenta import visible
from ringflow.event.block import EventBlock, concatenate
from ringflow.sim.geometry import detector_names, load_detector


@pytest.fixture(scope="module")
def block(shown: Path) -> EventBlock:
    return concatenate(list(Dataset(shown).events()))


def test_numbers_are_short_and_never_nan() -> None:
    assert listed(np.array([1.234567, 0.000123456789, -98765.4321])) == [1.2346, 0.00012346, -98765.0]
    assert listed(np.array([1, -1], np.int8)) == [1, -1]
    assert listed(np.array([np.nan, 2.0], np.float32)) == [None, 2.0]
    assert listed(np.zeros(0)) == []


def test_a_line_bends_as_the_field_wants_and_ends_at_the_face() -> None:
    detector = outline("clic")
    start, momentum = np.zeros((3, 3)), np.array([[10.0, 0, 0], [10.0, 0, 0], [1.0, 0, 20.0]])
    plus, neutral, forward = helices(start, momentum, np.array([1.0, 0.0, 0.0]), detector)
    assert plus[-1, 0] == pytest.approx(detector.face_radius)  # on the side that looks along x
    assert plus[-1, 1] < 0  # a positive charge turns clockwise in a field along +z
    radius = 10.0 / (0.299792458e-3 * detector.field)
    assert np.hypot(plus[:, 0], plus[:, 1] + radius) == pytest.approx(radius)
    assert neutral[-1] == pytest.approx([detector.face_radius, 0.0, 0.0])
    assert forward[-1, 2] == pytest.approx(detector.face_z)
    assert helices(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0), detector) == []
    start = np.array([[0.0, 0, 0], [2000.0, 0, 0]])
    looper, late = helices(start, np.array([[0.1, 0, 0], [1.0, 0, 0]]), np.array([1.0, 1.0]), detector)
    assert np.isfinite(looper).all()
    assert len(looper) > 30
    assert np.linalg.norm(late[-1] - late[0]) < 300  # it starts behind the face


def test_an_unknown_detector_is_drawn_without_its_parts() -> None:
    assert outline("somebody", 2.0).field == 2.0
    assert len(outline("somebody").parts) == 1
    assert {part["system"] for part in outline("cld").parts} == {"tracker", "ecal", "hcal", "coil", "yoke"}


@pytest.mark.parametrize("name", detector_names())
def test_a_dataset_tells_its_own_detector(name: str) -> None:
    geometry = load_detector(name).model_copy(update={"name": "mine"})
    told = json.loads(geometry.model_dump_json(exclude={"published"}))
    assert asdict(outline("mine", told=told)) == {**asdict(outline(name)), "name": "mine"}
    assert outline("mine", told={**told, "field": -1.0}) == outline("mine", told=None) == outline("mine")


def test_the_truth_has_what_its_particles_left(block: EventBlock) -> None:
    event = block.take(1, 2)
    scene = event_scene(event, {"target": event["target"]}, outline("clic"))
    truth = scene["reconstructions"][0]
    assert scene["event"]["number"] == event.event_number[0]
    assert len(scene["hits"]["x"]) == len(event["hit"])
    links, particles = event["hit_link"], event["particle"]
    left = np.zeros((len(event["hit"]), len(particles)))
    np.add.at(left, (links["hit"], links["particle"]), links["energy"])
    strongest = left.argmax(axis=1)
    assert left[np.arange(len(left)), scene["hits"]["particle"]] == pytest.approx(left.max(axis=1))
    of_somebody = left.max(axis=1) > 0
    assert 0.8 < of_somebody.mean() < 1.0  # the rest is noise
    assert np.mean((truth["hits"] == particles["target"][strongest])[of_somebody]) > 0.99
    assert (
        set(np.asarray(scene["hits"]["particle"])[~of_somebody]) == set(np.asarray(truth["hits"])[~of_somebody]) == {-1}
    )
    owners = {track: i for i, tracks in enumerate(truth["elements"]["tracks"]) for track in tracks}
    for i, track in enumerate(event["target"]["track"].tolist()):
        assert track < 0 or owners[track] == i
    assert truth["candidates"]["match"] == list(range(len(event["target"])))
    assert truth["errors"]["energy"] == pytest.approx(0.0, abs=1e-3)
    assert truth["jets"]["match"] == list(range(len(truth["jets"]["pt"])))


def test_events_come_in_any_order_and_with_all_reconstructions(shown: Path) -> None:
    source = open_source(shown)
    names = [one["name"] for one in source.about["reconstructions"]]
    assert names == ["target", "model", "baseline", "perfect"]
    numbers = [source.scene(index)["event"]["number"] for index in (2, 0, 1)]
    assert numbers == [2, 0, 1]
    scene = source.scene(2)
    json.dumps(scene, allow_nan=False)
    for one in scene["reconstructions"]:
        count = len(one["candidates"]["label"])
        assert count > 0
        assert {len(column) for column in one["candidates"].values()} == {count}
        assert len(one["hits"]) == len(scene["hits"]["x"])
        assert max(one["hits"]) < count
    model = scene["reconstructions"][1]
    matched = [match for match in model["candidates"]["match"] if match >= 0]
    assert len(matched) == len(set(matched)) > 0.5 * len(model["candidates"]["match"])
    for hit, owner in enumerate(model["hits"]):  # those of its clusters only
        assert owner < 0 or scene["hits"]["cluster"][hit] in model["elements"]["clusters"][owner]
    assert any(owner >= 0 for owner in model["hits"])
    made = model["candidates"]
    for line, charge, cluster in zip(made["line"], made["charge"], made["cluster"], strict=True):
        if charge == 0 and cluster >= 0:
            assert line[-3:] == pytest.approx([scene["clusters"][axis][cluster] for axis in "xyz"], abs=0.2)
    with pytest.raises(UsageError, match="no event 3"):
        source.scene(3)


def test_an_event_without_hits_and_truth(block: EventBlock) -> None:
    event = block.take(0, 1)
    kept = {name: event[name] for name in ("track", "cluster")}
    scene = event_scene(EventBlock(event.event_number, kept), {"mine": event["target"]}, outline("clic"))
    assert scene["hits"]["x"] == []
    assert set(scene["reconstructions"][0]["candidates"]["match"]) == {-1}
    assert scene["reconstructions"][0]["errors"]["true_energy"] is None


def test_a_jet_that_is_missing_or_made_up_is_wrong_by_all_it_has(block: EventBlock) -> None:
    truth = visible(block.take(0, 1))
    nothing = truth.select(truth.energy < 0)
    lost = errors_of(nothing, truth)
    assert lost["energy"] == pytest.approx(truth.energy.sum(), abs=1e-3)
    assert lost["jet"] > 5.0
    assert errors_of(truth, nothing)["jet"] == lost["jet"]
    assert errors_of(truth, truth) == {"jet": 0.0, "energy": 0.0}
