"""One event as JSON for the page: what the detector saw, the truth, and what every reconstruction made of it.

A scene is a dict of columns (lists with one entry per object; -1 points nowhere):

    event            index (place in the input), number, sample, detector, source
    detector         field, face and parts of the outline, see `outline.py`
    classes, subsystems   names that labels and subsystem codes count in
    tracks           pt, eta, phi, charge, particle; lines: x, y, z, x, y, z, ... along each
    clusters         energy, x, y, z, eta, phi, num_hits, subsystem, particle (who left most in it)
    hits             energy, x, y, z, subsystem, cluster, particle; empty where the input has none
    particles        pdg, charge, label, energy, px, py, pz, x, y, z, target
    reconstructions  a list, see `reconstruction.py`
    links            lines from candidates to elements they depend on, with weights:
                     [{"reconstruction": "model", "candidate": i, "elements": [[index, weight], ...]}, ...]
                     An element index counts the tracks of the event first, then its clusters or hits. Weights are relative;
                     the largest of a candidate is drawn strongest, a negative one dashed.
    graph            edges that a network made between elements, by its layers, the strongest first:
                     [{"layer": i, "edges": [[listening element, element, weight], ...]}, ...]
    calorimeter      what elements count after the tracks: `cluster`, or `hit` for a network that takes hits
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.display.numbers import listed, places
from ringflow.display.outline import Outline
from ringflow.display.paths import helices, perigee
from ringflow.display.reconstruction import Made, describe
from ringflow.display.truth import EventTruth
from ringflow.event.block import Collection, EventBlock
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.event.schema import SUBSYSTEMS

SCENE_VERSION = 1

_TRACK = ("pt", "eta", "phi", "charge", "d0", "z0", "chi2", "ndf", "num_hits")
_CLUSTER = ("energy", "x", "y", "z", "eta", "phi", "num_hits", "ecal_energy", "hcal_energy", "muon_energy")
_HIT = ("energy", "x", "y", "z", "subsystem", "cluster")
_PARTICLE = ("pdg", "charge", "label", "energy", "px", "py", "pz", "x", "y", "z", "target")


def event_scene(
    block: EventBlock,
    index: int,
    reconstructions: Sequence[Made],
    outline: Outline,
    *,
    about: Mapping[str, Any] | None = None,
    links: Sequence[Mapping[str, Any]] = (),
    graph: Sequence[Mapping[str, Any]] = (),
    calorimeter: str = "cluster",
) -> dict[str, Any]:
    """The scene of event `index` of a block, with the candidates that reconstructions made of this one event.

    `about` is added to what is said of the event; `links`, `graph` and `calorimeter` are as described above.
    """
    event = block.take(index, index + 1)
    truth = EventTruth.of(event)
    return {
        "version": SCENE_VERSION,
        "event": {"index": index, "number": int(event.event_number[0]), **(about or {})},
        "detector": outline.as_json(),
        "classes": list(PARTICLE_CLASSES),
        "subsystems": list(SUBSYSTEMS),
        "tracks": {**_columns(event, "track", _TRACK), **_tracks(event, truth, outline)},
        "clusters": {**_columns(event, "cluster", _CLUSTER), **_clusters(event, truth)},
        "hits": {**_columns(event, "hit", _HIT), "particle": listed(truth.hit_particle)},
        "particles": _columns(event, "particle", _PARTICLE),
        "reconstructions": [describe(made, event, truth, outline) for made in reconstructions],
        "links": [dict(link) for link in links],
        "graph": [dict(layer) for layer in graph],
        "calorimeter": calorimeter,
    }


def _columns(event: EventBlock, collection: str, wanted: Sequence[str]) -> dict[str, Any]:
    part = event.collections.get(collection)
    if part is None:
        return {name: [] for name in wanted}
    return {name: listed(part[name]) for name in wanted if name in part.columns}


def _tracks(event: EventBlock, truth: EventTruth, outline: Outline) -> dict[str, Any]:
    if "track" not in event:
        return {"particle": [], "lines": []}
    tracks = event["track"]
    start, momentum = track_starts(tracks), track_momenta(tracks)
    lines = helices(start, momentum, tracks["charge"].astype(np.float64), outline)
    return {"particle": listed(truth.track_particle), "lines": [places(line) for line in lines]}


def _clusters(event: EventBlock, truth: EventTruth) -> dict[str, Any]:
    if "cluster" not in event:
        return {"subsystem": [], "particle": []}
    part = event["cluster"]
    made = {"subsystem": listed(_main_subsystem(part)), "particle": listed(truth.cluster_particle)}
    if not {"eta", "phi"} <= set(part.columns):  # outside data may leave out what follows from the position
        x, y, z = (part[axis].astype(np.float64) for axis in "xyz")
        made |= {"eta": listed(np.arcsinh(z / np.hypot(x, y).clip(1e-9))), "phi": listed(np.arctan2(y, x))}
    return made


def _main_subsystem(clusters: Collection) -> npt.NDArray[np.int64]:
    """Where a cluster left most: index into SUBSYSTEMS, the endcap if it lies steeper than the corner of a barrel."""
    parts = [clusters.columns.get(name) for name in ("ecal_energy", "hcal_energy", "muon_energy")]
    zero = np.zeros(len(clusters))
    depth = np.argmax(np.stack([zero if part is None else part for part in parts]), axis=0)
    forward = np.abs(clusters["z"]) > 1.5 * np.hypot(clusters["x"], clusters["y"])
    return np.asarray(2 * depth + forward, dtype=np.int64)


def track_starts(tracks: Collection) -> npt.NDArray[np.float64]:
    """Points of closest approach of tracks to the beam axis; the origin where impact parameters are not known."""
    zero = np.zeros(len(tracks))
    d0, z0 = (tracks.columns.get(name, zero).astype(np.float64) for name in ("d0", "z0"))
    return perigee(d0, z0, tracks["phi"].astype(np.float64))


def track_momenta(tracks: Collection) -> npt.NDArray[np.float64]:
    """Rows of px, py, pz."""
    pt, eta, phi = (tracks[name].astype(np.float64) for name in ("pt", "eta", "phi"))
    return np.stack([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)], axis=1)
