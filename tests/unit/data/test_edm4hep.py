"""EDM4hep files the project writes itself, in every layout: values, units, indices and truth come out as they went in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fixtures.edm4hep_files import FIELD, WRITERS, Content, Lists, add_table, references, write_frame, write_rntuple
from ringflow.base.errors import InputFileError, SettingsError, UsageError
from ringflow.data.edm4hep import Edm4hepFile, load_profile, open_edm4hep, profile_names
from ringflow.data.edm4hep.convert import BENDING, TrackHelix
from ringflow.data.edm4hep.podio import PodioFile, collection_id
from ringflow.event.block import EventBlock, concatenate
from ringflow.event.particles import CHARGED_HADRON, MUON, PHOTON
from ringflow.event.schema import SUBSYSTEMS
from ringflow.sim.flight import Helix as SimulatedHelix

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
    # Without a state it follows its helix to the face, at a speed below that of light.
    assert np.hypot(track["calo_x"], track["calo_y"])[1:] == pytest.approx(2150.0)
    assert track["time"][2] > 2150.0 / 299.792458
    assert track["reaches_calo"].tolist() == [1, 1, 1]


def test_helices_agree_with_those_of_the_simulation() -> None:
    rng = np.random.default_rng(1)
    size = 400
    x, y, z = rng.normal(0, 20, size), rng.normal(0, 20, size), rng.normal(0, 100, size)
    pt, phi, tan_lambda = rng.uniform(0.2, 50, size), rng.uniform(-3, 3, size), rng.normal(0, 1, size)
    charge = rng.choice([-1.0, 1.0], size)
    values = (x, y, z, pt * np.cos(phi), pt * np.sin(phi), pt * tan_lambda, charge)
    simulated = SimulatedHelix.of(*map(torch.from_numpy, values), field=FIELD)
    nothing = np.zeros(size)
    helix = TrackHelix(nothing, phi, charge * BENDING * FIELD / pt, nothing, tan_lambda, (x, y, z)).at_beam()
    d0, z0, azimuth = (part.numpy() for part in simulated.perigee())
    np.testing.assert_allclose(-helix.d0, d0, atol=1e-5)
    np.testing.assert_allclose(helix.z0, z0, atol=1e-4)
    np.testing.assert_allclose(np.cos(helix.phi - azimuth), 1.0, atol=1e-9)

    path, reaches = helix.path_to_face(2150.0, 2307.0)
    perigee = SimulatedHelix.of(
        *map(torch.from_numpy, (*helix.point(nothing), *(pt * d for d in helix.direction(nothing)), charge)),
        field=FIELD,
    )
    perigee = SimulatedHelix(perigee.x, perigee.y, perigee.z, perigee.phi, simulated.tan_lambda, simulated.turn)
    face = torch.minimum(
        perigee.to_cylinder(2150.0), torch.minimum(perigee.to_plane(2307.0), perigee.to_plane(-2307.0))
    ).numpy()
    assert 0.5 < reaches.mean() < 1.0
    np.testing.assert_allclose(path[reaches], face[reaches], rtol=1e-6)
    for mine, theirs in zip(helix.point(path), perigee.position(torch.from_numpy(path)), strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), atol=1e-4)
    # A looper ends where it turns back.
    np.testing.assert_allclose(path[~reaches], np.pi * pt[~reaches] / (BENDING * FIELD), rtol=1e-9)


def test_hits(block: EventBlock) -> None:
    hit = block["hit"]
    assert hit["energy"].tolist() == [1.0, 3.0, 0.5, 0.5, 2.0, 0.25]
    assert hit["layer"].tolist() == [2, 3, 4, 5, 1, 0]
    assert [SUBSYSTEMS[code] for code in hit["subsystem"]] == ["ecal_barrel"] * 4 + ["hcal_barrel", "yoke_endcap"]
    assert hit["cluster"].tolist() == [0, 0, 1, 1, 0, 0]
    assert hit["time"].tolist() == [7.0, 8.0, 9.0, 10.0, 7.0, 7.0]


def test_clusters_are_what_their_hits_are(block: EventBlock) -> None:
    cluster = block["cluster"]
    assert cluster["energy"].tolist() == [6.25, 1.0]
    assert cluster["ecal_energy"].tolist() == [4.0, 1.0]
    assert cluster["hcal_energy"].tolist() == [2.0, 0.0]
    assert cluster["muon_energy"].tolist() == [0.25, 0.0]
    assert cluster["num_hits"].tolist() == [4, 2]
    assert cluster["start_layer"].tolist() == [2, 4]
    assert cluster["x"][1] == pytest.approx(2172.5)


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


def test_a_cluster_without_position_is_put_where_its_particle_points(tmp_path: Path) -> None:
    content = Content()
    content.drop("ECALBarrel", "HCALBarrel", "MUON", "CalohitMCTruthLink")
    content.members["PandoraClusters"] |= {f"position.{axis}": [[0.0, 0.0], [], []] for axis in "xyz"}
    cluster = read(write_frame(tmp_path / "events.root", content))["cluster"]
    np.testing.assert_allclose(np.hypot(cluster["x"], cluster["y"]), 2150.0, rtol=1e-6)
    assert cluster["phi"][1] == pytest.approx(np.pi / 2)
    assert cluster["z"][0] / cluster["x"][0] == pytest.approx(5.0 / 9.5)


def test_candidates(block: EventBlock) -> None:
    candidate = block["candidate"]
    assert candidate["label"].tolist() == [CHARGED_HADRON, PHOTON, CHARGED_HADRON, MUON]
    assert candidate["charge"].tolist() == [1, 0, -1, 1]
    assert candidate["track"].tolist() == [0, -1, 1, 0]
    assert candidate["cluster"].tolist() == [0, 1, -1, -1]
    np.testing.assert_allclose(candidate["energy"], [11.2, 1.0, 2.1, 1.1], rtol=1e-6)


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


def test_numbers_of_collections_are_those_of_podio() -> None:
    # From files written by podio itself.
    assert collection_id("EventHeader") == 3616779153
    assert collection_id("PandoraPFOs") == 4196981182
    assert collection_id("MCParticleCollection") == 4183352422


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
    found = read(path)
    for name, part in block.collections.items():
        for column in part.columns.keys() & found[name].columns.keys():
            np.testing.assert_array_equal(found[name][column], part[column], err_msg=f"{name} {column}")


class TestTheProfileThatFits:
    """Nobody has to name it where the file tells."""

    @pytest.mark.parametrize("writer", WRITERS)
    def test_tracks_tell_the_field_and_that_the_detector(
        self, writer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        content = Content()
        assert open_edm4hep(WRITERS[writer](tmp_path / "cld.root", content)).profile.name == "cld"
        assert "cld.root is read with the profile 'cld'" in capsys.readouterr().err
        states = content.vectors["SiTracks_Refitted"]["trackStates"]
        assert isinstance(states, dict)
        states["omega"] = [[2 * omega for omega in event] for event in states["omega"]]
        assert open_edm4hep(WRITERS[writer](tmp_path / "clic.root", content)).profile.name == "clic"
        assert open_edm4hep(tmp_path / "clic.root", "cld").profile.name == "cld"

    def test_where_nothing_tells_the_user_has_to(self, tmp_path: Path) -> None:
        content = Content()
        content.drop("PandoraPFOs")
        path = write_frame(tmp_path / "events.root", content)
        with pytest.raises(InputFileError, match=r"profiles cld and clic need.*say --profile cld or --profile clic"):
            open_edm4hep(path)

    def test_what_every_profile_lacks_is_listed(self, tmp_path: Path) -> None:
        content = Content()
        content.drop("PandoraClusters")
        path = write_frame(tmp_path / "events.root", content)
        lacks = r"cld lacks PandoraClusters; clic lacks PandoraClusters; fcc_delphes lacks EFlowTrack, EFlowPhoton, "
        with pytest.raises(InputFileError, match=f"no profile fits .*events.root: {lacks}.*--profile FILE.toml"):
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
