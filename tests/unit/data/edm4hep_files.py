"""Small EDM4hep files of a CLD-like detector and of Delphes, written in each of podio's layouts, and where real ones are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot

from ringflow.data.edm4hep_layout import collection_id

Lists = list[list[Any]]
#: Collection -> member -> one list per event.
Members = dict[str, dict[str, Lists]]
#: Collection -> relation or vector member -> its members (or numbers alone) -> one list per event.
Vectors = dict[str, dict[str, dict[str, Lists] | Lists]]

BENDING = 0.299792458e-3  # pt [GeV] = BENDING * B [T] / omega [1/mm]
FIELD = 2.0


def real_file(name: str) -> Any:
    """A real file as one more case of a test, where it is at hand; a heavy one, as other machines do not have it."""
    folder = os.environ.get("RINGFLOW_SHARED_DATA")
    path = (Path(folder) if folder else Path(__file__).parents[4] / "shared" / "data") / name
    missing = pytest.mark.skipif(not path.is_file(), reason=f"{name} is not at hand; set RINGFLOW_SHARED_DATA")
    return pytest.param(path, marks=[pytest.mark.heavy, missing], id=name)


def references(collection: str | list[str], index: Lists) -> dict[str, Lists]:
    """Object identifiers into a collection, or into one collection per entry of the first event."""
    if isinstance(collection, str):
        numbers = [[collection_id(collection)] * len(event) for event in index]
    else:
        numbers = [[collection_id(name) for name in collection], *([] for _ in index[1:])]
    return {"index": index, "collectionID": numbers}


class Content:
    """Three events: a busy one, one of nothing, one of a track alone.

    The busy one has a pion (track 0, cluster 0), a photon whose conversion electron made half of cluster 1, a K0S that
    decayed to two pions (track 1; the other was lost), and a neutrino.
    """

    def __init__(self) -> None:
        self.members: Members = {}
        self.vectors: Vectors = {}
        self._particles()
        self._tracks()
        self._calorimeter()
        self._links()
        self._candidates()
        self.members["EventHeader"] = {"eventNumber": [[7], [8], [12]], "runNumber": [[1], [1], [1]]}

    def _particles(self) -> None:
        momentum = [(9.0, 3.0, 5.0), (0.0, 4.0, 0.0), (0.0, -3.0, 1.0), (1.0, 1.0, 1.0), (0.0, -2.0, 0.8)]
        momentum += [(0.0, -1.0, 0.2), (0.0, 2.0, 0.0)]
        last = [(1.0, 0.0, 0.0)]
        ends = [(2150.0, 0.0, 0.0)] * 2 + [(0.0, -300.0, 100.0)] + [(2150.0, 0.0, 0.0)] * 4
        self.members["MCParticles"] = {
            "PDG": [[211, 22, 310, 12, 211, -211, 11], [], [-13]],
            "generatorStatus": [[1, 1, 1, 1, 0, 0, 0], [], [1]],
            "simulatorStatus": [[0, 1 << 23, 0, 0, 1 << 30, 1 << 30, 1 << 30], [], [0]],
            "charge": [[1.0, 0.0, 0.0, 0.0, 1.0, -1.0, -1.0], [], [1.0]],
            "time": [[0.0] * 7, [], [0.0]],
            "mass": [[0.13957, 0.0, 0.49761, 0.0, 0.13957, 0.13957, 0.000511], [], [0.10566]],
            **_vector("vertex", [[(0.0, 0.0, 0.0)] * 4 + [(0.0, -300.0, 100.0)] * 2 + [(0.0, 500.0, 0.0)], [], last]),
            **_vector("endpoint", [ends, [], [(5000.0, 0.0, 0.0)]]),
            **_vector("momentum", [momentum, [], last]),
            "parents_begin": [[0, 0, 0, 0, 0, 1, 2], [], [0]],
            "parents_end": [[0, 0, 0, 0, 1, 2, 3], [], [0]],
        }
        self.vectors["MCParticles"] = {"parents": references("MCParticles", [[2, 2, 1], [], []])}

    def _tracks(self) -> None:
        omega = [BENDING * FIELD / 10.0, BENDING * FIELD / 2.0]
        covariance = [float(k + 1) * 1e-6 for k in range(21)]
        state = {
            "location": [[1, 4, 1], [], [1]],
            "D0": [[0.02, 0.0, -0.5], [], [0.0]],
            "phi": [[0.3, 0.2, -1.5], [], [0.0]],
            "omega": [[omega[0], omega[0], omega[1]], [], [-BENDING * FIELD / 1.0]],
            "Z0": [[0.1, 0.0, 3.0], [], [0.0]],
            "tanLambda": [[0.5, 0.5, 0.4], [], [0.0]],
            "time": [[0.0, 8.5, 0.0], [], [0.0]],
            **_vector("referencePoint", [[(0.0, 0.0, 0.0), (2100.0, 460.0, 1075.0), (0.0, 0.0, 0.0)], [], [(0, 0, 0)]]),
            "covMatrix.values": [[covariance] * 3, [], [covariance]],
        }
        self.members["SiTracks_Refitted"] = {
            "chi2": [[11.5, 9.0], [], [3.0]],
            "ndf": [[12, 10], [], [4]],
            "trackStates_begin": [[0, 2], [], [0]],
            "trackStates_end": [[2, 3], [], [1]],
            "trackerHits_begin": [[0, 3], [], [0]],
            "trackerHits_end": [[3, 5], [], [2]],
        }
        hits = references("Hits", [[0, 1, 2, 3, 4], [], [0, 1]])
        self.vectors["SiTracks_Refitted"] = {"trackStates": state, "trackerHits": hits}

    def _calorimeter(self) -> None:
        self._hits("ECALBarrel", [1.0, 3.0, 0.5, 0.5], [2160.0, 2165.0, 2170.0, 2175.0], [2, 3, 4, 5])
        self._hits("HCALBarrel", [2.0], [2420.0], [1])
        self._hits("MUON", [0.25], [3000.0], [0])
        self.members["MUON"]["position.z"] = [[5000.0], [], []]
        self.members["PandoraClusters"] = {
            "energy": [[6.9, 1.1], [], []],
            **_vector("position", [[(2200.0, 300.0, 0.0), (0.0, 2170.0, 0.0)], [], []]),
            "subdetectorEnergies_begin": [[0, 6], [], []],
            "subdetectorEnergies_end": [[6, 12], [], []],
            "hits_begin": [[0, 4], [], []],
            "hits_end": [[4, 6], [], []],
        }
        where = ["ECALBarrel", "ECALBarrel", "HCALBarrel", "MUON", "ECALBarrel", "ECALBarrel"]
        self.vectors["PandoraClusters"] = {
            "subdetectorEnergies": [[4.0, 2.0, 0.25, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [], []],
            "hits": references(where, [[0, 1, 0, 0, 2, 3], [], []]),
        }

    def _hits(self, name: str, energy: list[float], x: list[float], layer: list[int]) -> None:
        self.members[name] = {
            "cellID": [[(1 << 40) | (number << 19) | 0b10110 for number in layer], [], []],
            "energy": [energy, [], []],
            "time": [[7.0 + k for k in range(len(energy))], [], []],
            **_vector("position", [[(value, 10.0 * k, 5.0 * k) for k, value in enumerate(x)], [], []]),
        }

    def _links(self) -> None:
        self._link("SiTracksMCTruthLink", "SiTracks_Refitted", [[0, 1], [], [0]], [[0, 4], [], [0]], [[1, 1], [], [1]])
        # Hit 2 of the ECAL was made half by the photon and half by its electron, hit 3 by the electron alone.
        where = ["ECALBarrel"] * 5 + ["HCALBarrel", "MUON"]
        particle, weight = [[0, 0, 1, 6, 6, 0, 0], [], []], [[1.0, 3.0, 0.25, 0.25, 0.5, 2.0, 0.25], [], []]
        self._link("CalohitMCTruthLink", where, [[0, 1, 2, 2, 3, 0, 0], [], []], particle, weight)
        self._link(
            "ClusterMCTruthLink", "PandoraClusters", [[0, 1, 1], [], []], [[0, 1, 6], [], []], [[1, 0.5, 0.5], [], []]
        )

    def _link(self, name: str, where: str | list[str], index: Lists, particle: Lists, weight: Lists) -> None:
        self.members[name] = {"weight": weight}
        self.vectors[name] = {"from": references(where, index), "to": references("MCParticles", particle)}

    def reverse(self, name: str) -> None:
        """Turn a link round."""
        self.vectors[name] = {"from": self.vectors[name]["to"], "to": self.vectors[name]["from"]}

    def add_simulated_hits(self) -> None:
        """The way from hits to particles by simulated hits, for the ECAL."""
        self.members["ECalBarrelCollection"] = {
            "energy": [[0.01, 0.03, 0.01, 0.01], [], []],
            "contributions_begin": [[0, 1, 2, 4], [], []],
            "contributions_end": [[1, 2, 4, 5], [], []],
        }
        name = "ECalBarrelCollectionContributions"
        self.vectors["ECalBarrelCollection"] = {"contributions": references(name, [[0, 1, 2, 3, 4], [], []])}
        self.members[name] = {"energy": [[0.01, 0.03, 0.005, 0.005, 0.01], [], []]}
        self.vectors[name] = {"particle": references("MCParticles", [[0, 0, 1, 6, 6], [], []])}
        self.members["RelationCaloHit"] = {"weight": [[1.0] * 4, [], []]}
        self.vectors["RelationCaloHit"] = {
            "from": references("ECALBarrel", [[0, 1, 2, 3], [], []]),
            "to": references("ECalBarrelCollection", [[0, 1, 2, 3], [], []]),
        }

    def _candidates(self) -> None:
        momentum = [(9.5, 2.9, 5.0), (0.0, 1.0, 0.0), (0.1, -1.9, 0.8)]
        self.members["PandoraPFOs"] = {
            "PDG": [[211, 22, -211], [], [-13]],
            "energy": [[11.2, 1.0, 2.1], [], [1.1]],
            **_vector("momentum", [momentum, [], [(1.0, 0.0, 0.0)]]),
            "charge": [[1.0, 0.0, -1.0], [], [1.0]],
            "mass": [[0.14, 0.0, 0.14], [], [0.106]],
            "clusters_begin": [[0, 1, 2], [], [0]],
            "clusters_end": [[1, 2, 2], [], [0]],
            "tracks_begin": [[0, 1, 1], [], [0]],
            "tracks_end": [[1, 1, 2], [], [1]],
        }
        self.vectors["PandoraPFOs"] = {
            "clusters": references("PandoraClusters", [[0, 1], [], []]),
            "tracks": references("SiTracks_Refitted", [[0, 1], [], [0]]),
        }

    def number(self, ids: dict[str, int]) -> None:
        """Give collections other numbers than those that podio makes of their names."""
        new = {collection_id(name): number for name, number in ids.items()}
        for vectors in self.vectors.values():
            for columns in vectors.values():
                if isinstance(columns, dict) and "collectionID" in columns:
                    columns["collectionID"] = [[new[old] for old in event] for event in columns["collectionID"]]

    def drop(self, *names: str) -> None:
        """Leave collections out."""
        for name in names:
            del self.members[name]
            self.vectors.pop(name, None)


class DelphesContent(Content):
    """Events of k4SimDelphes: charged pions on tracks, photons and neutrons in clusters that have no position.

    Every event is a Z of 240 GeV whose products all fly from the origin; the reconstruction is their smeared momentum.
    """

    CHARGED, PHOTONS, NEUTRONS = 12, 8, 3
    RESOLUTION = 0.001

    def __init__(self, num_events: int = 30) -> None:
        self.members, self.vectors = {}, {}
        rng = np.random.default_rng(240)
        products = self.CHARGED + self.PHOTONS + self.NEUTRONS
        kinds = np.repeat([0, 1, 2], [self.CHARGED, self.PHOTONS, self.NEUTRONS])
        mass = np.array([0.13957, 0.0, 0.93957])[kinds]
        shape = (num_events, products)
        self.charge = np.where(kinds == 0, rng.choice([-1.0, 1.0], shape), 0.0)
        energy = 240.0 * rng.dirichlet(np.full(products, 5.0), num_events)
        self.phi, cosine = rng.uniform(-np.pi, np.pi, shape), rng.uniform(-0.95, 0.95, shape)
        self.tan_lambda = cosine / np.sqrt(1 - cosine**2)
        self.pt = np.sqrt(energy**2 - mass**2) * np.sqrt(1 - cosine**2)
        self.seen = rng.normal(1.0, self.RESOLUTION, shape)  # over what is there
        self._generated(np.select([kinds == 0, kinds == 1], [211, 22], 2112) * np.where(self.charge < 0, -1, 1), mass)
        self._eflow_tracks()
        self._eflow_clusters("EFlowPhoton", self.CHARGED, self.PHOTONS, energy * self.seen)
        self._eflow_clusters("EFlowNeutralHadron", self.CHARGED + self.PHOTONS, self.NEUTRONS, energy * self.seen)
        self._calorimeter_hits()
        self._reconstructed(mass)

    def _momentum(self, scale: Any = 1.0) -> dict[str, Lists]:
        parts = (np.cos(self.phi), np.sin(self.phi), self.tan_lambda)
        return {f"momentum.{axis}": (scale * self.pt * part).tolist() for axis, part in zip("xyz", parts, strict=True)}

    def _generated(self, pdg: Any, mass: Any) -> None:
        """The Z, and behind it what it decayed to."""
        num_events, products = pdg.shape
        nothing = [[0.0] * (products + 1)] * num_events
        self.members["Particle"] = {
            "PDG": [[23, *event] for event in pdg.tolist()],
            "generatorStatus": [[22] + [1] * products] * num_events,
            "simulatorStatus": [[0] * (products + 1)] * num_events,
            "charge": [[0.0, *event] for event in self.charge.tolist()],
            "time": nothing,
            "mass": [[240.0, *mass.tolist()]] * num_events,
            **{f"{place}.{axis}": nothing for place in ("vertex", "endpoint") for axis in "xyz"},
            **{axis: [[0.0, *event] for event in values] for axis, values in self._momentum().items()},
            "parents_begin": [[0, *range(products)]] * num_events,
            "parents_end": [list(range(products + 1))] * num_events,
        }
        self.vectors["Particle"] = {"parents": references("Particle", [[0] * products] * num_events)}

    def _eflow_tracks(self) -> None:
        num_events, n = len(self.pt), self.CHARGED
        omega = (self.charge * BENDING * FIELD / (self.pt * self.seen))[:, :n]
        zero = np.zeros_like(omega).tolist()
        covariance = np.zeros((num_events, n, 21))
        covariance[..., [0, 2, 9, 14]] = 1e-8
        covariance[..., 5] = (self.RESOLUTION * omega) ** 2
        states: dict[str, Lists] = {
            "location": np.ones((num_events, n), int).tolist(),
            "D0": zero,
            "phi": self.phi[:, :n].tolist(),
            "omega": omega.tolist(),
            "Z0": zero,
            "tanLambda": self.tan_lambda[:, :n].tolist(),
            **{f"referencePoint.{axis}": zero for axis in "xyz"},
            "covMatrix.values": [list(event) for event in covariance],
        }
        self.members["EFlowTrack"] = {
            "chi2": zero,
            "ndf": np.zeros((num_events, n), int).tolist(),
            "trackStates_begin": [list(range(n))] * num_events,
            "trackStates_end": [list(range(1, n + 1))] * num_events,
            "trackerHits_begin": [list(range(n))] * num_events,
            "trackerHits_end": [list(range(1, n + 1))] * num_events,
        }
        hits = references("TrackerHits", [list(range(n))] * num_events)
        self.vectors["EFlowTrack"] = {"trackStates": states, "trackerHits": hits}
        self.members["TrackerHits"] = self._faces()

    def _faces(self) -> dict[str, Lists]:
        """Where charged particles enter the calorimeter: walked in steps of a millimetre, not computed."""
        pt, charge, slope = (values[:, : self.CHARGED] for values in (self.pt, self.charge, self.tan_lambda))
        turn = -charge * BENDING * FIELD / pt  # per mm in the transverse plane
        phi = self.phi[:, : self.CHARGED].copy()
        place, inside = np.zeros((3, *pt.shape)), np.ones(pt.shape, bool)
        for _ in range(8000):
            step = np.stack([np.cos(phi + turn / 2), np.sin(phi + turn / 2), slope])
            place = np.where(inside, place + step, place)
            phi = phi + turn
            inside &= (np.hypot(place[0], place[1]) < 2250.0) & (np.abs(place[2]) < 2500.0)
        return {f"position.{axis}": values.tolist() for axis, values in zip("xyz", place, strict=True)}

    def _eflow_clusters(self, name: str, first: int, number: int, energy: Any) -> None:
        num_events, hits_before = len(energy), first - self.CHARGED
        zero = [[0.0] * number] * num_events
        ranges = {"begin": list(range(number)), "end": list(range(1, number + 1))}
        self.members[name] = {
            "energy": energy[:, first : first + number].tolist(),
            **{f"position.{axis}": zero for axis in "xyz"},
            **{f"clusters_{side}": [[0] * number] * num_events for side in ranges},
            **{f"hits_{side}": [entries] * num_events for side, entries in ranges.items()},
        }
        hits = [list(range(hits_before, hits_before + number))] * num_events
        self.vectors[name] = {
            "clusters": references(name, [[] for _ in hits]),
            "hits": references("CalorimeterHits", hits),
        }

    def _calorimeter_hits(self) -> None:
        phi, slope = self.phi[:, self.CHARGED :], self.tan_lambda[:, self.CHARGED :]
        radius = np.minimum(2250.0, 2500.0 / np.abs(slope))
        place = radius * np.stack([np.cos(phi), np.sin(phi), slope])
        self.members["CalorimeterHits"] = {
            f"position.{axis}": part.tolist() for axis, part in zip("xyz", place, strict=True)
        }

    def _reconstructed(self, mass: Any) -> None:
        num_events, products = self.pt.shape
        momentum = self._momentum(self.seen)
        square = sum(np.array(part) ** 2 for part in momentum.values())
        place = np.arange(products)
        self.members["ReconstructedParticles"] = {
            "type": [[0] * products] * num_events,
            "energy": np.sqrt(square + mass**2).tolist(),
            **momentum,
            "charge": self.charge.tolist(),
            "mass": [mass.tolist()] * num_events,
            "clusters_begin": [(place - self.CHARGED).clip(0).tolist()] * num_events,
            "clusters_end": [(place - self.CHARGED + 1).clip(0).tolist()] * num_events,
            "tracks_begin": [place.clip(0, self.CHARGED).tolist()] * num_events,
            "tracks_end": [(place + 1).clip(0, self.CHARGED).tolist()] * num_events,
        }
        names = ["EFlowPhoton"] * self.PHOTONS + ["EFlowNeutralHadron"] * self.NEUTRONS
        clusters = {
            "index": [[*range(self.PHOTONS), *range(self.NEUTRONS)]] * num_events,
            "collectionID": [[collection_id(name) for name in names]] * num_events,
        }
        tracks = references("EFlowTrack", [list(range(self.CHARGED))] * num_events)
        self.vectors["ReconstructedParticles"] = {"clusters": clusters, "tracks": tracks}
        self.members["MCRecoAssociations"] = {"weight": [[1.0] * products] * num_events}
        self.vectors["MCRecoAssociations"] = {
            "from": references("ReconstructedParticles", [list(range(products))] * num_events),
            "to": references("Particle", [list(range(1, products + 1))] * num_events),
        }


def _vector(name: str, values: list[list[tuple[float, float, float]]]) -> dict[str, Lists]:
    return {
        f"{name}.{axis}": [[float(value[place]) for value in event] for event in values]
        for place, axis in enumerate("xyz")
    }


def write_frame(path: Path, content: Content) -> Path:
    """A frame TTree; uproot cannot write fixed-size members in it."""
    branches: dict[str, Any] = {name: _records(columns) for name, columns in content.members.items()}
    for name, vectors in content.vectors.items():
        branches |= {f"_{name}_{vector}": _records(columns) for vector, columns in vectors.items()}
    return _write_tree(path, branches)


def write_legacy(path: Path, content: Content) -> Path:
    """The layout of before 2023, without a table of the collections' numbers."""
    branches: dict[str, Any] = {name: _records(columns) for name, columns in content.members.items()}
    for name, vectors in content.vectors.items():
        ranges = [key.removesuffix("_begin") for key in content.members[name] if key.endswith("_begin")]
        held = [vector for vector in ranges if not _is_relation(vectors[vector])]
        assert ranges[: len(held)] == held, "vector members come first"
        for vector, columns in vectors.items():
            if vector in ("from", "to"):
                branch = f"{name}#{('from', 'to').index(vector)}"
            else:
                related = ranges.index(vector) - len(held)
                branch = f"{name}_{held.index(vector)}" if vector in held else f"{name}#{related}"
            branches[branch] = _records(columns)
    return _write_tree(path, branches)


