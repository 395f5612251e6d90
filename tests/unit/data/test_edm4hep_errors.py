"""What an EDM4hep file can lack: one clear line, or events without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import uproot

from fixtures.edm4hep_files import WRITERS, Content, write_frame
from ringflow.base.errors import InputFileError
from ringflow.data.edm4hep import Edm4hepFile, load_profile

CLD = load_profile("cld")


def refused(path: Path) -> str:
    with pytest.raises(InputFileError) as error:
        list(Edm4hepFile(path, CLD).events())
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("layout", sorted(WRITERS))
def test_a_damaged_file_is_told_or_read_but_never_a_crash(layout: str, tmp_path: Path) -> None:
    path = WRITERS[layout](tmp_path / "events.root", Content())
    whole, rng = path.read_bytes(), np.random.default_rng(2)
    told: list[str] = []
    for _ in range(5):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 20):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            for block in Edm4hepFile(path, CLD).events():
                assert len(block) <= 3
        except InputFileError as error:
            told.append(str(error))
    assert len(told) > 1
    assert not any("\n" in message for message in told)


def test_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "other.root"
    with uproot.recreate(path) as file:
        file.mktree("ntuple", {"x": "float32"}).extend({"x": np.ones(3, np.float32)})
    assert "it has no tree 'events', but ntuple" in refused(path)
    with uproot.recreate(path) as file:
        file.mktree("events", {"x": "float32"}).extend({"x": np.ones(3, np.float32)})
    assert "has no collection 'SiTracks_Refitted'" in refused(path)


def test_the_profile_of_another_detector_with_the_same_names(tmp_path: Path) -> None:
    content = Content()
    momentum = [[10 * np.cos(0.3)] * 12, [], []]
    content.members["PandoraPFOs"] = {
        "PDG": [[211] * 12, [], []],
        "energy": [[11.2] * 12, [], []],
        "momentum.x": momentum,
        "momentum.y": [[10 * np.sin(0.3)] * 12, [], []],
        "momentum.z": [[5.0] * 12, [], []],
        "charge": [[1.0] * 12, [], []],
        "mass": [[0.14] * 12, [], []],
        "tracks_begin": [[0] * 12, [], []],
        "tracks_end": [[1] * 12, [], []],
    }
    tracks = content.vectors["PandoraPFOs"]["tracks"]
    content.vectors["PandoraPFOs"] = {"tracks": tracks}
    path = write_frame(tmp_path / "events.root", content)
    assert len(next(Edm4hepFile(path, CLD).events())["candidate"]) == 12
    with pytest.raises(
        InputFileError, match=r"0\.50 times the transverse momentum .* 4\.0 T; the profile 'clic' is of another"
    ):
        Edm4hepFile(path, load_profile("clic"))


def test_no_links_no_truth_but_events(tmp_path: Path) -> None:
    content = Content()
    content.drop("SiTracksMCTruthLink", "CalohitMCTruthLink", "ClusterMCTruthLink")
    file = Edm4hepFile(write_frame(tmp_path / "events.root", content), CLD)
    block = next(file.events())
    assert not file.has_truth
    assert file.notes[0] == "events.root tells no truth to compare with: it has no 'SiTracksMCTruthLink'"
    assert set(block.collections) == {"track", "cluster", "hit", "particle", "candidate"}
    assert not {"label", "target"} & set(block["particle"].columns)


def test_nothing_but_tracks_and_clusters(tmp_path: Path) -> None:
    content = Content()
    kept = {"SiTracks_Refitted", "PandoraClusters"}
    content.drop(*(name for name in list(content.members) if name not in kept))
    file = Edm4hepFile(write_frame(tmp_path / "events.root", content), CLD)
    assert set(next(file.events()).collections) == {"track", "cluster"}
    assert any("it has no 'MCParticles'" in note for note in file.notes)
    assert any("lacks ECALBarrel" in note for note in file.notes)


def test_what_is_no_root_file_or_a_part_of_one(tmp_path: Path) -> None:
    assert "no file at" in refused(tmp_path / "nowhere.root")
    path = tmp_path / "events.root"
    for content in (b"", b"once upon a time " * 100):
        path.write_bytes(content)
        assert "cannot be read as a ROOT file" in refused(path)
    for layout, share in zip(sorted(WRITERS), (0.1, 0.5, 0.99), strict=True):
        whole = WRITERS[layout](path, Content()).read_bytes()
        kept = int(share * len(whole))
        path.write_bytes(whole[:kept])
        assert f"is cut off: {kept} of {len(whole)} bytes are there; copy it again" in refused(path)


def _without(collection: str, member: str) -> Content:
    content = Content()
    del content.members[collection][member]
    return content


def _with(collection: str, **members: list[list[float]]) -> Content:
    content = Content()
    content.members[collection] |= members
    return content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (_without("PandoraClusters", "position.x"), "PandoraClusters has no position.x; is it what the profile takes"),
        (_without("SiTracks_Refitted", "chi2"), "SiTracks_Refitted has no chi2; is it what the profile takes it for"),
        (
            _with("SiTracks_Refitted", trackStates_begin=[[0, 2], [], [0]], trackStates_end=[[2, 300], [], [1]]),
            "SiTracks_Refitted.trackStates goes from 2 to 300 in an event that has 3; the file is damaged",
        ),
        (
            _with("SiTracks_Refitted", trackStates_begin=[[0, 3], [], [0]], trackStates_end=[[2, 2], [], [1]]),
            "SiTracks_Refitted.trackStates goes from 3 to 2 in an event that has 3; the file is damaged",
        ),
        (
            _with("SiTracks_Refitted", trackStates_end=[[2, 2], [], [1]]),
            "a track of entry 0 in SiTracks_Refitted has no state",
        ),
        (_with("PandoraPFOs", energy=[[11.2, 1.0, 2.1], [], [np.nan]]), "candidate energy is nan in event 12"),
    ],
)
def test_what_cannot_be_is_told_with_its_place(content: Content, said: str, tmp_path: Path) -> None:
    assert said in refused(write_frame(tmp_path / "events.root", content))


def test_a_missing_collection_is_named_with_what_is_there(tmp_path: Path) -> None:
    content = Content()
    path = write_frame(tmp_path / "events.root", content)
    with pytest.raises(InputFileError, match=r"the profile 'cl(ic|d)' would fit"):
        Edm4hepFile(path, load_profile("fcc_delphes"))
    content.drop("PandoraClusters")
    message = refused(write_frame(path, content))
    assert "has no collection 'PandoraClusters', which the profile 'cld' needs" in message
    assert "MCParticles" in message
    assert "_SiTracks_Refitted_trackStates" not in message


def test_no_events_and_events_without_elements(tmp_path: Path) -> None:
    def filled(value: list[list[float]]) -> Content:
        content = Content()
        for columns in content.members.values():
            columns.update(dict.fromkeys(columns, value))
        for vectors in content.vectors.values():
            for name, columns in vectors.items():
                vectors[name] = dict.fromkeys(columns, value) if isinstance(columns, dict) else value
        return content

    assert "has no events" in refused(write_frame(tmp_path / "events.root", filled([])))
    for write in WRITERS.values():
        block = next(Edm4hepFile(write(tmp_path / "events.root", filled([[], [], []])), CLD).events())
        assert len(block) == 3
        assert {len(part) for part in block.collections.values()} == {0}
