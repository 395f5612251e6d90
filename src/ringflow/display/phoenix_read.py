"""Phoenix event files as scenes: those that ringflow wrote come back as they were, those of others as far as they go.

Of another experiment's file the tracks, clusters, hits and jets are shown. Every collection of tracks is a reconstruction of
its own, to be looked at side by side; the class of its candidates is not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError
from ringflow.display.outline import outline
from ringflow.display.phoenix import CANDIDATE_DECORATIONS, CLUSTER_DECORATIONS, CLUSTERS, HIT_DECORATIONS, MEASURED
from ringflow.display.reconstruction import TITLES
from ringflow.display.scene import SCENE_VERSION
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.event.schema import SUBSYSTEMS

#: Where Phoenix draws clusters that do not say where they are, in mm.
_DEFAULT_RADIUS, _DEFAULT_Z = 1800.0, 3600.0
_POINT_TYPES = ("Point", "CircularPoint", "Box")
Objects = list[dict[str, Any]]


def read_phoenix(path: Path) -> dict[str, Mapping[str, Any]]:
    """Events by key; checks that the file has the form of Phoenix."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise InputFileError(f"{path} is not readable JSON; give an event file of Phoenix") from None
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror}; give an event file of Phoenix") from None
    if not isinstance(content, dict) or not content:
        raise InputFileError(f"{path} is not an event file of Phoenix: it holds no events by name")
    for key, event in content.items():
        if not isinstance(event, dict) or not any(
            isinstance(event.get(kind), dict) for kind in ("Tracks", "Hits", "CaloClusters")
        ):
            raise InputFileError(f"{path} is not an event file of Phoenix: {key!r} has no Tracks, Hits or CaloClusters")
    return content