def write_rntuple(path: Path, content: Content) -> Path:
    """An RNTuple."""
    fields = {name: _nested(columns) for name, columns in content.members.items()}
    for name, vectors in content.vectors.items():
        fields |= {f"_{name}_{vector}": _nested(columns) for vector, columns in vectors.items()}
    with uproot.recreate(path) as file:
        file.mkrntuple("events", fields)
    return path


def add_table(path: Path, tree: str, names: str, numbers: str, ids: dict[str, int]) -> None:
    """The numbers of collections, where a version of podio keeps them."""
    outer, _, inner = names.partition(".")
    if inner:
        last = numbers.partition(".")[2]
        content = {outer: ak.Array([[{inner: name, last: number} for name, number in ids.items()]])}
    else:
        content = {names: ak.Array([list(ids)]), numbers: ak.Array([list(ids.values())])}
    with uproot.update(path) as file:
        file.mkrntuple(tree, content)


WRITERS: dict[str, Callable[[Path, Content], Path]] = {
    "frame": write_frame,
    "legacy": write_legacy,
    "rntuple": write_rntuple,
}


def _is_relation(columns: dict[str, Lists] | Lists) -> bool:
    return isinstance(columns, dict) and "collectionID" in columns


def _write_tree(path: Path, branches: dict[str, Any]) -> Path:
    with uproot.recreate(path) as file:
        kinds = {name: array.type.content for name, array in branches.items()}
        file.mktree("events", kinds, counter_name="n{}".format, field_name="{}.{}".format).extend(branches)
    return path


