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
from ringflow.data.edm4hep.convert import AT_CALORIMETER, AT_INTERACTION_POINT, BENDING
from ringflow.data.edm4hep.podio import Array, collection_id
from ringflow.event.block import Collection, EventBlock
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, FORWARD_ELECTROMAGNETIC, MUON, NEUTRAL_HADRON, PHOTON

CANDIDATES, TRACKS, CLUSTERS = "RingflowPFOs", "RingflowTracks", "RingflowClusters"
#: Calorimeters in the order of the clusters' subdetectorEnergies.
SUBDETECTORS = ("ecal", "hcal", "muon")
_RECORD_KEY = "ringflow_candidates"

Columns = dict[str, Array]
Branches = dict[str, Any]  # awkward arrays, as uproot takes them


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
            tree = None
            for block in blocks:
                if not len(block):
                    continue
                branches = _branches(block, field, candidates)
                if tree is None:
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
        reason = " ".join(str(error).split())[:200]
        raise InputFileError(f"{path} cannot be read as a ROOT file ({reason}); make it again") from None
    return found if isinstance(found, dict) else None


def _branches(block: EventBlock, field: float, candidates: str) -> Branches:
    size = len(block)
    header: Columns = {
        "eventNumber": block.event_number.astype(np.uint64),
        "runNumber": np.zeros(size, np.uint32),
        "timeStamp": np.zeros(size, np.uint64),
        "weight": np.ones(size),
    }
    branches = {"EventHeader": _lists(np.ones(size, np.int64), header)}
    branches |= _candidates(block["candidate"], candidates)
    if "track" in block:
        branches |= _tracks(block["track"], field)
    if "cluster" in block:
        branches |= _clusters(block["cluster"])
    return branches


def _candidates(part: Collection, name: str) -> Branches:
    px, py, pz, energy = (part[column].astype(np.float64) for column in ("px", "py", "pz", "energy"))
    columns: Columns = {
        "PDG": _pdg(part),
        "energy": _single(energy),
        **{f"momentum.{axis}": _single(value) for axis, value in zip("xyz", (px, py, pz), strict=True)},
        **_zeros(part, *(f"referencePoint.{axis}" for axis in "xyz")),
        "charge": _single(part["charge"]),
        "mass": _single(np.sqrt(np.clip(energy**2 - px**2 - py**2 - pz**2, 0.0, None))),
        **_zeros(part, "goodnessOfPID"),
    }
    held = {}
    for relation, column, target in (("clusters", "cluster", CLUSTERS), ("tracks", "track", TRACKS)):
        index = part.columns.get(column, np.full(len(part), -1))
        columns |= _range(relation, part, (index >= 0).astype(np.int64))
        held[f"_{name}_{relation}"] = _references(_per_event(part, index >= 0), index[index >= 0], target)
    columns |= _range("particles", part)
    return {name: _lists(part.counts, columns), **held, f"_{name}_particles": _no_references(part, name)}


