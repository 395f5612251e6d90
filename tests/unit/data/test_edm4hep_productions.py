"""What others produce: Delphes, Pandora's particles, podio's reference files, CLD. In files of our own that look like theirs,
and in theirs where they are at hand, which makes a test a heavy one."""

from __future__ import annotations

from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import uproot

from fixtures.edm4hep_files import WRITERS, Content, DelphesContent, real_file, write_frame
from ringflow.data.edm4hep import Edm4hepFile, Profile, load_profile, open_edm4hep
from ringflow.data.edm4hep.podio import PodioFile, collection_id
from ringflow.event.block import EventBlock, concatenate
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, PHOTON

PFOS_ONLY = """
name = "mine"
description = "Pandora's particles alone"
detector = "ild"
field = 3.5
face_radius = 1800.0
face_z = 2400.0
event_header = "EventHeader"
candidates = "{candidates}"
"""
PODIO = (
    PFOS_ONLY.format(candidates="ReconstructedParticleCollection")
    + """
[tracks]
collection = "TrackCollection"
dedx_collection = "RecDqdxCollection"
mip_dedx = 1.0
[clusters]
collections = ["ClusterCollection"]
subdetectors = ["ecal", "hcal", "muon", "other", "other"]
[[hits]]
collection = "CalorimeterHitCollection"
subsystem = "ecal_barrel"
[truth]
particles = "MCParticleCollection"
track_links = "TrackMCParticleLinkCollection"
cluster_links = "ClusterMCParticleLinkCollection"
hit_links = "CaloHitMCParticleLinkCollection"
"""
)


def profile_of(text: str, folder: Path) -> Profile:
    (folder / "mine.toml").write_text(text)
    return load_profile(folder / "mine.toml")


def everything(file: Edm4hepFile) -> EventBlock:
    return concatenate(list(file.events(block_events=33)))


