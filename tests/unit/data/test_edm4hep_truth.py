"""Truth of EDM4hep files: who counts as a particle, and whose the tracks, hits and clusters are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fixtures.edm4hep_files import Content, references, write_frame
from ringflow.data.edm4hep import Edm4hepFile, load_profile
from ringflow.event.block import EventBlock
from ringflow.event.particles import CHARGED_HADRON, MUON, NONE, PHOTON

CLD = load_profile("cld")


def read(path: Path) -> EventBlock:
    return next(Edm4hepFile(path, CLD).events())


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> EventBlock:
    return read(write_frame(tmp_path_factory.mktemp("edm4hep") / "events.root", Content()))


def test_particles_are_the_stable_ones_and_the_products_of_decays(block: EventBlock) -> None:
    particle = block["particle"]
    assert particle.counts.tolist() == [5, 0, 1]
    assert particle["pdg"].tolist() == [211, 22, 12, 211, -211, -13]
    assert particle["label"].tolist() == [CHARGED_HADRON, PHOTON, NONE, CHARGED_HADRON, NONE, MUON]
    assert particle["energy"][0] == pytest.approx((81 + 9 + 25 + 0.13957**2) ** 0.5)
    assert particle["interaction"].tolist() == [0, 1, 0, 0, 0, 0]


def test_a_decay_inside_the_calorimeter_is_not_a_decay(tmp_path: Path) -> None:
    content = Content()
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