def _tracks(part: Collection, field: float) -> Branches:
    size = len(part)
    has_face = {"reaches_calo", "calo_x", "calo_dx"} <= set(part.columns)
    reaches = part["reaches_calo"] > 0 if has_face else np.zeros(size, bool)
    states = 1 + reaches.astype(np.int64)
    at_face = np.zeros(int(states.sum()), bool)
    at_face[np.cumsum(states)[reaches] - 1] = True
    of = np.repeat(np.arange(size), states)
    face = of[at_face]
    omega = part["charge"] * BENDING * field / part["pt"].astype(np.float64)
    values = {
        "location": np.where(at_face, AT_CALORIMETER, AT_INTERACTION_POINT).astype(np.int32),
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
        values["phi"][at_face], values["tanLambda"][at_face] = np.arctan2(dy, dx), dz / np.hypot(dx, dy)
        for axis in "xyz":
            values[f"referencePoint.{axis}"][at_face] = part[f"calo_{axis}"][face]
    columns: Columns = {
        "type": np.zeros(size, np.int32),
        "chi2": _single(_column(part, "chi2")),
        "ndf": _column(part, "ndf").astype(np.int32),
        "Nholes": np.zeros(size, np.int32),
        **_range("trackStates", part, states),
        **_range("trackerHits", part),
        **_range("tracks", part),
    }
    stored = {name: value if value.dtype == np.int32 else _single(value) for name, value in values.items()}
    return {
        TRACKS: _lists(part.counts, columns),
        f"_{TRACKS}_trackStates": _lists(_per_event(part, states), stored),
        f"_{TRACKS}_trackerHits": _no_references(part, TRACKS),
        f"_{TRACKS}_tracks": _no_references(part, TRACKS),
    }


def _clusters(part: Collection) -> Branches:
    parts = [part[f"{name}_energy"] for name in SUBDETECTORS if f"{name}_energy" in part.columns]
    energies = np.stack(parts, axis=1) if len(parts) == len(SUBDETECTORS) else np.zeros((len(part), 0))
    length = np.full(len(part), energies.shape[1], np.int64)
    columns: Columns = {
        "type": np.zeros(len(part), np.int32),
        "energy": _single(part["energy"]),
        **_zeros(part, "energyError"),
        **{f"position.{axis}": _single(part[axis]) for axis in "xyz"},
        **_zeros(part, "iTheta", "iPhi"),
        **_range("shapeParameters", part),
        **_range("subdetectorEnergies", part, length),
        **_range("clusters", part),
        **_range("hits", part),
    }
    return {
        CLUSTERS: _lists(part.counts, columns),
        f"_{CLUSTERS}_subdetectorEnergies": _lists(_per_event(part, length), _single(energies.ravel())),
        f"_{CLUSTERS}_clusters": _no_references(part, CLUSTERS),
        f"_{CLUSTERS}_hits": _no_references(part, CLUSTERS),
    }


def _pdg(part: Collection) -> Array:
    """PDG number of a class: a charged pion for charged hadrons, a neutron for neutral ones, as Pandora has it."""
    label, charge = part["label"].astype(np.int64), part["charge"].astype(np.int64)
    side = np.where(charge < 0, -1, 1)
    pdg = np.where((label == PHOTON) | (label == FORWARD_ELECTROMAGNETIC), 22, 2112)
    for which, number in ((CHARGED_HADRON, 211), (ELECTRON, -11), (MUON, -13)):
        pdg = np.where(label == which, number * side, pdg)
    return np.where(label == NEUTRAL_HADRON, 2112, pdg).astype(np.int32)


def _lists(counts: Array, columns: Columns | Array) -> Any:
    """Flat columns, or one, as lists per event."""
    return ak.unflatten(ak.zip(columns, depth_limit=1) if isinstance(columns, dict) else columns, counts)


def _range(name: str, part: Collection, length: Array | None = None) -> Columns:
    """Where the entries of each object begin and end among those of its event; it has none unless they are counted."""
    length = np.zeros(len(part), np.int64) if length is None else length
    end = np.cumsum(length)
    end = end - np.repeat(np.concatenate([[0], end])[part.offsets[:-1]], part.counts)
    return {f"{name}_begin": (end - length).astype(np.uint32), f"{name}_end": end.astype(np.uint32)}


def _references(counts: Array, index: Array, collection: str) -> Any:
    number = np.full(len(index), collection_id(collection), np.uint32)
    return _lists(counts, {"index": index.astype(np.int32), "collectionID": number})


def _no_references(part: Collection, collection: str) -> Any:
    return _references(0 * part.counts, np.zeros(0), collection)


def _per_event(part: Collection, length: Array) -> Array:
    return np.diff(np.concatenate([[0], np.cumsum(length)])[part.offsets])


def _column(part: Collection, name: str) -> Array:
    return part[name].astype(np.float64) if name in part.columns else np.zeros(len(part))


def _zeros(part: Collection, *names: str) -> Columns:
    return {name: np.zeros(len(part), np.float32) for name in names}


def _single(values: Array) -> Array:
    return values.astype(np.float32)