def _flat(name: str, values: Lists) -> Any:
    """Values of all events, with the types of EDM4hep."""
    flat = [value for event in values for value in event]
    if name.endswith("covMatrix.values"):
        return np.array(flat, np.float32).reshape(len(flat), 21)
    if name == "cellID":
        return np.array(flat, np.uint64)
    if name == "collectionID" or name.endswith(("_begin", "_end")):
        return np.array(flat, np.uint32)
    whole = name in (
        "index",
        "PDG",
        "location",
        "ndf",
        "generatorStatus",
        "simulatorStatus",
        "eventNumber",
        "runNumber",
    )
    return np.array(flat, np.int32 if whole else np.float32)


def _counts(values: Lists) -> Any:
    return np.array([len(event) for event in values], np.int64)


def _records(columns: dict[str, Lists] | Lists) -> Any:
    if not isinstance(columns, dict):
        return ak.unflatten(_flat("", columns), _counts(columns))
    kept = {name: values for name, values in columns.items() if name != "covMatrix.values"}
    counts = _counts(next(iter(kept.values())))
    return ak.unflatten(ak.zip({name: _flat(name, v) for name, v in kept.items()}, depth_limit=1), counts)


def _nested(columns: dict[str, Lists] | Lists) -> Any:
    if not isinstance(columns, dict):
        return ak.unflatten(_flat("", columns), _counts(columns))
    records: dict[str, Any] = {}
    for name, values in columns.items():
        outer, _, inner = name.partition(".")
        if inner:
            records.setdefault(outer, {})[inner] = _flat(name, values)
        else:
            records[outer] = _flat(name, values)
    counts = _counts(next(iter(columns.values())))
    parts = {k: ak.zip(v, depth_limit=1) if isinstance(v, dict) else v for k, v in records.items()}
    return ak.unflatten(ak.zip(parts, depth_limit=1), counts)
