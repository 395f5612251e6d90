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
Tables = dict[str, "Table"]


class Table:
    """One branch with its members: objects per event, and flat columns."""

    def __init__(self, counts: Array, columns: Columns | Array) -> None:
        self.counts, self.columns = counts, columns

    def awkward(self) -> Any:
        """As uproot takes it."""
        if isinstance(self.columns, Mapping):
            return ak.unflatten(ak.zip(self.columns, depth_limit=1), self.counts)
        return ak.unflatten(self.columns, self.counts)


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
                branches = {name: table.awkward() for name, table in _tables(block, field, candidates).items()}
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


def _tables(block: EventBlock, field: float, candidates: str) -> Tables:
    number = block.event_number
    nothing = np.zeros(len(number))
    header: Columns = {
        "eventNumber": number.astype(np.uint64),
        "runNumber": nothing.astype(np.uint32),
        "timeStamp": nothing.astype(np.uint64),
        "weight": np.ones(len(number)),
    }
    tables = {"EventHeader": Table(np.ones(len(number), np.int64), header)}
    tables |= _candidates(block["candidate"], candidates)
    if "track" in block:
        tables |= _tracks(block["track"], field)
    if "cluster" in block:
        tables |= _clusters(block["cluster"])
    return tables


def _candidates(part: Collection, name: str) -> Tables:
    px, py, pz, energy = (part[column].astype(np.float64) for column in ("px", "py", "pz", "energy"))
    columns: Columns = {"PDG": _pdg(part), "energy": _single(energy)}
    columns |= {f"momentum.{axis}": _single(value) for axis, value in zip("xyz", (px, py, pz), strict=True)}
    columns |= {f"referencePoint.{axis}": _single(np.zeros(len(part))) for axis in "xyz"}
    columns["charge"] = _single(part["charge"])
    columns["mass"] = _single(np.sqrt(np.clip(energy**2 - px**2 - py**2 - pz**2, 0.0, None)))
    columns["goodnessOfPID"] = _single(np.zeros(len(part)))
    tables = {name: Table(part.counts, columns)}
    for relation, column, target in (("clusters", "cluster", CLUSTERS), ("tracks", "track", TRACKS)):
        has = part[column] >= 0 if column in part.columns else np.zeros(len(part), bool)
        columns |= _range(relation, part, has.astype(np.int64))
        index = part[column][has] if column in part.columns else np.zeros(0)
        tables[f"_{name}_{relation}"] = _references(_per_event(part, has), index, target)
    columns |= _range("particles", part, np.zeros(len(part), np.int64))
    tables[f"_{name}_particles"] = _references(0 * part.counts, np.zeros(0), name)
    return tables


def _tracks(part: Collection, field: float) -> Tables:
    size = len(part)
    has_face = {"reaches_calo", "calo_x", "calo_dx"} <= set(part.columns)
    reaches = part["reaches_calo"] > 0 if has_face else np.zeros(size, bool)
    states = 1 + reaches.astype(np.int64)
    first = np.cumsum(states) - states
    at_face = np.zeros(int(states.sum()), bool)
    at_face[first[reaches] + 1] = True
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
    }
    values |= {f"referencePoint.{axis}": np.zeros(len(of)) for axis in "xyz"}
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
        **_range("trackerHits", part, np.zeros(size, np.int64)),
        **_range("tracks", part, np.zeros(size, np.int64)),
    }
    stored = {name: value if value.dtype == np.int32 else _single(value) for name, value in values.items()}
    return {
        TRACKS: Table(part.counts, columns),
        f"_{TRACKS}_trackStates": Table(_per_event(part, states), stored),
        f"_{TRACKS}_trackerHits": _references(0 * part.counts, np.zeros(0), TRACKS),
        f"_{TRACKS}_tracks": _references(0 * part.counts, np.zeros(0), TRACKS),
    }


def _clusters(part: Collection) -> Tables:
    size = len(part)
    has_parts = all(f"{name}_energy" in part.columns for name in SUBDETECTORS)
    length = np.full(size, len(SUBDETECTORS) if has_parts else 0, np.int64)
    energies = [part[f"{name}_energy"] for name in SUBDETECTORS] if has_parts else []
    columns: Columns = {
        "type": np.zeros(size, np.int32),
        "energy": _single(part["energy"]),
        "energyError": _single(np.zeros(size)),
        **{f"position.{axis}": _single(part[axis]) for axis in "xyz"},
        "iTheta": _single(np.zeros(size)),
        "iPhi": _single(np.zeros(size)),
        **_range("shapeParameters", part, np.zeros(size, np.int64)),
        **_range("subdetectorEnergies", part, length),
        **_range("clusters", part, np.zeros(size, np.int64)),
        **_range("hits", part, np.zeros(size, np.int64)),
    }
    flat = np.stack(energies, axis=1).ravel() if energies else np.zeros(0)
    return {
        CLUSTERS: Table(part.counts, columns),
        f"_{CLUSTERS}_subdetectorEnergies": Table(_per_event(part, length), _single(flat)),
        f"_{CLUSTERS}_clusters": _references(0 * part.counts, np.zeros(0), CLUSTERS),
        f"_{CLUSTERS}_hits": _references(0 * part.counts, np.zeros(0), CLUSTERS),
    }


def _pdg(part: Collection) -> Array:
    """PDG number of a class: a charged pion for charged hadrons, a neutron for neutral ones, as Pandora has it."""
    label, charge = part["label"].astype(np.int64), part["charge"].astype(np.int64)
    side = np.where(charge < 0, -1, 1)
    pdg = np.where((label == PHOTON) | (label == FORWARD_ELECTROMAGNETIC), 22, 2112)
    for which, number in ((CHARGED_HADRON, 211), (ELECTRON, -11), (MUON, -13)):
        pdg = np.where(label == which, number * side, pdg)
    return np.where(label == NEUTRAL_HADRON, 2112, pdg).astype(np.int32)


def _range(name: str, part: Collection, length: Array) -> Columns:
    """Where the entries of each object begin and end among those of its event."""
    end = np.cumsum(length)
    before = np.concatenate([[0], end])[part.offsets[:-1]]
    end = end - np.repeat(before, part.counts)
    return {f"{name}_begin": (end - length).astype(np.uint32), f"{name}_end": end.astype(np.uint32)}


def _references(counts: Array, index: Array, collection: str) -> Table:
    number = np.full(len(index), collection_id(collection), np.uint32)
    return Table(counts, {"index": index.astype(np.int32), "collectionID": number})


def _per_event(part: Collection, length: Array) -> Array:
    total = np.concatenate([[0], np.cumsum(length)])
    return np.diff(total[part.offsets])


def _column(part: Collection, name: str) -> Array:
    return part[name].astype(np.float64) if name in part.columns else np.zeros(len(part))


def _single(values: Array) -> Array:
    return values.astype(np.float32)
