"""Events in the JSON format of Phoenix, the event display of the HEP Software Foundation, written and read.

A file is `{"key": event, ...}`; an event has `event number`, `run number`, and by object type named collections:

    Tracks          `tracks` (measured) and one collection per reconstruction with the lines of its candidates
    CaloClusters    `clusters`
    Hits            one collection per subsystem
    Jets, MissingEnergy   one collection per reconstruction
    Vertices        `vertices`, where true particles were made

Lengths are mm, energies GeV. What Phoenix does not know is added as decoration: it shows such entries, and reading finds there
what it needs to make the same scene again. Of another experiment's file the tracks, clusters, hits and jets are shown. Every
collection of tracks is a reconstruction of its own, to be looked at side by side; the class of its candidates is not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError
from ringflow.base.output import finite_or_null
from ringflow.base.rundir import write_atomic
from ringflow.display.scene import SCENE_VERSION, TITLES, outline
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.event.schema import SUBSYSTEMS

#: The collections of what the detector measured, beside those of reconstructions.
MEASURED, CLUSTERS = "tracks", "clusters"
JET_RADIUS = 0.4
#: Where Phoenix draws clusters that do not say where they are, in mm.
_DEFAULT_RADIUS, _DEFAULT_Z = 1800.0, 3600.0
_POINT_TYPES = ("Point", "CircularPoint", "Box")
_COLOURS = ("#999999", "#0072B2", "#009E73", "#E69F00", "#CC79A7", "#D55E00", "#7C6A9C", "#B59E6A")
_SYSTEM_COLOURS = {"ecal": "#E69F00", "hcal": "#0072B2", "yoke": "#CC79A7"}
#: Columns of scenes by what Phoenix calls them; after these, what it does not know: decorations under their own names.
_SAME = ("eta", "phi", "charge", "d0", "z0", "chi2", "num_hits")
_TRACK = {"pt": "pT", "ndf": "dof", **{name: name for name in _SAME}}
_JET = {"pt": "pT", "eta": "eta", "phi": "phi", "energy": "energy"}
_CANDIDATE = {"pt": "pT", "eta": "eta", "phi": "phi", "charge": "charge"}
_CLUSTER = ("energy", "eta", "phi", "z")
#: Decorations, and what they are where a file has none.
_CANDIDATE_MORE = {"label": 0, "track": -1, "cluster": -1, "match": -1, **dict.fromkeys(("px", "py", "pz", "energy"))}
_CLUSTER_MORE = {"x": -1, "y": -1, "num_hits": 0, "subsystem": 0, "particle": -1}
_HIT_MORE = {"energy": 1.0, "cluster": -1, "particle": -1}
#: Parts of a scene that Phoenix has no place for.
_KEPT = ("event", "detector", "particles", "links", "graph", "calorimeter", "classes", "subsystems")

Record = dict[str, Any]
Columns = Mapping[str, Any]


def write_phoenix(path: Path, scenes: Iterable[Columns]) -> None:
    """Write events as one file."""
    write_atomic(path, json.dumps(phoenix_file(scenes), allow_nan=False))


def phoenix_file(scenes: Iterable[Columns]) -> Record:
    """Events by key."""
    return {f"event {scene['event']['index']}": phoenix_event(scene) for scene in scenes}


def phoenix_event(scene: Columns) -> Record:
    """One event."""
    made, particles = scene["reconstructions"], scene["particles"]
    vertices = sorted(set(zip(*(particles.get(name, []) for name in "xyz"), strict=True)))
    return {
        "event number": scene["event"]["number"],
        "run number": 0,
        # Text, because Phoenix takes every object at this level for a type of physics objects.
        "ringflow": json.dumps({name: scene[name] for name in _KEPT}, allow_nan=False),
        "Tracks": {MEASURED: _write_tracks(scene["tracks"]), **{one["name"]: _write_candidates(one) for one in made}},
        "CaloClusters": {CLUSTERS: _write_clusters(scene["clusters"])},
        "Hits": _write_hits(scene),
        "Jets": {
            one["name"]: [{"coneR": JET_RADIUS, **jet} for jet in _rows(one["jets"], _JET, "match")] for one in made
        },
        "MissingEnergy": {
            one["name"]: [{f"et{axis}": -round(sum(one["candidates"][f"p{axis}"]), 4) for axis in "xy"}] for one in made
        },
        "Vertices": {"vertices": [dict(zip("xyz", place, strict=True)) for place in vertices]},
    }


def _rows(columns: Columns, renamed: Mapping[str, str], *names: str) -> list[Record]:
    """Objects of those columns that are there, under other or their own names."""
    wanted = {**renamed, **{name: name for name in names}}
    there = {column: name for column, name in wanted.items() if columns.get(column)}
    values = zip(*(columns[column] for column in there), strict=True)
    return [dict(zip(there.values(), row, strict=True)) for row in values]


def _triplets(line: list[float]) -> list[list[float]]:
    """Points of a line, each as x, y, z."""
    return [line[place : place + 3] for place in range(0, len(line), 3)]


def _write_tracks(tracks: Columns) -> list[Record]:
    made = []
    for line, found in zip(tracks["lines"], _rows(tracks, _TRACK, "particle"), strict=True):
        track = {"d0": 0.0, "z0": 0.0, **found}
        momentum = track["pT"] * math.cosh(track["eta"])
        theta = 2.0 * math.atan(math.exp(-track["eta"]))
        parameters = [track["d0"], track["z0"], track["phi"], theta, track["charge"] / momentum]
        style = {"color": _COLOURS[0], "linewidth": 1}
        made.append({"pos": _triplets(line), "dparams": parameters, **track, "mom": momentum, **style})
    return made


def _write_candidates(reconstruction: Columns) -> list[Record]:
    columns, elements = reconstruction["candidates"], reconstruction["elements"]
    return [
        {
            "pos": _triplets(columns["line"][row]),
            **candidate,
            **{kind: elements[kind][row] for kind in ("tracks", "clusters")},
            "color": _COLOURS[candidate["label"]],
        }
        for row, candidate in enumerate(_rows(columns, _CANDIDATE, *_CANDIDATE_MORE))
    ]


def _write_clusters(clusters: Columns) -> list[Record]:
    return [
        {
            **one,
            "radius": round(math.hypot(one["x"], one["y"]), 3),
            "side": 40.0,
            "length": round(80.0 * math.sqrt(max(one["energy"], 0.0)), 1),
            "color": "#56B4E9",
        }
        for one in _rows(clusters, {}, *_CLUSTER, *_CLUSTER_MORE)
    ]


def _write_hits(scene: Columns) -> dict[str, list[Record]]:
    hits, owners = scene["hits"], {one["name"]: one["hits"] for one in scene["reconstructions"]}
    made: dict[str, list[Record]] = {}
    for row, hit in enumerate(_rows(hits, {}, *_HIT_MORE)):
        name = scene["subsystems"][hits["subsystem"][row]]
        made.setdefault(name, []).append(
            {
                "type": "Point",
                "pos": [hits[axis][row] for axis in "xyz"],
                **hit,
                "row": row,
                "candidates": {one: owner[row] for one, owner in owners.items() if owner},
                "color": _SYSTEM_COLOURS.get(name.split("_")[0], _COLOURS[0]),
            }
        )
    return made


class PhoenixSource:
    """Events of a file, to be shown: see `source.py`."""

    notes: tuple[str, ...] = ()
    explained: tuple[int, ...] = ()

    def __init__(self, path: Path, events: int | None = None) -> None:
        self.path = path
        self._events = list(read_phoenix(path).items())[:events]
        self.num_events = len(self._events)

    @property
    def about(self) -> Record:
        """What all scenes have in common, as the first has it."""
        first = self.scene(0)
        return {
            "source": self.path.name,
            "sample": first["event"]["sample"],
            "detector": first["detector"]["name"],
            "truth": False,
            "reconstructions": [{name: one[name] for name in ("name", "title")} for one in first["reconstructions"]],
        }

    def scene(self, index: int) -> Record:
        """The scene of an event."""
        return phoenix_scene(*self._events[index], index)

    def errors(self, index: int) -> dict[str, dict[str, float | None]]:
        """Nothing to compare with."""
        return {}


def read_phoenix(path: Path) -> dict[str, Columns]:
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
        parts = ("Tracks", "Hits", "CaloClusters")
        if not isinstance(event, dict) or not any(isinstance(event.get(kind), dict) for kind in parts):
            raise InputFileError(f"{path} is not an event file of Phoenix: {key!r} has no Tracks, Hits or CaloClusters")
    return content


def phoenix_scene(key: str, event: Columns, index: int) -> Record:
    """The scene of one event; what is no finite number is None there."""
    try:
        scene: Record = finite_or_null(_scene(key, event, index))
        return scene
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputFileError(f"event {key!r} is not as Phoenix has it ({type(error).__name__}: {reason})") from None


def _scene(key: str, event: Columns, index: int) -> Record:
    kept = json.loads(event["ringflow"]) if isinstance(event.get("ringflow"), str) else {}
    number = event.get("event number", event.get("eventNumber", index))
    about = {"number": number if isinstance(number, int) else index, "sample": key, "detector": ""}
    tracks, clusters, hits, jets = (_lists(event, name) for name in ("Tracks", "CaloClusters", "Hits", "Jets"))
    subsystems = [*kept.get("subsystems", SUBSYSTEMS)]
    hit_columns, owners = _read_hits(hits, subsystems)
    # A file of tracks alone shows them; one without any has nothing but its clusters and hits.
    shown = {name: found for name, found in tracks.items() if name != MEASURED} or tracks or {CLUSTERS: []}
    nobody = [-1] * len(hit_columns["x"])
    measured = tracks.get(MEASURED, [])
    there = {column: name for column, name in _TRACK.items() if not measured or any(name in one for one in measured)}
    deposits = [one for part in clusters.values() for one in part]
    # Older files keep less.
    otherwise = {"classes": list(PARTICLE_CLASSES), "particles": {}, "links": [], "graph": [], "calorimeter": "cluster"}
    return {
        "version": SCENE_VERSION,
        **{name: kept.get(name, value) for name, value in otherwise.items()},
        "event": {**about, **kept.get("event", {}), "index": index},
        "detector": kept.get("detector") or asdict(outline("")),
        "subsystems": subsystems,
        "tracks": {
            **{column: _given(measured, name, None) for column, name in there.items()},
            "particle": _given(measured, "particle"),
            "lines": [_line(one) for one in measured],
        },
        "clusters": {
            **{name: _given(deposits, name, default) for name, default in _CLUSTER_MORE.items()},
            **{name: [float(one[name]) for one in deposits] for name in ("energy", "eta", "phi")},
            **{name: [_place(one)[axis] for one in deposits] for axis, name in enumerate("xyz")},
        },
        "hits": hit_columns,
        "reconstructions": [
            _read_reconstruction(name, found, jets.get(name, []), owners.get(name, nobody))
            for name, found in shown.items()
        ],
    }


def _lists(event: Columns, kind: str) -> dict[str, list[Any]]:
    return {str(name): objects for name, objects in (event.get(kind) or {}).items() if isinstance(objects, list)}


def _given(objects: Sequence[Columns], name: str, default: Any = -1) -> list[Any]:
    return [one.get(name, default) for one in objects]


def _line(track: Columns) -> list[float]:
    """Points one after the other; Phoenix has them as triplets, older files as one list."""
    places = track.get("pos") or []
    flat = [float(value) for point in places for value in (point if isinstance(point, list) else [point])]
    return flat[: len(flat) // 3 * 3]


def _place(cluster: Columns) -> tuple[float, float, float]:
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


def _read_hits(collections: Mapping[str, list[Any]], subsystems: list[str]) -> tuple[Record, dict[str, list[int]]]:
    """Hits of all collections in the order they had, and the candidate of every reconstruction that has each."""
    rows: list[tuple[int, Record]] = []
    for name, objects in collections.items():
        if name not in subsystems:
            subsystems.append(name)
        found = (one if isinstance(one, dict) else {"pos": one} for one in objects)
        rows += [(subsystems.index(name), hit) for hit in found if hit.get("type", "Point") in _POINT_TYPES]
    if all("row" in hit for _, hit in rows):
        rows.sort(key=lambda row: int(row[1]["row"]))
    hits = [hit for _, hit in rows]
    made: Record = {name: [float(hit["pos"][axis]) for hit in hits] for axis, name in enumerate("xyz")}
    made["subsystem"] = [code for code, _ in rows]
    made |= {name: _given(hits, name, default) for name, default in _HIT_MORE.items()}
    names = {name for hit in hits for name in hit.get("candidates", {})}
    return made, {name: [int(hit.get("candidates", {}).get(name, -1)) for hit in hits] for name in names}


def _read_reconstruction(name: str, objects: list[Record], jets: list[Record], owner: list[int]) -> Record:
    candidates = [_read_candidate(one) for one in objects]
    names = (*_CANDIDATE, *_CANDIDATE_MORE, "line")
    columns: Record = {column: [one[column] for one in candidates] for column in names}
    jet_columns = {column: [float(jet.get(key, 0.0)) for jet in jets] for column, key in _JET.items()}
    energy = round(sum(columns["energy"]), 3)
    return {
        "name": name,
        "title": TITLES.get(name, name),
        "candidates": columns,
        "elements": {kind: [list(one.get(kind, [])) for one in objects] for kind in ("tracks", "clusters")},
        "hits": owner,
        "jets": {**jet_columns, "match": _given(jets, "match")},
        "errors": {"energy_sum": energy, "true_energy": None, "jet": None, "energy": None},
    }


def _read_candidate(track: Columns) -> Record:
    """Everything a candidate needs, from decorations or from the parameters and places of a track."""
    line, parameters = _line(track), track.get("dparams")
    if "eta" in track and "phi" in track:
        eta, phi = float(track["eta"]), float(track["phi"])
    elif parameters:
        eta, phi = -math.log(math.tan(0.5 * parameters[3])), float(parameters[2])
    else:
        dx, dy, dz = (line[3 + axis] - line[axis] for axis in range(3)) if len(line) >= 6 else (1.0, 0.0, 0.0)
        eta, phi = math.asinh(dz / max(math.hypot(dx, dy), 1e-9)), math.atan2(dy, dx)
    pt = 1.0  # where a track does not tell, so that it is drawn
    if "pT" in track:
        pt = float(track["pT"])
    elif "mom" in track:
        pt = float(track["mom"]) / math.cosh(eta)
    elif parameters and parameters[4]:
        pt = abs(1.0 / float(parameters[4])) / math.cosh(eta)
    momentum = (pt * math.cos(phi), pt * math.sin(phi), pt * math.sinh(eta), pt * math.cosh(eta))
    return {
        **_CANDIDATE_MORE,
        **dict(zip(("px", "py", "pz", "energy"), momentum, strict=True)),
        **{name: track[name] for name in _CANDIDATE_MORE if name in track},
        "charge": track.get("charge", int(math.copysign(1, parameters[4])) if parameters else 1),
        "pt": pt,
        "eta": eta,
        "phi": phi,
        "line": line,
    }