def phoenix_scene(key: str, event: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The scene of one event."""
    try:
        return _scene(key, event, index)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise InputFileError(f"event {key!r} is not as Phoenix has it ({type(error).__name__}: {reason})") from None


def _scene(key: str, event: Mapping[str, Any], index: int) -> dict[str, Any]:
    kept = json.loads(event["ringflow"]) if isinstance(event.get("ringflow"), str) else {}
    number = event.get("event number", event.get("eventNumber", index))
    about = {
        "number": number if isinstance(number, int) else index,
        "sample": key,
        "detector": "",
        **kept.get("event", {}),
    }
    collections = {name: _collections(event, name) for name in ("Tracks", "CaloClusters", "Hits", "Jets")}
    subsystems = [*kept.get("subsystems", SUBSYSTEMS)]
    hits, owners = _hits(collections["Hits"], subsystems)
    names = [name for name in collections["Tracks"] if name != MEASURED]
    measured = collections["Tracks"].get(MEASURED, [])
    return {
        "version": SCENE_VERSION,
        "event": {**about, "index": index},
        "detector": kept.get("detector", outline("").as_json()),
        "classes": kept.get("classes", list(PARTICLE_CLASSES)),
        "subsystems": subsystems,
        "tracks": _tracks(measured),
        "clusters": _clusters([one for part in collections["CaloClusters"].values() for one in part]),
        "hits": hits,
        "particles": kept.get("particles", {}),
        "reconstructions": [
            _reconstruction(
                name, collections["Tracks"][name], collections["Jets"].get(name, []), owners.get(name), hits
            )
            for name in names or [MEASURED]
            if name in collections["Tracks"] or name == MEASURED
        ]
        if collections["Tracks"]
        else [_reconstruction(CLUSTERS, [], [], None, hits)],
        "links": kept.get("links", []),
        "graph": kept.get("graph", []),
        "calorimeter": kept.get("calorimeter", "cluster"),
    }


def _collections(event: Mapping[str, Any], kind: str) -> dict[str, Objects]:
    part = event.get(kind) or {}
    return {str(name): objects for name, objects in part.items() if isinstance(objects, list)}


def _line(track: Mapping[str, Any]) -> list[float]:
    """Points one after the other; Phoenix has them as triplets, older files as one list."""
    places = track.get("pos") or []
    flat = [float(value) for point in places for value in (point if isinstance(point, list) else [point])]
    return flat[: len(flat) // 3 * 3]


def _tracks(objects: Objects) -> dict[str, Any]:
    columns = {
        "pt": "pT",
        "eta": "eta",
        "phi": "phi",
        "charge": "charge",
        "d0": "d0",
        "z0": "z0",
        "chi2": "chi2",
        "ndf": "dof",
    }
    made: dict[str, Any] = {
        column: [one.get(name) for one in objects]
        for column, name in {**columns, "num_hits": "num_hits"}.items()
        if not objects or any(name in one for one in objects)
    }
    return {**made, "particle": _given(objects, "particle"), "lines": [_line(one) for one in objects]}


def _given(objects: Sequence[Mapping[str, Any]], name: str, default: Any = -1) -> list[Any]:
    return [one.get(name, default) for one in objects]


def _clusters(objects: Objects) -> dict[str, Any]:
    made: dict[str, Any] = {name: [float(one[name]) for one in objects] for name in ("energy", "eta", "phi")}
    places = [_place(one) for one in objects]
    made |= {name: [place[axis] for place in places] for axis, name in enumerate("xyz")}
    for name in CLUSTER_DECORATIONS:
        if name not in made:
            made[name] = _given(objects, name, 0 if name in ("subsystem", "num_hits") else -1)
    return made


def _place(cluster: Mapping[str, Any]) -> tuple[float, float, float]:
    """Where a cluster is: as it says, or on the cylinder that Phoenix draws it on."""
    eta, phi = float(cluster["eta"]), float(cluster["phi"])
    if {"x", "y", "z"} <= set(cluster):
        return float(cluster["x"]), float(cluster["y"]), float(cluster["z"])
    radius = float(cluster.get("radius", _DEFAULT_RADIUS))
    z = float(cluster.get("z", radius * math.sinh(eta)))
    if "z" not in cluster and abs(z) > _DEFAULT_Z:
        z = math.copysign(_DEFAULT_Z, z)
        radius = abs(z / math.sinh(eta))
    return radius * math.cos(phi), radius * math.sin(phi), z


def _hits(
    collections: Mapping[str, Sequence[Any]], subsystems: list[str]
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Hits of all collections in the order they had, and the candidate of every reconstruction that has each."""
    rows: list[tuple[int, dict[str, Any]]] = []
    for name, objects in collections.items():
        if name not in subsystems:
            subsystems.append(name)
        for one in objects:
            hit = one if isinstance(one, dict) else {"pos": one}
            if hit.get("type", "Point") in _POINT_TYPES:
                rows.append((subsystems.index(name), hit))
    if all("row" in hit for _, hit in rows):
        rows.sort(key=lambda row: int(row[1]["row"]))
    found = [hit for _, hit in rows]
    made: dict[str, Any] = {name: [float(hit["pos"][axis]) for hit in found] for axis, name in enumerate("xyz")}
    made["subsystem"] = [code for code, _ in rows]
    made |= {name: _given(found, name, 1.0 if name == "energy" else -1) for name in HIT_DECORATIONS}
    names = {name for hit in found for name in hit.get("candidates", {})}
    return made, {name: [int(hit.get("candidates", {}).get(name, -1)) for hit in found] for name in names}


def _reconstruction(
    name: str, objects: Objects, jets: Objects, owner: list[int] | None, hits: Mapping[str, Any]
) -> dict[str, Any]:
    candidates = [_candidate(one) for one in objects]
    columns: dict[str, Any] = {column: [one[column] for one in candidates] for column in _COLUMNS}
    energy = round(sum(columns["energy"]), 3)
    return {
        "name": name,
        "title": TITLES.get(name, name),
        "candidates": columns,
        "elements": {kind: [list(one.get(kind, [])) for one in objects] for kind in ("tracks", "clusters")},
        "hits": owner if owner is not None else [-1] * len(hits["x"]),
        "jets": {
            **{column: [float(jet.get(key, 0.0)) for jet in jets] for column, key in _JET_COLUMNS.items()},
            "match": _given(jets, "match"),
        },
        "errors": {"energy_sum": energy, "true_energy": None, "jet": None, "energy": None},
    }


_COLUMNS = ("label", "charge", "px", "py", "pz", "energy", "pt", "eta", "phi", "track", "cluster", "match", "line")
_JET_COLUMNS = {"pt": "pT", "eta": "eta", "phi": "phi", "energy": "energy"}


def _candidate(track: Mapping[str, Any]) -> dict[str, Any]:
    """Everything a candidate needs, from decorations or from the parameters and places of a track."""
    line = _line(track)
    kept = {name: track[name] for name in CANDIDATE_DECORATIONS if name in track}
    eta, phi = _direction(track, line)
    pt = _transverse(track, eta)
    charge = track.get("charge", int(math.copysign(1, track["dparams"][4])) if track.get("dparams") else 1)
    made = {
        "px": pt * math.cos(phi),
        "py": pt * math.sin(phi),
        "pz": pt * math.sinh(eta),
        "energy": pt * math.cosh(eta),
    }
    return {
        "label": 0,
        "track": -1,
        "cluster": -1,
        "match": -1,
        **made,
        "charge": charge,
        "pt": pt,
        "eta": eta,
        "phi": phi,
        "line": line,
        **kept,
    }


def _direction(track: Mapping[str, Any], line: list[float]) -> tuple[float, float]:
    parameters = track.get("dparams")
    if "eta" in track and "phi" in track:
        return float(track["eta"]), float(track["phi"])
    if parameters:
        return -math.log(math.tan(0.5 * parameters[3])), float(parameters[2])
    dx, dy, dz = (line[3 + axis] - line[axis] for axis in range(3)) if len(line) >= 6 else (1.0, 0.0, 0.0)
    return math.asinh(dz / max(math.hypot(dx, dy), 1e-9)), math.atan2(dy, dx)


def _transverse(track: Mapping[str, Any], eta: float) -> float:
    """Transverse momentum; 1 where a track does not tell, so that it is drawn."""
    if "pT" in track:
        return float(track["pT"])
    if "mom" in track:
        return float(track["mom"]) / math.cosh(eta)
    if track.get("dparams") and track["dparams"][4]:
        return abs(1.0 / float(track["dparams"][4])) / math.cosh(eta)
    return 1.0
