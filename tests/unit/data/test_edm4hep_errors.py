"""What an EDM4hep file can lack: one clear line, or events without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import uproot

from fixtures.edm4hep_files import WRITERS, Content, write_frame
from ringflow.base.errors import InputFileError
from ringflow.data.edm4hep import Edm4hepFile, load_profile
from ringflow.data.edm4hep.podio import collection_id

CLD = load_profile("cld")


def refused(path: Path) -> str:
    with pytest.raises(InputFileError) as error:
        list(Edm4hepFile(path, CLD).events())
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_no_file(tmp_path: Path) -> None:
    assert "no file at" in refused(tmp_path / "nowhere.root")


def test_not_a_root_file(tmp_path: Path) -> None:
    path = tmp_path / "text.root"
    path.write_text("once upon a time " * 100)
    assert "cannot be read as a ROOT file" in refused(path)
    path.write_bytes(b"")
    assert "cannot be read as a ROOT file" in refused(path)


@pytest.mark.parametrize("layout", sorted(WRITERS))
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file(layout: str, share: float, tmp_path: Path) -> None:
    path = WRITERS[layout](tmp_path / "events.root", Content())
    whole = path.read_bytes()
    kept = int(share * len(whole))
    path.write_bytes(whole[:kept])
    assert f"is cut off: {kept} of {len(whole)} bytes are there; copy it again" in refused(path)
    path.write_bytes(whole[:200])  # not even a header
    assert "cannot be read as a ROOT file" in refused(path)


@pytest.mark.parametrize("layout", sorted(WRITERS))
def test_a_damaged_file_is_told_or_read_but_never_a_crash(layout: str, tmp_path: Path) -> None:
    path = WRITERS[layout](tmp_path / "events.root", Content())
    whole, rng = path.read_bytes(), np.random.default_rng(2)
    told: list[str] = []
    for _ in range(8):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 20):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            for block in Edm4hepFile(path, CLD).events():
                assert len(block) <= 3
        except InputFileError as error:
            told.append(str(error))
    assert len(told) > 3
    assert not any("\n" in message for message in told)


def test_a_name_that_is_no_text() -> None:
    assert collection_id("\udce4CALBarrel") != collection_id("ECALBarrel")


@pytest.mark.parametrize(
    ("collection", "member"),
    [
        ("PandoraClusters", "position.x"),
        ("SiTracks_Refitted", "chi2"),
        ("MCParticles", "PDG"),
        ("ECALBarrel", "energy"),
    ],
)
def test_a_collection_of_another_kind(collection: str, member: str, tmp_path: Path) -> None:
    content = Content()
    del content.members[collection][member]
    message = refused(write_frame(tmp_path / "events.root", content))
    assert f"{collection} has no {member}; is it what the profile takes it for" in message


@pytest.mark.parametrize("layout", sorted(WRITERS))
@pytest.mark.parametrize(("begin", "end"), [([0, 2], [2, 4]), ([0, 2], [2, 300]), ([0, 3], [2, 2])])
def test_entries_of_another_event_are_not_taken(layout: str, begin: list[int], end: list[int], tmp_path: Path) -> None:
    content = Content()
    content.members["SiTracks_Refitted"]["trackStates_begin"] = [begin, [], [0]]
    content.members["SiTracks_Refitted"]["trackStates_end"] = [end, [], [1]]
    message = refused(WRITERS[layout](tmp_path / "events.root", content))
    place = f"goes from {begin[1]} to {end[1]} in an event that has 3"
    assert f"SiTracks_Refitted.trackStates {place}; the file is damaged" in message


def test_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "other.root"
    with uproot.recreate(path) as file:
        file.mktree("ntuple", {"x": "float32"}).extend({"x": np.ones(3, np.float32)})
    assert "it has no tree 'events', but ntuple" in refused(path)
    with uproot.recreate(path) as file:
        file.mktree("events", {"x": "float32"}).extend({"x": np.ones(3, np.float32)})
    assert "has no collection 'SiTracks_Refitted'" in refused(path)


def test_a_missing_collection_is_named_with_what_is_there(tmp_path: Path) -> None:
    content = Content()
    content.drop("PandoraClusters")
    message = refused(write_frame(tmp_path / "events.root", content))
    assert "has no collection 'PandoraClusters', which the profile 'cld' needs" in message
    assert "MCParticles" in message
    assert "SiTracks_Refitted" in message
    assert "_SiTracks_Refitted_trackStates" not in message


def test_the_profile_that_would_fit_is_named(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "events.root", Content())
    with pytest.raises(InputFileError, match=r"the profile 'cl(ic|d)' would fit"):
        Edm4hepFile(path, load_profile("fcc_delphes"))


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


def test_no_events(tmp_path: Path) -> None:
    content = Content()
    for columns in content.members.values():
        columns.update({name: [] for name in columns})
    for vectors in content.vectors.values():
        for name, columns in vectors.items():
            vectors[name] = {member: [] for member in columns} if isinstance(columns, dict) else []
    assert "has no events" in refused(write_frame(tmp_path / "events.root", content))


def test_events_without_elements(tmp_path: Path) -> None:
    content = Content()
    for columns in content.members.values():
        columns.update({name: [[], [], []] for name in columns})
    for vectors in content.vectors.values():
        for name, columns in vectors.items():
            vectors[name] = {member: [[], [], []] for member in columns} if isinstance(columns, dict) else [[], [], []]
    for write in WRITERS.values():
        block = next(Edm4hepFile(write(tmp_path / "events.root", content), CLD).events())
        assert len(block) == 3
        assert {len(part) for part in block.collections.values()} == {0}


def test_a_track_without_a_state(tmp_path: Path) -> None:
    content = Content()
    content.members["SiTracks_Refitted"]["trackStates_end"] = [[2, 2], [], [1]]
    assert "a track of entry 0 in SiTracks_Refitted has no state" in refused(
        write_frame(tmp_path / "events.root", content)
    )


def test_a_value_that_is_no_number(tmp_path: Path) -> None:
    content = Content()
    content.members["PandoraPFOs"]["energy"][2][0] = float("nan")
    assert "candidate energy is nan in event 12" in refused(write_frame(tmp_path / "events.root", content))
