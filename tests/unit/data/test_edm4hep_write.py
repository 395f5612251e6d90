"""Candidates as EDM4hep: uproot reads them, under EDM4hep's names, and they come back as they went."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import uproot

from fixtures.edm4hep_files import Content, write_rntuple
from ringflow.base.errors import FailureError
from ringflow.data.edm4hep import Edm4hepFile, load_profile
from ringflow.data.edm4hep.podio import collection_id
from ringflow.data.edm4hep.write import write_edm4hep
from ringflow.event.block import EventBlock, cast

PROFILE = """
name = "written"
description = "what this package writes"
detector = "cld"
field = 2.0
face_radius = 2150.0
face_z = 2307.0
event_header = "EventHeader"
candidates = "RingflowPFOs"
[tracks]
collection = "RingflowTracks"
[clusters]
collections = ["RingflowClusters"]
subdetectors = ["ecal", "hcal", "muon"]
"""


@pytest.fixture
def block(tmp_path: Path) -> EventBlock:
    return next(Edm4hepFile(write_rntuple(tmp_path / "in.root", Content()), load_profile("cld")).events())


def test_what_is_written_reads_back(block: EventBlock, tmp_path: Path) -> None:
    path = tmp_path / "out.root"
    assert write_edm4hep(path, [block.take(0, 1), block.take(1, 3)], field=2.0) == 3
    (tmp_path / "written.toml").write_text(PROFILE)
    file = Edm4hepFile(path, load_profile(tmp_path / "written.toml"))
    back = next(file.events())
    assert back.event_number.tolist() == block.event_number.tolist()
    compared = set()
    for name, part in back.collections.items():
        assert part.counts.tolist() == block[name].counts.tolist()
        for column, values in part.columns.items():
            np.testing.assert_allclose(values, block[name][column], rtol=1e-5, atol=1e-4, err_msg=f"{name} {column}")
            compared.add((name, column))
    must = {"track": ("pt", "eta", "charge", "d0", "z0", "chi2", "calo_x", "calo_dz", "time")}
    must |= {"cluster": ("energy", "x", "ecal_energy"), "candidate": ("label", "px", "energy", "track", "cluster")}
    assert {(name, column) for name, columns in must.items() for column in columns} <= compared


def test_names_and_relations_are_those_of_edm4hep(block: EventBlock, tmp_path: Path) -> None:
    write_edm4hep(tmp_path / "out.root", [block], field=2.0)
    events = uproot.open(tmp_path / "out.root")["events"]
    assert events["RingflowPFOs.PDG"].array().tolist() == [[211, 22, -211], [], [-13]]
    assert events["RingflowPFOs.tracks_begin"].array().tolist() == [[0, 1, 1], [], [0]]
    assert events["RingflowPFOs.tracks_end"].array().tolist() == [[1, 1, 2], [], [1]]
    assert events["_RingflowPFOs_tracks.index"].array().tolist() == [[0, 1], [], [0]]
    assert events["_RingflowPFOs_clusters.index"].array().tolist() == [[0, 1], [], []]
    assert set(np.unique(events["_RingflowPFOs_tracks.collectionID"].array()[0])) == {collection_id("RingflowTracks")}
    assert events["RingflowPFOs.mass"].array()[0][0] == pytest.approx((11.2**2 - 9.5**2 - 2.9**2 - 25) ** 0.5, rel=1e-3)
    assert events["_RingflowTracks_trackStates.location"].array().tolist() == [[1, 4, 1, 4], [], [1, 4]]
    assert events["RingflowTracks.trackStates_end"].array().tolist() == [[2, 4], [], [2]]
    assert events["EventHeader.eventNumber"].array().tolist() == [[7], [8], [12]]


def test_a_failure_leaves_nothing(block: EventBlock, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    with pytest.raises(FailureError, match="no events"):
        write_edm4hep(tmp_path / "out.root", [], field=4.0)
    with pytest.raises(ZeroDivisionError):
        write_edm4hep(tmp_path / "out.root", (block for n in (1, 0) if 1 / n), field=2.0)
    assert set(tmp_path.iterdir()) == before


def test_labels_become_pdg_numbers(tmp_path: Path) -> None:
    label, charge = np.array([1, 1, 2, 3, 4, 5, 6, 7]), np.array([1, -1, 0, 0, -1, 1, 0, 0])
    columns = {name: np.ones(8) for name in ("px", "py", "pz", "energy")}
    candidate = cast("candidate", np.array([8]), {**columns, "label": label, "charge": charge})
    write_edm4hep(tmp_path / "out.root", [EventBlock(np.array([3]), {"candidate": candidate})], field=4.0)
    (found,) = uproot.open(tmp_path / "out.root")["events"]["RingflowPFOs.PDG"].array().tolist()
    assert found == [211, -211, 2112, 22, 11, -13, 2112, 22]
