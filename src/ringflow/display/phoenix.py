"""Events in the JSON format of Phoenix, the event display of the HEP Software Foundation.

A file is `{"key": event, ...}`; an event has `event number`, `run number`, and by object type named collections:

    Tracks          `tracks` (measured) and one collection per reconstruction with the lines of its candidates
    CaloClusters    `clusters`
    Hits            one collection per subsystem
    Jets, MissingEnergy   one collection per reconstruction
    Vertices        `vertices`, where true particles were made

Lengths are mm, energies GeV. What Phoenix does not know is added as decoration: it shows such entries, and `phoenix_read.py`
finds there what it needs to make the same scene again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ringflow.base.rundir import write_atomic

Scene = Mapping[str, Any]

#: The collection of what the detector measured, beside those of reconstructions.
MEASURED = "tracks"
CLUSTERS = "clusters"
JET_RADIUS = 0.4
_COLOURS = ("#999999", "#0072B2", "#009E73", "#E69F00", "#CC79A7", "#D55E00", "#7C6A9C", "#B59E6A")
_SYSTEM_COLOURS = {"ecal": "#E69F00", "hcal": "#0072B2", "yoke": "#CC79A7"}
#: Columns of scenes that are kept as decorations under their own names.
TRACK_DECORATIONS = ("particle",)
CLUSTER_DECORATIONS = ("x", "y", "num_hits", "subsystem", "particle")
CANDIDATE_DECORATIONS = ("label", "energy", "px", "py", "pz", "track", "cluster", "match")
HIT_DECORATIONS = ("energy", "cluster", "particle")


def write_phoenix(path: Path, scenes: Iterable[Scene]) -> None:
    """Write events as one file."""
    write_atomic(path, json.dumps(phoenix_file(scenes), allow_nan=False))


def phoenix_file(scenes: Iterable[Scene]) -> dict[str, Any]:
    """Events by key."""
    return {f"event {scene['event']['index']}": phoenix_event(scene) for scene in scenes}


def phoenix_event(scene: Scene) -> dict[str, Any]:
    """One event."""
    event, reconstructions = scene["event"], scene["reconstructions"]
    kept = {name: scene[name] for name in ("particles", "links", "graph", "calorimeter", "classes", "subsystems")}
    return {
        "event number": event["number"],
        "run number": 0,
        # Text, because Phoenix takes every object at this level for a type of physics objects.
        "ringflow": json.dumps({"event": event, "detector": scene["detector"], **kept}, allow_nan=False),
        "Tracks": {
            MEASURED: _tracks(scene["tracks"]),
            **{one["name"]: _candidates(one) for one in reconstructions},
        },
        "CaloClusters": {CLUSTERS: _clusters(scene["clusters"])},
        "Hits": _hits(scene),
        "Jets": {one["name"]: _jets(one["jets"]) for one in reconstructions},
        "MissingEnergy": {one["name"]: _missing(one["candidates"]) for one in reconstructions},
        "Vertices": {"vertices": _vertices(scene["particles"])},
    }


def triplets(line: list[float]) -> list[list[float]]:
    """Points of a line, each as x, y, z."""
    return [line[place : place + 3] for place in range(0, len(line), 3)]


def _decorated(columns: Mapping[str, Any], names: Iterable[str], row: int) -> dict[str, Any]:
    return {name: columns[name][row] for name in names if columns.get(name)}


def _tracks(tracks: Mapping[str, Any]) -> list[dict[str, Any]]:
    made = []
    for row, line in enumerate(tracks["lines"]):
        pt, eta, phi, charge = (tracks[name][row] for name in ("pt", "eta", "phi", "charge"))
        d0, z0 = (tracks[name][row] if name in tracks else 0.0 for name in ("d0", "z0"))
        momentum = pt * math.cosh(eta)
        theta = 2.0 * math.atan(math.exp(-eta))
        made.append(
            {
                "pos": triplets(line),
                "dparams": [d0, z0, phi, theta, charge / momentum],
                "pT": pt,
                "eta": eta,
                "phi": phi,
                "d0": d0,
                "z0": z0,
                "charge": charge,
                "mom": momentum,
                **{name: tracks[key][row] for key, name in (("chi2", "chi2"), ("ndf", "dof")) if key in tracks},
                **_decorated(tracks, (*TRACK_DECORATIONS, "num_hits"), row),
                "color": _COLOURS[0],
                "linewidth": 1,
            }
        )
    return made


def _candidates(reconstruction: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns, elements = reconstruction["candidates"], reconstruction["elements"]
    return [
        {
            "pos": triplets(line),
            "pT": columns["pt"][row],
            "eta": columns["eta"][row],
            "phi": columns["phi"][row],
            "charge": columns["charge"][row],
            **_decorated(columns, CANDIDATE_DECORATIONS, row),
            "tracks": elements["tracks"][row],
            "clusters": elements["clusters"][row],
            "color": _COLOURS[columns["label"][row]],
        }
        for row, line in enumerate(columns["line"])
    ]


def _clusters(clusters: Mapping[str, Any]) -> list[dict[str, Any]]:
    made = []
    for row, energy in enumerate(clusters["energy"]):
        x, y, z = (clusters[name][row] for name in ("x", "y", "z"))
        made.append(
            {
                "energy": energy,
                "eta": clusters["eta"][row],
                "phi": clusters["phi"][row],
                "radius": round(math.hypot(x, y), 3),
                "z": z,
                "side": 40.0,
                "length": round(80.0 * math.sqrt(max(energy, 0.0)), 1),
                **_decorated(clusters, CLUSTER_DECORATIONS, row),
                "color": "#56B4E9",
            }
        )
    return made


def _hits(scene: Scene) -> dict[str, list[dict[str, Any]]]:
    hits, owners = scene["hits"], {one["name"]: one["hits"] for one in scene["reconstructions"]}
    made: dict[str, list[dict[str, Any]]] = {}
    for row, code in enumerate(hits.get("subsystem", [])):
        name = scene["subsystems"][code]
        made.setdefault(name, []).append(
            {
                "type": "Point",
                "pos": [hits["x"][row], hits["y"][row], hits["z"][row]],
                **_decorated(hits, HIT_DECORATIONS, row),
                "row": row,
                "candidates": {one: owner[row] for one, owner in owners.items() if owner},
                "color": _SYSTEM_COLOURS.get(name.split("_")[0], _COLOURS[0]),
            }
        )
    return made


def _jets(jets: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"eta": eta, "phi": phi, "energy": energy, "coneR": JET_RADIUS, "pT": pt, "match": match}
        for pt, eta, phi, energy, match in zip(
            *(jets[name] for name in ("pt", "eta", "phi", "energy", "match")), strict=True
        )
    ]


def _missing(candidates: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"etx": -round(sum(candidates["px"]), 4), "ety": -round(sum(candidates["py"]), 4)}]


def _vertices(particles: Mapping[str, Any]) -> list[dict[str, Any]]:
    places = zip(*(particles.get(name, []) for name in ("x", "y", "z")), strict=True)
    return [{"x": x, "y": y, "z": z} for x, y, z in sorted(set(places))]
