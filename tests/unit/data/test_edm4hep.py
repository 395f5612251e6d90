"""EDM4hep files the project writes itself, in every layout: values, units, indices and truth come out as they went in.

What a file can lack is told in one clear line, or the events are without it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import uproot

from fixtures.edm4hep_files import FIELD, WRITERS, Content, Lists, add_table, references, write_frame, write_rntuple
from ringflow.base.errors import InputFileError, SettingsError, UsageError
from ringflow.data.edm4hep import Edm4hepFile, load_profile, open_edm4hep, profile_names
from ringflow.data.edm4hep.podio import PodioFile, collection_id
from ringflow.event.block import EventBlock, concatenate
from ringflow.event.particles import BENDING, CHARGED_HADRON, MUON, NONE, PHOTON, SPEED_OF_LIGHT
from ringflow.event.schema import SUBSYSTEMS

CLD = load_profile("cld")


def read(path: Path) -> EventBlock:
    return next(Edm4hepFile(path, CLD).events())


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> EventBlock:
    """The RNTuple, which has everything."""
    return read(write_rntuple(tmp_path_factory.mktemp("edm4hep") / "events.root", Content()))


@pytest.mark.parametrize("layout", sorted(WRITERS))
def test_every_layout_gives_the_same_events(layout: str, block: EventBlock, tmp_path: Path) -> None:
    file = Edm4hepFile(WRITERS[layout](tmp_path / "events.root", Content()), CLD)
    found = next(file.events())
    assert (file.layout, file.num_events, file.has_truth) == (layout, 3, True)
    assert found.event_number.tolist() == [7, 8, 12]
    assert set(found.collections) == set(block.collections)
    for name, part in found.collections.items():
        assert part.counts.tolist() == block[name].counts.tolist()
        lacking = set(block[name].columns) - set(part.columns)
        assert all(column.startswith("sigma_") for column in lacking)
        for column, values in part.columns.items():
            np.testing.assert_array_equal(values, block[name][column], err_msg=f"{name} {column}")


def test_tracks(block: EventBlock) -> None:
    track = block["track"]
    assert track.counts.tolist() == [2, 0, 1]
    np.testing.assert_allclose(track["pt"], [10.0, 2.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(np.sinh(track["eta"]), [0.5, 0.4, 0.0], atol=1e-6)
    assert track["charge"].tolist() == [1, 1, -1]
    np.testing.assert_allclose(track["d0"], [-0.02, 0.5, 0.0], atol=1e-6)  # the schema counts the other way round
    np.testing.assert_allclose(track["z0"], [0.1, 3.0, 0.0], atol=1e-6)
    assert track["num_hits"].tolist() == [3, 2, 2]
    # Variances are the diagonal of a lower triangle: 1, 3, 6, 10 and 15 millionths here.
    assert track["sigma_d0"][0] == pytest.approx(1e-3)
    assert track["sigma_phi"][0] == pytest.approx(3e-6**0.5)
    assert track["sigma_pt"][0] == pytest.approx(6e-6**0.5 / (BENDING * FIELD / 10.0))
    assert track["sigma_z0"][0] == pytest.approx(1e-5**0.5)
    assert track["sigma_theta"][0] == pytest.approx(15e-6**0.5 / 1.25)


def test_a_track_enters_the_calorimeter_where_its_state_says(block: EventBlock) -> None:
    track = block["track"]
    assert [track[f"calo_{axis}"][0] for axis in "xyz"] == [2100.0, 460.0, 1075.0]
    direction = np.array([np.cos(0.2), np.sin(0.2), 0.5]) / np.hypot(1.0, 0.5)
    np.testing.assert_allclose([track[f"calo_d{axis}"][0] for axis in "xyz"], direction, rtol=1e-6)
    assert track["time"][0] == 8.5
    # Without a state it follows its helix to a side of the barrel, and counts as prompt.
    for row in (1, 2):
        azimuth = np.arctan2(track["calo_y"][row], track["calo_x"][row])
        normal = np.round(azimuth / (np.pi / 6)) * np.pi / 6
        assert np.hypot(track["calo_x"], track["calo_y"])[row] * np.cos(azimuth - normal) == pytest.approx(2150.0)
    assert track["time"][2] == pytest.approx(np.hypot(track["calo_x"], track["calo_y"])[2] / 299.792458)
    assert track["reaches_calo"].tolist() == [1, 1, 1]


def test_clusters_without_hits(tmp_path: Path) -> None:
    content = Content()
    content.drop("ECALBarrel", "HCALBarrel", "MUON", "CalohitMCTruthLink")
    file = Edm4hepFile(write_frame(tmp_path / "events.root", content), CLD)
    found = next(file.events())
    cluster = found["cluster"]
    assert "hit" not in found
    assert set(cluster.columns) == {
        *("energy", "x", "y", "z", "eta", "phi", "num_hits", "ecal_energy", "hcal_energy", "muon_energy")
    }
    assert cluster["energy"].tolist() == [6.25, 1.0]
    assert cluster["x"].tolist() == [2200.0, 0.0]
    assert cluster["num_hits"].tolist() == [4, 2]
    # Truth then comes from the links of the clusters: half of the second is the photon's, half its electron's.
    assert found["cluster_link"]["particle"].tolist() == [0, 1]
    assert found["cluster_link"]["energy"].tolist() == [6.25, 1.0]
    assert found["target"]["cluster"].tolist() == [-1, 1, -1, -1]
    # Without a position they are put where their particles point.
    content.members["PandoraClusters"] |= {f"position.{axis}": [[0.0, 0.0], [], []] for axis in "xyz"}
    cluster = read(write_frame(tmp_path / "events.root", content))["cluster"]
    np.testing.assert_allclose(np.hypot(cluster["x"], cluster["y"]), 2150.0, rtol=1e-6)
    assert cluster["phi"][1] == pytest.approx(np.pi / 2)
    assert cluster["z"][0] / cluster["x"][0] == pytest.approx(5.0 / 9.5)


def test_hits_clusters_and_candidates(block: EventBlock) -> None:
    expected: dict[str, dict[str, list[float]]] = {
        "hit": {
            "energy": [1.0, 3.0, 0.5, 0.5, 2.0, 0.25],
            "layer": [2, 3, 4, 5, 1, 0],
            "subsystem": [
                *[SUBSYSTEMS.index("ecal_barrel")] * 4,
                *map(SUBSYSTEMS.index, ("hcal_barrel", "yoke_endcap")),
            ],
            "cluster": [0, 0, 1, 1, 0, 0],
        },
        "cluster": {  # is what its hits are
            "energy": [6.25, 1.0],
            "ecal_energy": [4.0, 1.0],
            "hcal_energy": [2.0, 0.0],
            "muon_energy": [0.25, 0.0],
            "num_hits": [4, 2],
            "start_layer": [2, 4],
        },
        "candidate": {
            "label": [CHARGED_HADRON, PHOTON, CHARGED_HADRON, MUON],
            "charge": [1, 0, -1, 1],
            "track": [0, -1, 1, 0],
            "cluster": [0, 1, -1, -1],
        },
    }
    for name, columns in expected.items():
        for column, values in columns.items():
            assert block[name][column].tolist() == values, f"{name} {column}"
    assert block["cluster"]["x"][1] == pytest.approx(2172.5)
    flight = np.sqrt(sum(block["hit"][axis] ** 2 for axis in "xyz")) / SPEED_OF_LIGHT
    np.testing.assert_allclose(block["hit"]["time"] - flight, [0.0, 0.25, 0.5, 0.75, 0.0, 0.0], atol=1e-5)
    np.testing.assert_allclose(block["candidate"]["energy"], [11.2, 1.0, 2.1, 1.1], rtol=1e-6)


@pytest.mark.parametrize("subtracted", [True, False])
def test_hit_times_with_and_without_the_flight_of_light(subtracted: bool, tmp_path: Path) -> None:
    """What the files of a detector have is a matter of its digitisation: a profile that says the wrong thing is refused."""
    rng, size = np.random.default_rng(1), 300
    azimuth = rng.uniform(-np.pi, np.pi, size)
    place = np.stack([2200 * np.cos(azimuth), 2200 * np.sin(azimuth), rng.uniform(-2000, 2000, size)])
    flight = np.linalg.norm(place, axis=0) / SPEED_OF_LIGHT
    # A tenth of noise, which comes at any time.
    late = np.where(np.arange(size) % 10 == 0, rng.uniform(-10, 100, size), rng.exponential(0.5, size))
    content = Content()
    content.drop("PandoraPFOs", "CalohitMCTruthLink")
    content.members["ECALBarrel"] = {
        "cellID": [[1 << 19] * size, [], []],
        "energy": [[0.01] * size, [], []],
        "time": [(late if subtracted else late + flight).tolist(), [], []],
        **{f"position.{axis}": [values.tolist(), [], []] for axis, values in zip("xyz", place, strict=True)},
    }
    path = write_frame(tmp_path / "events.root", content)
    with_flight = CLD.model_copy(update={"hit_times": None})
    right, wrong = (CLD, with_flight) if subtracted else (with_flight, CLD)
    file = Edm4hepFile(path, right)
    hits = next(file.events())["hit"]
    np.testing.assert_allclose(hits["time"][:size], late + flight, atol=1e-4)
    assert any("flight of light subtracted" in note for note in file.notes) == subtracted
    said = "from the collision" if subtracted else "flight subtracted"
    other = "flight subtracted" if subtracted else "from the collision"
    with pytest.raises(
        InputFileError, match=rf"hit_times = '{said}', its hits come -?\d.* ns after .* hit_times = '{other}'"
    ):
        Edm4hepFile(path, wrong)
    unread = wrong.model_copy(update={"ignored_columns": ("hit_time", "cluster_time")})
    assert "time" not in Edm4hepFile(path, unread).columns["hit"]


@pytest.mark.parametrize("left_out", ["tracks", "clusters"])
def test_a_profile_without_tracks_or_clusters(left_out: str, tmp_path: Path) -> None:
    file = Edm4hepFile(write_frame(tmp_path / "events.root", Content()), CLD.model_copy(update={left_out: None}))
    assert left_out[:-1] not in file.columns
    found = next(file.events())
    assert found["candidate"].counts.tolist() == [3, 0, 1]
    assert len(found["hit_target"])


def test_blocks_cut_the_same_events(block: EventBlock, tmp_path: Path) -> None:
    file = Edm4hepFile(write_rntuple(tmp_path / "events.root", Content()), CLD)
    blocks = list(file.events(block_events=1))
    assert [len(part) for part in blocks] == [1, 1, 1]
    joined = concatenate(blocks)
    for name, part in block.collections.items():
        for column, values in part.columns.items():
            np.testing.assert_array_equal(joined[name][column], values, err_msg=f"{name} {column}")
    assert [part.event_number.tolist() for part in file.events(start=1, stop=9)] == [[8, 12]]


def test_energy_loss_is_counted_in_minimum_ionising_particles(tmp_path: Path) -> None:
    content = Content()
    content.members["Loss"] = {"dQdx.value": [[3e-6, 2e-6], [], [1e-6]]}
    track: Lists = [[1, 0], [], [0]]
    content.vectors["Loss"] = {"track": references("SiTracks_Refitted", track)}
    path = write_frame(tmp_path / "events.root", content)
    assert CLD.tracks is not None
    tracks = CLD.tracks.model_copy(update={"dedx_collection": "Loss", "mip_dedx": 1e-6})
    found = next(Edm4hepFile(path, CLD.model_copy(update={"tracks": tracks})).events())
    np.testing.assert_allclose(found["track"]["dedx"], [2.0, 3.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("layout", "tree", "names", "numbers"),
    [
        ("legacy", "metadata", "m_names", "m_collectionIDs"),
        ("frame", "podio_metadata", "m_names", "m_collectionIDs"),
        ("rntuple", "podio_metadata", "events___CollectionTypeInfo.name", "events___CollectionTypeInfo.collectionID"),
    ],
)
def test_numbers_of_collections_are_those_that_the_file_tells(
    layout: str, tree: str, names: str, numbers: str, block: EventBlock, tmp_path: Path
) -> None:
    """Where podio has kept them since 2020; old versions counted, and did not make a number of the name."""
    content = Content()
    ids = {name: place + 1 for place, name in enumerate([*content.members, "Hits"])}
    content.number(ids)
    path = WRITERS[layout](tmp_path / "events.root", content)
    add_table(path, tree, names, numbers, ids)
    assert PodioFile(path).ids == ids
    assert collection_id("PandoraPFOs") == 4196981182  # from a file written by podio itself
    found = read(path)
    for name, part in block.collections.items():
        for column in part.columns.keys() & found[name].columns.keys():
            np.testing.assert_array_equal(found[name][column], part[column], err_msg=f"{name} {column}")


@pytest.mark.parametrize("writer", ["frame", "legacy"])
def test_tracks_tell_the_field_and_that_the_profile(
    writer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = Content()
    assert open_edm4hep(WRITERS[writer](tmp_path / "cld.root", content)).profile.name == "cld"
    assert "cld.root is read with the profile 'cld'" in capsys.readouterr().err
    states = content.vectors["SiTracks_Refitted"]["trackStates"]
    assert isinstance(states, dict)
    states["omega"] = [[2 * omega for omega in event] for event in states["omega"]]
    assert open_edm4hep(WRITERS[writer](tmp_path / "clic.root", content)).profile.name == "clic"
    assert open_edm4hep(tmp_path / "clic.root", "cld").profile.name == "cld"


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        ("PandoraPFOs", r"profiles cld and clic need.*say --profile cld or --profile clic"),
        (
            "PandoraClusters",
            r"no profile fits .*events.root: cld lacks PandoraClusters; clic lacks PandoraClusters; fcc_delphes lacks "
            r"EFlowTrack, EFlowPhoton, .*--profile FILE.toml",
        ),
    ],
)
def test_where_nothing_tells_the_profile_the_user_has_to(dropped: str, said: str, tmp_path: Path) -> None:
    content = Content()
    content.drop(dropped)
    path = write_frame(tmp_path / "events.root", content)
    with pytest.raises(InputFileError, match=said):
        open_edm4hep(path)


def test_what_a_file_does_not_fill_is_made_up_for_or_left_out(tmp_path: Path) -> None:
    content = Content()
    content.members["SiTracks_Refitted"] |= {"chi2": [[0.0, 0.0], [], [0.0]], "ndf": [[0, 0], [], [0]]}
    content.members["EventHeader"]["eventNumber"] = [[5], [5], [5]]
    # Classes by charge and mass.
    content.members["PandoraPFOs"] |= {"PDG": [[0, 0, 0], [], [0]], "charge": [[1, -1, 0], [], [0]]}
    content.members["PandoraPFOs"]["mass"] = [[0.1396, 0.0005, 0.0], [], [0.4976]]
    hits = references(["ECALBarrel"] * 2 + ["HCALBarrel", "MUON"] + ["Elsewhere"] * 2, [[0, 1, 0, 0, 2, 3], [], []])
    content.vectors["PandoraClusters"]["hits"] = hits
    file = Edm4hepFile(write_frame(tmp_path / "events.root", content), CLD)
    found = next(file.events())
    assert not {"chi2", "ndf"} & {*file.columns["track"], *found["track"].columns}
    assert any("does not fill track_chi2, track_ndf" in note for note in file.notes)
    assert found.event_number.tolist() == [0, 1, 2]  # numbers that do not rise are places
    assert found["candidate"]["label"].tolist() == [1, 4, 3, 2]
    # A cluster whose hits were dropped counts as one hit at its place.
    assert found["cluster"]["num_hits"].tolist() == [4, 0]
    assert found["cluster"]["energy"].tolist() == [6.25, 1.0]
    assert found["cluster"]["y"][1] == pytest.approx(2170.0)


def test_profiles(tmp_path: Path) -> None:
    assert profile_names() == ["cld", "clic", "fcc_delphes"]
    with pytest.raises(UsageError, match="did you mean 'clic'"):
        load_profile("click")
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "mine"\ndescription = "d"\ndetector = "mine"\nfield = 3\nface_radius = 1\nface_z = 1\n')
    assert load_profile(mine).required == ()
    page = Path(__file__).parents[3] / "docs" / "how-to" / "edm4hep.md"
    mine.write_text(page.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0])
    assert load_profile(mine).required == ("MarlinTrkTracks", "PandoraClusters")
    mine.write_text('name = "mine"\nfeild = 3.0\n')
    with pytest.raises(SettingsError, match="did you mean 'field'"):
        load_profile(str(mine))


# Truth: who counts as a particle, and whose the tracks, hits and clusters are


def test_particles_are_the_stable_ones_and_the_products_of_decays(block: EventBlock, tmp_path: Path) -> None:
    particle = block["particle"]
    assert particle.counts.tolist() == [5, 0, 1]
    assert particle["pdg"].tolist() == [211, 22, 12, 211, -211, -13]
    assert particle["label"].tolist() == [CHARGED_HADRON, PHOTON, NONE, CHARGED_HADRON, NONE, MUON]
    assert particle["energy"][0] == pytest.approx((81 + 9 + 25 + 0.13957**2) ** 0.5)
    assert particle["interaction"].tolist() == [0, 1, 0, 0, 0, 0]
    content = Content()  # a decay inside the calorimeter is none
    content.members["MCParticles"]["endpoint.y"][0][2] = -2300.0
    assert read(write_frame(tmp_path / "events.root", content))["particle"]["pdg"].tolist() == [211, 22, 310, 12, -13]


def test_truth_follows_the_links(block: EventBlock) -> None:
    assert block["track"]["particle"].tolist() == [0, 3, 0]
    # What the photon's electron left is the photon's.
    assert block["hit_link"]["particle"].tolist() == [0, 0, 1, 1, 0, 0]
    assert block["hit_link"]["energy"].tolist() == block["hit"]["energy"].tolist()
    assert block["target"]["track"].tolist() == [0, -1, 1, 0]
    assert block["target"]["cluster"].tolist() == [-1, 1, -1, -1]
    assert block["hit_target"]["hit"].tolist() == [-1, 2, -1, -1]
    assert block["particle"]["target"].tolist() == [0, 1, -1, 2, -1, 0]
    assert block["particle"]["calo_energy"].tolist() == [6.25, 1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["SiTracksMCTruthLink", "CalohitMCTruthLink"])
def test_links_may_be_stored_the_other_way_round(name: str, block: EventBlock, tmp_path: Path) -> None:
    content = Content()
    content.reverse(name)
    found = read(write_frame(tmp_path / "events.root", content))
    for column, values in block["target"].columns.items():
        np.testing.assert_array_equal(found["target"][column], values)


def test_truth_through_simulated_hits(block: EventBlock, tmp_path: Path) -> None:
    content = Content()
    content.drop("CalohitMCTruthLink")
    content.add_simulated_hits()
    found = read(write_frame(tmp_path / "events.root", content))
    in_ecal = block["hit_link"]["hit"] < 4
    for column in ("hit", "particle", "energy"):
        np.testing.assert_allclose(found["hit_link"][column], block["hit_link"][column][in_ecal])


def test_truth_through_the_reconstructed_particles(tmp_path: Path) -> None:
    content = Content()
    content.drop("SiTracksMCTruthLink", "CalohitMCTruthLink", "ClusterMCTruthLink", "ECALBarrel", "HCALBarrel", "MUON")
    content.members["RecoMCTruthLink"] = {"weight": [[0.0] * 4, [], [0.0]]}
    content.vectors["RecoMCTruthLink"] = {
        "from": references("PandoraPFOs", [[0, 1, 2, 1], [], [0]]),
        "to": references("MCParticles", [[0, 1, 4, 5], [], [0]]),
    }
    found = read(write_frame(tmp_path / "events.root", content))
    assert found["track"]["particle"].tolist() == [0, 3, 0]
    assert found["cluster_link"]["cluster"].tolist() == [0, 1, 1]
    assert found["cluster_link"]["particle"].tolist() == [0, 1, 4]
    # No link weighs anything: the cluster is divided like the energies of the particles.
    assert found["cluster_link"]["energy"][1] == pytest.approx(4.0 / (4.0 + 1.02931))


# What a file can lack


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
    values = {"PDG": 211, "energy": 11.2, "charge": 1.0, "mass": 0.14, "tracks_begin": 0, "tracks_end": 1}
    values |= {"momentum.x": 10 * np.cos(0.3), "momentum.y": 10 * np.sin(0.3), "momentum.z": 5.0}
    content.members["PandoraPFOs"] = {name: [[value] * 12, [], []] for name, value in values.items()}
    content.vectors["PandoraPFOs"] = {"tracks": content.vectors["PandoraPFOs"]["tracks"]}
    path = write_frame(tmp_path / "events.root", content)
    assert len(next(Edm4hepFile(path, CLD).events())["candidate"]) == 12
    with pytest.raises(
        InputFileError, match=r"0\.50 times the transverse momentum .* 4\.0 T; the profile 'clic' is of another"
    ):
        Edm4hepFile(path, load_profile("clic"))


def test_what_a_file_has_not_the_events_are_without(tmp_path: Path) -> None:
    content = Content()
    content.drop("SiTracksMCTruthLink", "CalohitMCTruthLink", "ClusterMCTruthLink")
    file = Edm4hepFile(write_frame(tmp_path / "events.root", content), CLD)
    block = next(file.events())
    assert not file.has_truth
    assert file.notes[0] == "events.root tells no truth to compare with: it has no 'SiTracksMCTruthLink'"
    assert set(block.collections) == {"track", "cluster", "hit", "particle", "candidate"}
    assert not {"label", "target"} & set(block["particle"].columns)
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
