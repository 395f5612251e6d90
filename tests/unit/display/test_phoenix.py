"""Phoenix event files: what we write has the form of the format, and comes back as it was; others' files are read too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import InputFileError, UsageError
from ringflow.display.phoenix import phoenix_event, phoenix_scene, read_phoenix, write_phoenix
from ringflow.display.source import open_source

#: Object types of Phoenix, and what every object of them must have.
TYPES = {
    "Tracks": ("pos",),
    "CaloClusters": ("energy", "phi", "eta"),
    "Hits": ("pos", "type"),
    "Jets": ("eta", "phi"),
    "MissingEnergy": ("etx", "ety"),
    "Vertices": ("x", "y", "z"),
}


@pytest.fixture(scope="module")
def scene(shown: Path) -> dict[str, Any]:
    return open_source(shown).scene(1)


def test_the_form_is_that_of_phoenix(scene: dict[str, Any]) -> None:
    event = phoenix_event(scene)
    assert event["event number"] == 1
    assert "run number" in event
    assert {name for name, part in event.items() if isinstance(part, dict)} == set(TYPES)
    for kind, needed in TYPES.items():
        assert event[kind], kind
        for objects in event[kind].values():
            assert isinstance(objects, list)
            for one in objects:
                assert all(name in one for name in needed)
    for tracks in event["Tracks"].values():
        assert all(len(point) == 3 for track in tracks for point in track["pos"])
        assert all(len(track["pos"]) >= 3 for track in tracks)  # shorter ones Phoenix extrapolates itself
    d0, z0, phi, theta, curvature = event["Tracks"]["tracks"][0]["dparams"]
    pt = scene["tracks"]["pt"][0]
    assert abs(math.sin(theta) / curvature) == pytest.approx(pt, rel=1e-3)
    assert (d0, z0, phi) == tuple(scene["tracks"][name][0] for name in ("d0", "z0", "phi"))


def test_it_comes_back_as_it_was(scene: dict[str, Any], tmp_path: Path) -> None:
    write_phoenix(tmp_path / "event.json", [scene])
    source = open_source(tmp_path / "event.json")
    again = source.scene(0)
    assert source.num_events == 1
    assert source.errors(0) == {}
    assert [one["title"] for one in source.about["reconstructions"]] == ["Truth", "Model", "Rules", "Perfect PF"]
    for name in ("detector", "classes", "subsystems", "tracks", "hits", "particles", "links", "graph", "calorimeter"):
        assert again[name] == scene[name], name
    assert again["clusters"] == {name: scene["clusters"][name] for name in again["clusters"]}
    for one, before in zip(again["reconstructions"], scene["reconstructions"], strict=True):
        for part in ("name", "title", "candidates", "elements", "hits", "jets"):
            assert one[part] == before[part], (one["name"], part)


def test_hits_have_their_order_whatever_the_order_of_the_collections(scene: dict[str, Any]) -> None:
    event = phoenix_event(scene)
    assert len(event["Hits"]) > 1
    turned = {**event, "Hits": dict(reversed(event["Hits"].items()))}
    assert phoenix_scene("a", turned, 0)["hits"] == scene["hits"]


FOREIGN = {
    "event 7": {
        "eventNumber": 7,
        "Tracks": {
            "CombinedTracks": [
                {"pos": [[0, 0, 0], [100, 0, 50], [200, -5, 100]], "color": "#ff0000"},
                {"dparams": [0.1, 2.0, 1.0, 0.8, -0.0005], "pos": [[0, 0, 2], [1, 1, 4], [2, 2, 6]]},
            ],
            "Other": [{"pos": [0, 0, 0, 1, 0, 0, 2, 0, 0], "pT": 3.0, "eta": 0.0, "phi": 0.0}],
        },
        "CaloClusters": {"EM": [{"energy": 4.0, "eta": 0.0, "phi": 1.5}, {"energy": 1.0, "eta": 3.0, "phi": 0.0}]},
        "Hits": {"Pixel": [[1, 2, 3], [4, 5, 6]], "Lines": [{"type": "Line", "pos": [0, 0, 0, 1, 1, 1]}]},
        "Jets": {"Other": [{"eta": 1.0, "phi": 2.0, "energy": 50.0}]},
        "MissingEnergy": {"met": [{"etx": 1, "ety": 2}]},
    }
}


def test_files_of_others_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps(FOREIGN))
    scene = open_source(tmp_path / "other.json").scene(0)
    combined, other = scene["reconstructions"]
    assert (combined["name"], other["name"]) == ("CombinedTracks", "Other")
    assert combined["candidates"]["phi"][0] == pytest.approx(0.0)
    assert combined["candidates"]["eta"][0] == pytest.approx(math.asinh(0.5))
    assert combined["candidates"]["energy"][1] == pytest.approx(2000.0)
    assert combined["candidates"]["charge"][1] == -1
    assert other["candidates"]["line"] == [[0, 0, 0, 1, 0, 0, 2, 0, 0]]
    assert other["jets"]["energy"] == [50.0]
    assert (scene["hits"]["x"], scene["hits"]["z"]) == ([1.0, 4.0], [3.0, 6.0])
    assert scene["subsystems"][scene["hits"]["subsystem"][0]] == "Pixel"
    barrel, endcap = (tuple(scene["clusters"][name][row] for name in "xyz") for row in (0, 1))
    assert math.hypot(*barrel[:2]) == pytest.approx(1800.0)
    assert endcap[2] == pytest.approx(3600.0)
    assert scene["event"]["number"] == 7


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("no json", "not readable JSON"),
        ("[]", "holds no events"),
        ("{}", "holds no events"),
        ('{"a": 1}', "'a' has no Tracks"),
        ('{"a": {"Tracks": {"b": [{"pos": "text"}]}}}', "not as Phoenix has it"),
        ('{"a": {"CaloClusters": {"b": [{"energy": 1}]}}}', "not as Phoenix has it"),
        ('{"a": {"Tracks": {"b": [1]}}}', "not as Phoenix has it"),
    ],
)
def test_what_is_no_phoenix_file_is_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(InputFileError, match=words):
        open_source(path).scene(0)


def test_order_limits_and_options(tmp_path: Path) -> None:
    two = tmp_path / "two.json"
    two.write_text(json.dumps({"b": FOREIGN["event 7"], "a": {"CaloClusters": FOREIGN["event 7"]["CaloClusters"]}}))
    assert list(read_phoenix(two)) == ["b", "a"]
    assert open_source(two, events=1).num_events == 1
    assert len(open_source(two).scene(1)["reconstructions"]) == 1  # clusters alone are enough
    with pytest.raises(UsageError, match="--model m does not go with"):
        open_source(two, model=Path("m"))
