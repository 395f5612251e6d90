"""Write candidates as EDM4hep: reconstructed particles that refer to the tracks and clusters they were made of.

    write_edm4hep(Path("particles.root"), blocks, field=4.0)

The file is a TTree `events` with podio's frame names: members in `RingflowPFOs.energy`, relations in
`_RingflowPFOs_tracks.index` and `.collectionID`, states of tracks in `_RingflowTracks_trackStates`. uproot, RDataFrame and this
package read it. What uproot cannot write is not in it: covariances, and the class information podio's own reader wants. Where
the candidates came from is in a string beside the tree, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import uproot

from ringflow.base.errors import FailureError, InputFileError
from ringflow.base.rundir import atomic_path
from ringflow.data.edm4hep.convert import AT_CALORIMETER, AT_INTERACTION_POINT
from ringflow.data.edm4hep.podio import Array, collection_id
from ringflow.data.manifest import reason_of
from ringflow.event.block import Collection, EventBlock
from ringflow.event.particles import BENDING, CHARGED_HADRON, ELECTRON, FORWARD_ELECTROMAGNETIC, MUON, PHOTON

CANDIDATES, TRACKS, CLUSTERS = "RingflowPFOs", "RingflowTracks", "RingflowClusters"
#: Calorimeters in the order of the clusters' subdetectorEnergies.
SUBDETECTORS = ("ecal", "hcal", "muon")
_RECORD_KEY = "ringflow_candidates"
#: Members that are not single-precision numbers, beside those that count entries.
_TYPES = {
    **dict.fromkeys(("PDG", "type", "ndf", "Nholes", "location", "index"), np.int32),
    **dict.fromkeys(("runNumber", "collectionID"), np.uint32),
    "eventNumber": np.uint64,
    "timeStamp": np.uint64,
    "weight": np.float64,
}

Columns = dict[str, Array]
Branches = dict[str, Any]  # awkward arrays, as uproot takes them
#: What a relation or vector member holds: entries per object, and their members, or numbers alone.
Held = tuple[Array, Columns | Array]


def write_edm4hep(
    path: Path,
    blocks: Iterable[EventBlock],
    *,
    field: float,
    candidates: str = CANDIDATES,
    record: Mapping[str, Any] | None = None,
) -> int:
    """Write blocks that have a `candidate` collection, with their tracks and clusters if they have them; the number of events.

    `field` (tesla) turns transverse momenta into curvatures. `candidates` names the collection; `record` is what
    `data.candidates.candidate_record` says of their origin. The file appears whole or not at all.
    """
    events = 0
    with atomic_path(path) as temporary:
        with uproot.recreate(temporary) as file:
            for block in blocks:
                if not len(block):
                    continue
                branches = _branches(block, field, candidates)
                if not events:
                    kinds = {name: array.type.content for name, array in branches.items()}
                    tree = file.mktree("events", kinds, counter_name="n{}".format, field_name="{}.{}".format)
                tree.extend(branches)
                events += len(block)
            if record is not None:
                file[_RECORD_KEY] = json.dumps(dict(record), allow_nan=False)
        if not events:
            raise FailureError(f"there are no events to write into {path}")
    return events


def read_record(path: Path) -> dict[str, Any] | None:
    """What a file says of the origin of its candidates; None if it says nothing."""
    try:
        with uproot.open(path) as file:
            found = json.loads(str(file[_RECORD_KEY])) if _RECORD_KEY in file else None
    except (OSError, ValueError, KeyError) as error:
        raise InputFileError(f"{path} cannot be read as a ROOT file ({reason_of(error)}); make it again") from None
    return found if isinstance(found, dict) else None


def count_candidates(path: Path, candidates: str = CANDIDATES) -> int:
    """How many a file has that was written here."""
    with uproot.open(path) as file:
        return int(ak.sum(file[f"events/n{candidates}"].array()))


def _branches(block: EventBlock, field: float, candidates: str) -> Branches:
    zero = np.zeros(len(block))
    header = {"eventNumber": block.event_number, "runNumber": zero, "timeStamp": zero, "weight": zero + 1}
    branches = {"EventHeader": _lists(np.ones(len(block), np.int64), header)}
    branches |= _candidates(block["candidate"], candidates)
    if "track" in block:
        branches |= _tracks(block["track"], field)
    if "cluster" in block:
        branches |= _clusters(block["cluster"])
    return branches


def _candidates(part: Collection, name: str) -> Branches:
    px, py, pz, energy = (part[column].astype(np.float64) for column in ("px", "py", "pz", "energy"))
    members = {
        "PDG": _pdg(part),
        "energy": energy,
        "momentum.x": px,
        "momentum.y": py,
        "momentum.z": pz,
        **_zeros(part, "referencePoint.x", "referencePoint.y", "referencePoint.z"),
        "charge": part["charge"],
        "mass": np.sqrt(np.clip(energy**2 - px**2 - py**2 - pz**2, 0.0, None)),
        **_zeros(part, "goodnessOfPID"),
    }
    nothing = np.full(len(part), -1)
    held = {
        "clusters": _references(part.columns.get("cluster", nothing), CLUSTERS),
        "tracks": _references(part.columns.get("track", nothing), TRACKS),
        "particles": _references(nothing, name),
    }
    return _collection(name, part, members, held)


def _tracks(part: Collection, field: float) -> Branches:
    has_face = {"reaches_calo", "calo_x", "calo_dx"} <= set(part.columns)
    reaches = part["reaches_calo"] > 0 if has_face else np.zeros(len(part), bool)
    states = 1 + reaches.astype(np.int64)
    at_face = np.zeros(int(states.sum()), bool)
    at_face[np.cumsum(states)[reaches] - 1] = True
    of = np.repeat(np.arange(len(part)), states)
    face = of[at_face]
    omega = part["charge"] * BENDING * field / part["pt"].astype(np.float64)
    state = {
        "location": np.where(at_face, AT_CALORIMETER, AT_INTERACTION_POINT),
        "D0": np.where(at_face, 0.0, -_column(part, "d0")[of]),
        "phi": part["phi"][of].astype(np.float64),
        "omega": omega[of],
        "Z0": np.where(at_face, 0.0, _column(part, "z0")[of]),
        "tanLambda": np.sinh(part["eta"].astype(np.float64))[of],
        "time": np.where(at_face, _column(part, "time")[of], 0.0),
        **{f"referencePoint.{axis}": np.zeros(len(of)) for axis in "xyz"},
    }
    if len(face):
        dx, dy, dz = (part[f"calo_d{axis}"][face].astype(np.float64) for axis in "xyz")
        state["phi"][at_face], state["tanLambda"][at_face] = np.arctan2(dy, dx), dz / np.hypot(dx, dy)
        for axis in "xyz":
            state[f"referencePoint.{axis}"][at_face] = part[f"calo_{axis}"][face]
    members = {**_zeros(part, "type", "Nholes"), "chi2": _column(part, "chi2"), "ndf": _column(part, "ndf")}
    none = _references(np.full(len(part), -1), TRACKS)
    return _collection(TRACKS, part, members, {"trackStates": (states, state), "trackerHits": none, "tracks": none})


def _clusters(part: Collection) -> Branches:
    parts = [part[f"{name}_energy"] for name in SUBDETECTORS if f"{name}_energy" in part.columns]
    energies = np.stack(parts, axis=1) if len(parts) == len(SUBDETECTORS) else np.zeros((len(part), 0))
    members = {
        "energy": part["energy"],
        **{f"position.{axis}": part[axis] for axis in "xyz"},
        **_zeros(part, "type", "energyError", "iTheta", "iPhi", "shapeParameters_begin", "shapeParameters_end"),
    }
    none = _references(np.full(len(part), -1), CLUSTERS)
    length = np.full(len(part), energies.shape[1], np.int64)
    held = {"subdetectorEnergies": (length, energies.ravel()), "clusters": none, "hits": none}
    return _collection(CLUSTERS, part, members, held)


def _pdg(part: Collection) -> Array:
    """PDG number of a class: a charged pion for charged hadrons, a neutron for neutral ones, as Pandora has it."""
    label, side = part["label"], np.where(part["charge"] < 0, -1, 1)
    pdg = np.where((label == PHOTON) | (label == FORWARD_ELECTROMAGNETIC), 22, 2112)
    for which, number in ((CHARGED_HADRON, 211), (ELECTRON, -11), (MUON, -13)):
        pdg = np.where(label == which, number * side, pdg)
    return pdg


def _references(index: Array, collection: str) -> Held:
    """The one object that each refers to, -1 for none."""
    there = index >= 0
    number = np.full(np.count_nonzero(there), collection_id(collection))
    return there.astype(np.int64), {"index": index[there], "collectionID": number}


def _collection(name: str, part: Collection, members: Columns, held: Mapping[str, Held]) -> Branches:
    """Members, with where the entries of each object begin and end among those of its event, and the entries."""
    branches = {}
    for vector, (length, entries) in held.items():
        end = np.cumsum(length)
        before = np.concatenate([[0], end])[part.offsets]  # in earlier events
        end = end - np.repeat(before[:-1], part.counts)
        members |= {f"{vector}_begin": end - length, f"{vector}_end": end}
        branches[f"_{name}_{vector}"] = _lists(np.diff(before), entries)
    return {name: _lists(part.counts, members), **branches}


def _lists(counts: Array, columns: Columns | Array) -> Any:
    """Flat columns, or one, as lists per event and in the types of EDM4hep."""
    if not isinstance(columns, dict):
        return ak.unflatten(columns.astype(np.float32), counts)
    types = {name: np.uint32 if name.endswith(("_begin", "_end")) else _TYPES.get(name, np.float32) for name in columns}
    return ak.unflatten(ak.zip({name: columns[name].astype(types[name]) for name in columns}, depth_limit=1), counts)


def _column(part: Collection, name: str) -> Array:
    return part[name].astype(np.float64) if name in part.columns else np.zeros(len(part))


def _zeros(part: Collection, *names: str) -> Columns:
    return {name: np.zeros(len(part)) for name in names}