def delphes_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of theirs, or one of ours in a layout."""
    if isinstance(request.param, Path):
        return request.param
    path: Path = tmp_path_factory.mktemp("delphes") / f"{request.param}.root"
    return WRITERS[request.param](path, DelphesContent())


# The layout of the productions, and one that has covariances, which uproot cannot write into the other.
delphes = pytest.fixture(
    scope="module",
    params=["legacy", "rntuple", real_file("fcc_delphes_spring2021.root"), real_file("fcc_delphes_winter2023.root")],
)(delphes_file)
#: Those of 2023 tell where hits lie.
delphes_with_hits = pytest.fixture(scope="module", params=["legacy", real_file("fcc_delphes_winter2023.root")])(
    delphes_file
)


def test_tracks_of_delphes_are_their_particles_smeared(delphes: Path) -> None:
    file = open_edm4hep(delphes)
    assert file.profile.name == "fcc_delphes"
    block = everything(file)
    assert (file.layout, file.has_truth, len(block)) == (
        "rntuple" if delphes.stem == "rntuple" else "legacy",
        True,
        file.num_events,
    )
    tracks, particles = block["track"], block["particle"]
    assert np.all(tracks["particle"] >= 0)
    row = np.repeat(particles.offsets[:-1], tracks.counts) + tracks["particle"]
    ratio = tracks["pt"] / np.hypot(particles["px"], particles["py"])[row]
    assert np.median(ratio) == pytest.approx(1.0, abs=1e-3)
    assert np.percentile(np.abs(ratio - 1), 90) < 0.01
    assert np.all(tracks["charge"] == particles["charge"][row])
    px, py, pz = (particles[name][row] for name in ("px", "py", "pz"))
    eta = np.arcsinh(pz / np.hypot(px, py))
    assert np.percentile(np.abs(tracks["eta"] - eta), 90) < 0.01
    if delphes.stem != "legacy":
        pull = (1 / ratio - 1) / tracks["sigma_pt"]
        assert 0.8 < np.subtract(*np.percentile(pull, [84, 16])) / 2 < 1.2
    assert not {"chi2", "ndf", "time", "num_hits"} & set(tracks.columns)


def test_energies_of_delphes_add_up(delphes: Path) -> None:
    block = everything(open_edm4hep(delphes))

    def sums(name: str, mask: np.ndarray | None = None) -> np.ndarray:
        part = block[name]
        event = np.repeat(np.arange(len(block)), part.counts)
        energy = part["energy"].astype(np.float64) * (1 if mask is None else mask)
        return np.bincount(event, energy, minlength=len(block))

    np.testing.assert_allclose(sums("particle"), 240.0, rtol=5e-3)  # e+e- at 240 GeV
    np.testing.assert_allclose(sums("target"), sums("particle", block["particle"]["target"] >= 0), rtol=1e-5)
    assert np.median(sums("candidate") / sums("target")) == pytest.approx(1.0, abs=0.02)
    link, cluster = block["cluster_link"], block["cluster"]
    row = np.repeat(cluster.offsets[:-1], link.counts) + link["cluster"]
    linked = np.bincount(row, link["energy"], minlength=len(cluster))
    assert np.isclose(linked, cluster["energy"], rtol=1e-4).mean() > 0.999
    # Clusters come without a position and are put where their particle points.
    in_barrel = np.isclose(np.hypot(cluster["x"], cluster["y"]), 2250)
    assert np.all(in_barrel | np.isclose(np.abs(cluster["z"]), 2500))


def test_the_way_to_the_calorimeter_is_that_of_delphes(delphes_with_hits: Path) -> None:
    tracks = everything(open_edm4hep(delphes_with_hits))["track"]
    events = uproot.open(delphes_with_hits)["events"]
    position = [events[f"TrackerHits.position.{axis}"].array() for axis in "xyz"]
    last = events["EFlowTrack.trackerHits_end"].array() - 1  # the last point of each track lies on the face
    face = np.stack([ak.to_numpy(ak.flatten(part[last])) for part in position])
    mine = np.stack([tracks[f"calo_{axis}"] for axis in "xyz"])
    distance = np.linalg.norm(face - mine, axis=0)[(tracks["reaches_calo"] == 1) & (tracks["pt"] > 1)]
    assert np.median(distance) < 1.0
    assert np.percentile(distance, 99) < 10.0


def test_clusters_of_delphes_lie_where_its_hits_do(delphes_with_hits: Path) -> None:
    cluster = everything(open_edm4hep(delphes_with_hits))["cluster"]
    events = uproot.open(delphes_with_hits)["events"]
    hits = [events[f"CalorimeterHits.position.{axis}"].array() for axis in "xyz"]
    order = ak.concatenate(
        [events["EFlowPhoton#1.index"].array(), events["EFlowNeutralHadron#1.index"].array()], axis=1
    )
    x, y, z = (ak.to_numpy(ak.flatten(part[order])).astype(np.float64) for part in hits)
    off_axis = np.hypot(x, y) > 1.0  # one hit of the file lies on the beam axis
    assert off_axis.mean() > 0.999
    assert np.percentile(np.abs(np.sin(cluster["phi"] - np.arctan2(y, x)))[off_axis], 99) < 1e-3
    slope = z[off_axis] / np.hypot(x, y)[off_axis]
    assert np.percentile(np.abs(np.sinh(cluster["eta"][off_axis]) - slope), 99) < 0.01


#: What of each class is in an event of ours and in theirs, all events together.
PANDORA = [211, -211, 2112, 22, 22, 11, -13]
REAL_PANDORA = {CHARGED_HADRON: 167, NEUTRAL_HADRON: 32, PHOTON: 197, ELECTRON: 14, MUON: 26}


@pytest.mark.parametrize("path", [None, real_file("edm4hep_pandora_pfos.root")])
def test_particles_of_pandora(path: Path | None, tmp_path: Path) -> None:
    """A file of reconstructed particles and nothing else."""
    file = Edm4hepFile(
        path or pandora_file(tmp_path / "pfos.root"), profile_of(PFOS_ONLY.format(candidates="PandoraPFOs"), tmp_path)
    )
    block = everything(file)
    candidate = block["candidate"]
    assert file.layout == "frame"
    assert file.columns == {"candidate": ("label", "charge", "px", "py", "pz", "energy")}
    assert block.event_number.tolist() == list(range(1, 11))
    counts = {label: int(np.sum(candidate["label"] == label)) for label in np.unique(candidate["label"]).tolist()}
    ours = {CHARGED_HADRON: 20, NEUTRAL_HADRON: 10, PHOTON: 20, ELECTRON: 10, MUON: 10}
    assert counts == (REAL_PANDORA if path else ours)
    energy = np.add.reduceat(candidate["energy"], candidate.offsets[:-1])
    assert np.all((energy > 190) & (energy < 260))  # e+e- at 250 GeV
    assert np.all((candidate["charge"] != 0) == np.isin(candidate["label"], (CHARGED_HADRON, ELECTRON, MUON)))


def pandora_file(path: Path) -> Path:
    content = Content()
    content.drop(*content.members)
    charge = [float(np.sign(pdg)) * (abs(pdg) in (211, 11, 13)) for pdg in PANDORA]
    content.members["EventHeader"] = {"eventNumber": [[number] for number in range(1, 11)]}
    content.members["PandoraPFOs"] = {
        "PDG": [PANDORA] * 10,
        "charge": [charge] * 10,
        **{name: [[32.0] * 7] * 10 for name in ("energy", "momentum.x")},
        **{name: [[0.0] * 7] * 10 for name in ("momentum.y", "momentum.z", "mass")},
    }
    return write_frame(path, content)


@pytest.mark.parametrize("ttree", [real_file("edm4hep_schema_ttree.root")])
def test_podios_own_files_read_the_same_as_tree_and_as_rntuple(ttree: Path, tmp_path: Path) -> None:
    """What is special about them, our own files have too: see test_edm4hep.py."""
    profile = profile_of(PODIO, tmp_path)
    tree = Edm4hepFile(ttree, profile)
    ntuple = Edm4hepFile(ttree.with_name("edm4hep_schema_rntuple.root"), profile)
    assert (tree.layout, ntuple.layout) == ("frame", "rntuple")
    one, other = everything(tree), everything(ntuple)
    assert one.event_number.tolist() == [0, 1, 2]  # all three are number 42 in the file
    assert tree.columns == ntuple.columns
    for name, part in one.collections.items():
        for column, values in part.columns.items():
            np.testing.assert_array_equal(values, other[name][column], err_msg=f"{name} {column}")
    assert one["hit"]["energy"].tolist() == [43.0] * 3
    assert one["hit"]["cluster"].tolist() == [0] * 3
    assert one["cluster"]["num_hits"].tolist() == [1] * 3
    assert one["candidate"]["track"].tolist() == [0] * 3
    assert len(one["particle"]) == 0  # none of theirs is stable


@pytest.mark.parametrize(
    "path",
    [
        real_file("edm4hep_schema_ttree.root"),
        real_file("edm4hep_schema_rntuple.root"),
        real_file("edm4hep_pandora_pfos.root"),
    ],
)
def test_podio_numbers_collections_by_their_names(path: Path) -> None:
    file = PodioFile(path)
    assert file.ids
    assert file.ids == {collection: collection_id(collection) for collection in file.ids}
    assert set(file.collections) <= set(file.ids)


#: Collections that full simulation and reconstruction of CLD_o2_v07 write, as far as they matter here.
CLD_COLLECTIONS = """
CalohitMCTruthLink ClusterMCTruthLink ECALBarrel ECALEndcap ECalBarrelCollection ECalBarrelCollectionContributions
ECalEndcapCollection ECalEndcapCollectionContributions EventHeader HCALBarrel HCALEndcap HCALOther HCalBarrelCollection
HCalBarrelCollectionContributions HCalEndcapCollection HCalEndcapCollectionContributions HCalRingCollection
HCalRingCollectionContributions MCParticles MUON PandoraClusters PandoraPFOs RecoMCTruthLink RelationCaloHit RelationMuonHit
SiTracksMCTruthLink SiTracks_Refitted YokeBarrelCollection YokeBarrelCollectionContributions YokeEndcapCollection
YokeEndcapCollectionContributions
"""


@pytest.mark.parametrize("layout", [None, real_file("edm4hep_cld_layout.txt")])
def test_the_profile_names_what_a_full_cld_file_has(layout: Path | None) -> None:
    """By the list above, and by all branches of a file where their list is at hand."""
    lines = layout.read_text().splitlines() if layout else CLD_COLLECTIONS.split()
    branches = {line.split(" |")[0].rsplit("/", 1)[-1].split("[")[0] for line in lines if not line.startswith("#")}
    profile = load_profile("cld")
    truth = profile.truth
    assert truth is not None
    links = [truth.track_links, truth.cluster_links, truth.hit_links, truth.candidate_links]
    named = [*profile.required, *profile.optional, truth.particles, profile.event_header]
    named += [*links, *(truth.simulated_hit_links or ()), *(truth.simulated_hits or ()), *(truth.contributions or ())]
    assert [name for name in named if name not in branches] == []
    assert profile.clusters is not None
    assert len(profile.clusters.subdetectors or ()) == 6  # 360 energies for the 60 clusters of the first event
    if layout is None:
        return
    assert [link for link in links if f"_{link}_from.index" not in branches] == []
    members = ("_SiTracks_Refitted_trackStates.covMatrix.values", "_PandoraClusters_subdetectorEnergies")
    members += ("_PandoraClusters_hits.collectionID", "PandoraPFOs.PDG", "MCParticles.endpoint.x", "ECALBarrel.cellID")
    assert [member for member in members if member not in branches] == []
