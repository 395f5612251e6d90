"""One event as JSON for the page: what the detector saw, the truth, and what every reconstruction made of it.

A scene is a dict of columns (lists with one entry per object; -1 points nowhere):

    event            index (place in the input), number, sample, detector, source
    detector         field, face and parts of the outline, see `outline`
    classes, subsystems   names that labels and subsystem codes count in
    tracks           pt, eta, phi, charge, particle; lines: x, y, z, x, y, z, ... along each
    clusters         energy, x, y, z, eta, phi, num_hits, subsystem, particle (who left most in it)
    hits             energy, x, y, z, subsystem, cluster, particle; empty where the input has none
    particles        pdg, charge, label, energy, px, py, pz, x, y, z, target
    reconstructions  a list, each with
        name, title    e.g. `baseline`, `Rules`
        candidates     label, charge, px, py, pz, energy, pt, eta, phi, track, cluster, match, line;
                       match is the target (a candidate of the reconstruction `target`) that it is paired with
        elements       tracks and clusters: per candidate the elements it is made of, as far as the reconstruction tells
        hits           per hit the candidate that has it
        jets           pt, eta, phi, energy, match (place in the jets of the truth, or -1)
        errors         energy_sum, and where there is truth true_energy, jet, energy, see `errors_of`
    links            lines from candidates to elements they depend on, with weights:
                     [{"reconstruction": "model", "candidate": i, "elements": [[index, weight], ...]}, ...]
                     An element index counts the tracks of the event first, then its clusters or hits. Weights are relative;
                     the largest of a candidate is drawn strongest, a negative one dashed.
    graph            edges that a network made between elements, by its layers, the strongest first:
                     [{"layer": i, "edges": [[listening element, element, weight], ...]}, ...]
    calorimeter      what elements count after the tracks: `cluster`, or `hit` for a network that takes hits
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError

from ringflow.base.errors import UsageError
from ringflow.elements.helix import Helix
from ringflow.evaluate.jets import find_jets
from ringflow.evaluate.matching import match_jets, match_particles
from ringflow.evaluate.momenta import Momenta, checked, momenta, visible
from ringflow.event.block import Collection, EventBlock
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.event.schema import SUBSYSTEMS
from ringflow.sim.geometry import CalorimeterGeometry, DetectorGeometry, load_detector

SCENE_VERSION = 1
TRUTH = "target"
#: What is shown of events that nothing can be reconstructed of: tracks, clusters and hits alone.
MEASURED = "measured"
TITLES = {
    TRUTH: "Truth",
    "perfect": "Perfect PF",
    "baseline": "Rules",
    "model": "Model",
    "candidate": "In the file",
    MEASURED: "Measured",
}
#: What events can be ordered by; GeV.
MEASURES = ("jet", "energy")
_TRACK = ("pt", "eta", "phi", "charge", "d0", "z0", "chi2", "ndf", "num_hits")
_CLUSTER = ("energy", "x", "y", "z", "eta", "phi", "num_hits", "ecal_energy", "hcal_energy", "muon_energy")
_HIT = ("energy", "x", "y", "z", "subsystem", "cluster")
_PARTICLE = ("pdg", "charge", "label", "energy", "px", "py", "pz", "x", "y", "z", "target")
#: What a screen can show of a number; more would only make the page slow to load.
_SIGNIFICANT = 5

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Record = dict[str, Any]


def event_scene(
    event: EventBlock,
    reconstructions: Mapping[str, Collection],
    outline: Outline,
    *,
    about: Mapping[str, Any] | None = None,
    links: Sequence[Record] = (),
    graph: Sequence[Record] = (),
    calorimeter: str = "cluster",
) -> Record:
    """The scene of one event, with the candidates of reconstructions by name.

    `about` is added to what is said of the event; `links`, `graph` and `calorimeter` are as described above.
    """
    event = _complete(event)
    truth = EventTruth.of(event)
    return {
        "version": SCENE_VERSION,
        "event": {"index": 0, "number": int(event.event_number[0]), **(about or {})},
        "detector": asdict(outline),
        "classes": list(PARTICLE_CLASSES),
        "subsystems": list(SUBSYSTEMS),
        "tracks": {**_columns(event["track"], _TRACK), **_tracks(event["track"], truth, outline)},
        "clusters": {**_columns(event["cluster"], _CLUSTER), **_clusters(event["cluster"], truth)},
        "hits": {**_columns(event["hit"], _HIT), "particle": listed(truth.hit_particle)},
        "particles": _columns(event["particle"], _PARTICLE),
        "reconstructions": [_described(name, made, event, truth, outline) for name, made in reconstructions.items()],
        "links": list(links),
        "graph": list(graph),
        "calorimeter": calorimeter,
    }


def listed(values: npt.NDArray[Any]) -> list[Any]:
    """A column: whole numbers as they are, others rounded to five significant digits; None where not finite."""
    if values.dtype.kind in "iub":
        return values.astype(np.int64).tolist()  # type: ignore[no-any-return]
    numbers = values.astype(np.float64)
    finite = np.isfinite(numbers)
    numbers = np.where(finite, numbers, 0.0)
    size = np.floor(np.log10(np.maximum(np.abs(numbers), 1e-30)))
    scale = 10.0 ** np.clip(_SIGNIFICANT - 1 - size, -15, 15)
    rounded: list[Any] = (np.round(numbers * scale) / scale).tolist()
    return rounded if finite.all() else [value if ok else None for value, ok in zip(rounded, finite, strict=True)]


def _places(lines: Sequence[Floats]) -> list[list[float]]:
    """Points of lines in space as x, y, z, x, y, z, ... to a tenth of a millimetre; none of a line that is nowhere."""
    return [np.round(points.reshape(-1), 1).tolist() if np.isfinite(points).all() else [] for points in lines]


def _in_gev(value: float) -> float | None:
    return round(float(value), 3) if np.isfinite(value) else None


def _complete(event: EventBlock) -> EventBlock:
    """The same with empty collections for those that the input lacks."""
    zero = np.zeros(1, np.int64)
    wanted = {"track": _TRACK, "cluster": _CLUSTER, "hit": _HIT, "particle": _PARTICLE}
    empty = {kind: Collection(zero, {name: np.zeros(0) for name in names}) for kind, names in wanted.items()}
    return EventBlock(event.event_number, {**empty, **event.collections})


def _columns(part: Collection, wanted: Sequence[str]) -> Record:
    return {name: listed(part[name]) for name in wanted if name in part.columns}


def _tracks(tracks: Collection, truth: EventTruth, outline: Outline) -> Record:
    zero = np.zeros(len(tracks))
    d0, z0 = (tracks.columns.get(name, zero).astype(np.float64) for name in ("d0", "z0"))
    pt, eta, phi, charge = (tracks[name].astype(np.float64) for name in ("pt", "eta", "phi", "charge"))
    momentum = np.stack([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)], axis=1)
    lines = helices(perigee(d0, z0, phi), momentum, charge, outline)
    return {"particle": listed(truth.track_particle), "lines": _places(lines)}


def _clusters(part: Collection, truth: EventTruth) -> Record:
    made = {"subsystem": listed(_main_subsystem(part)), "particle": listed(truth.cluster_particle)}
    if not {"eta", "phi"} <= set(part.columns):  # outside data may leave out what follows from the position
        x, y, z = (part[axis].astype(np.float64) for axis in "xyz")
        made |= {"eta": listed(np.arcsinh(z / np.hypot(x, y).clip(1e-9))), "phi": listed(np.arctan2(y, x))}
    return made


def _main_subsystem(clusters: Collection) -> Integers:
    """Where a cluster left most: index into SUBSYSTEMS, the endcap if it lies steeper than the corner of a barrel."""
    zero = np.zeros(len(clusters))
    parts = [clusters.columns.get(name, zero) for name in ("ecal_energy", "hcal_energy", "muon_energy")]
    depth = np.argmax(np.stack(parts), axis=0)
    forward = np.abs(clusters["z"]) > 1.5 * np.hypot(clusters["x"], clusters["y"])
    return np.asarray(2 * depth + forward, dtype=np.int64)


# The truth


@dataclass(frozen=True)
class EventTruth:
    """Who left what: indices of particles by element, and of targets by particle; all -1 where nothing is known."""

    track_particle: Integers
    cluster_particle: Integers
    hit_particle: Integers
    target_of: Integers  # by particle
    targets: Momenta | None
    visible: Momenta | None
    vertex: Floats  # where the leading particle of each target was made

    @classmethod
    def of(cls, event: EventBlock) -> EventTruth:
        """The truth of one event, as far as it has one."""
        particles = event["particle"]
        has_truth = (
            "target" in event and "target" in particles.columns and len(particles) >= min(len(event["target"]), 1)
        )
        return cls(
            track_particle=_column(event["track"], "particle", -1),
            cluster_particle=_strongest(event, "cluster"),
            hit_particle=_strongest(event, "hit"),
            target_of=_column(particles, "target", -1) if has_truth else np.zeros(0, np.int64),
            targets=momenta(event["target"]) if has_truth else None,
            visible=visible(event) if has_truth else None,
            vertex=_vertices(event) if has_truth else np.zeros((0, 3)),
        )

    def targets_of(self, particle: Integers) -> Integers:
        """Targets of elements, by the particle behind each of them."""
        if not len(self.target_of):
            return np.full(len(particle), -1, np.int64)
        found: Integers = np.where(particle >= 0, self.target_of[particle.clip(0)], -1)
        return found


def _column(part: Collection, name: str, default: int) -> Integers:
    values = part.columns.get(name)
    return np.full(len(part), default, np.int64) if values is None else values.astype(np.int64)


def _strongest(event: EventBlock, place: str) -> Integers:
    """The particle that left most in each cluster or hit."""
    owner = np.full(len(event[place]), -1, np.int64)
    if (links := event.collections.get(f"{place}_link")) is not None and len(owner):
        order = np.argsort(links["energy"], kind="stable")  # of several that write to one place the last wins
        owner[links[place][order]] = links["particle"][order]
    return owner


def _vertices(event: EventBlock) -> Floats:
    particles = event["particle"]
    vertex = np.zeros((len(event["target"]), 3))
    if {"x", "y", "z"} <= set(particles.columns):
        order = np.argsort(particles["energy"], kind="stable")
        order = order[particles["target"][order] >= 0]
        rows = np.stack([particles[name] for name in "xyz"], axis=1).astype(np.float64)
        vertex[particles["target"][order]] = rows[order]
    return vertex


# What a reconstruction made


def _described(name: str, made: Collection, event: EventBlock, truth: EventTruth, outline: Outline) -> Record:
    """What one reconstruction made of the event."""
    found, visible = checked(made, event.event_number, name), truth.visible
    track, cluster, charge = (_column(made, *column) for column in (("track", -1), ("cluster", -1), ("charge", 0)))
    match = np.full(len(found), -1, np.int64)
    if name == TRUTH:
        match = np.arange(len(found))
        targets = truth.targets_of(truth.track_particle), truth.targets_of(truth.cluster_particle)
        tracks, clusters = ([np.flatnonzero(of == one).tolist() for one in range(len(made))] for of in targets)
        start, hits = truth.vertex, truth.targets_of(truth.hit_particle)
    else:
        if truth.targets is not None:
            pairs = match_particles(truth.targets, found)
            match[pairs.reco] = pairs.truth
        tracks, clusters = ([[index] if index >= 0 else [] for index in one.tolist()] for one in (track, cluster))
        start, hits = _starts(track, event), _hit_owners(found, cluster, event)
    momentum = np.stack([found.px, found.py, found.pz], axis=1)
    lines = helices(start, momentum, charge.astype(np.float64), outline)
    for row in np.flatnonzero((charge == 0) & (cluster >= 0) & bool(len(event["cluster"]))):
        end = [event["cluster"][axis][cluster[row]] for axis in "xyz"]  # a neutral candidate ends at its cluster
        lines[row] = np.linspace(lines[row][0], end, 3)
    kinematics = {key: getattr(found, key) for key in ("px", "py", "pz", "energy", "pt", "eta", "phi")}
    columns = {"label": found.label, "charge": charge, **kinematics, "track": track, "cluster": cluster, "match": match}
    return {
        "name": name,
        "title": TITLES.get(name, name),
        "candidates": {**{key: listed(values) for key, values in columns.items()}, "line": _places(lines)},
        "elements": {"tracks": tracks, "clusters": clusters},
        "hits": listed(hits),
        "jets": _jets(found, truth),
        "errors": {
            "energy_sum": _in_gev(found.energy.sum()),
            "true_energy": None if visible is None else _in_gev(visible.energy.sum()),
            **(dict.fromkeys(MEASURES) if visible is None else errors_of(found, visible)),
        },
    }


def _hit_owners(found: Momenta, cluster: Integers, event: EventBlock) -> Integers:
    """Candidates by hit, through the cluster; of several candidates on a cluster the most energetic has it."""
    hits, clusters = _column(event["hit"], "cluster", -1), len(event["cluster"])
    owner = np.full(clusters + 1, -1, np.int64)  # the last is for hits of no cluster
    if clusters:
        order = np.argsort(found.energy, kind="stable")
        owner[cluster[order]] = order
        owner[-1] = -1
    return owner[np.where(hits < clusters, hits, -1)]


def _starts(track: Integers, event: EventBlock) -> Floats:
    """Where the track of a candidate is closest to the beam, else the origin."""
    start, has = np.zeros((len(track), 3)), (track >= 0) & (track < len(event["track"]))
    if has.any() and {"d0", "z0"} <= set(event["track"].columns):
        start[has] = perigee(*(event["track"][name].astype(np.float64)[track[has]] for name in ("d0", "z0", "phi")))
    return start


def _jets(found: Momenta, truth: EventTruth) -> Record:
    jets = find_jets(found)
    match = np.full(len(jets), -1, np.int64)
    if truth.visible is not None:
        pairs = match_jets(find_jets(truth.visible), jets)
        match[pairs.reco] = pairs.truth
    return {**{name: listed(getattr(jets, name)) for name in ("pt", "eta", "phi", "energy")}, "match": listed(match)}


def errors_of(found: Momenta, visible: Momenta) -> dict[str, float | None]:
    """How wrong one event is, in GeV: the largest error of a jet, and the error of the visible energy.

    The error of a true jet is the difference of transverse momentum to the jet it is matched with; a jet that is not found is
    wrong by all it has, and so is a jet that is not true. None if the truth is not finite.
    """
    true_jets, jets = find_jets(visible), find_jets(found)
    pairs = match_jets(true_jets, jets)
    true_error, false_error = true_jets.pt.copy(), jets.pt.copy()
    true_error[pairs.truth] = np.abs(jets.pt[pairs.reco] - true_jets.pt[pairs.truth])
    false_error[pairs.reco] = 0.0
    jet = max([0.0, *true_error, *false_error])
    energy = abs(found.energy.sum() - visible.energy.sum())
    return {name: _in_gev(value) for name, value in zip(MEASURES, (jet, energy), strict=True)}


# The detector, and lines in space: helices of charged particles and straight lines of neutral ones

#: Radius and half length that lines are drawn to where the detector is not known: about those of all of them.
_USUAL_FACE = (1500.0, 2300.0)
_ROUND = 64
#: Pieces of the most bent line; a number with many divisors, because straighter lines use every nth point.
_PIECES = 96
_STRIDES = (48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
#: Largest turn from one point to the next, in radians.
_TURN_PER_PIECE = 0.14
#: A particle that never meets the calorimeter is followed for so many turns.
_TURNS = 1.5
#: Length of a line that starts behind the calorimeter face, in mm.
_STUB = 200.0


@dataclass(frozen=True)
class Outline:
    """Cylinders (mm) of a detector, its field (tesla), and the face of its calorimeter, which lines are drawn to.

    The face of the barrel has flat sides, `face_radius` from the axis; where none are known, about as many as to be round.
    """

    name: str
    field: float
    face_radius: float
    face_z: float
    sides: int
    parts: list[dict[str, Any]]


def outline(detector: str, field: float | None = None, told: object = None) -> Outline:
    """The outline of a detector that is told, or that we know by name; of another one only a tracker of the usual size."""
    geometry = _told(told) or _known(detector)
    if geometry is None:
        radius, z = _USUAL_FACE
        return Outline(
            detector, field or 0.0, radius, z, _ROUND, _cylinders([("tracker", radius, radius, -z, z, False)])
        )
    parts = [("tracker", r, r, -z, z, False) for r, z, _, shown in geometry.tracker.barrel if shown]
    parts += [("tracker", row[1], row[2], row[0], row[0], True) for row in geometry.tracker.disks]
    for system in ("ecal", "hcal", "yoke"):
        shape: CalorimeterGeometry = getattr(geometry, system)
        inner, z, cap = shape.barrel.inner, shape.barrel.half_length, shape.endcap
        parts.append((system, inner, inner + shape.depth, -z, z, False))
        parts.append((system, cap.r_min, cap.r_max, cap.inner, cap.inner + shape.depth, True))
    coil, z = geometry.coil.barrel, geometry.hcal.barrel.half_length
    parts.append(("coil", coil.inner, coil.outer, -z, z, False))
    face = geometry.face_radius, geometry.face_z, geometry.sides
    return Outline(detector, field or geometry.field, *face, _cylinders(parts))


def _told(geometry: object) -> DetectorGeometry | None:
    """The detector in the provenance of a dataset, if it is one."""
    try:
        return DetectorGeometry.model_validate(geometry)
    except ValidationError:
        return None


def _known(detector: str) -> DetectorGeometry | None:
    try:
        return load_detector(detector)
    except UsageError:
        return None


def _cylinders(rows: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Hollow cylinders; `both_ends` asks for the mirror image at negative z too."""
    return [dict(zip(("system", "r_min", "r_max", "z_min", "z_max", "both_ends"), row, strict=True)) for row in rows]


def helices(start: Floats, momentum: Floats, charge: Floats, outline: Outline) -> list[Floats]:
    """Points along every particle's way, from rows of x, y, z (mm) and px, py, pz (GeV), to the calorimeter face."""
    if not len(start):
        return []
    x, y, z = torch.from_numpy(start.T.copy())
    px, py, pz = torch.from_numpy(momentum.T.copy())
    helix = Helix.of(x, y, z, px, py, pz, torch.from_numpy(charge.astype(np.float64)), outline.field)
    forward = torch.where(helix.tan_lambda >= 0.0, outline.face_z, -outline.face_z)
    path = torch.minimum(helix.to_sides(outline.face_radius, outline.sides), helix.to_plane(forward))
    turns = _TURNS * 2.0 * torch.pi / helix.turn.abs().clamp_min(1e-12)
    path = torch.minimum(path, turns)
    inside = (torch.hypot(helix.x, helix.y) < outline.face_radius) & (helix.z.abs() < outline.face_z)
    cos_lambda = torch.rsqrt(1.0 + helix.tan_lambda**2)
    path = torch.where(inside & torch.isfinite(path), path, _STUB * cos_lambda)
    steps = torch.linspace(0.0, 1.0, _PIECES + 1, dtype=torch.float64)[:, None] * path[None, :]
    points = torch.stack(helix.position(steps), dim=2).numpy()  # [point, particle, (x, y, z)]
    turned = (helix.turn.abs() * path).numpy()
    fine = [[stride for stride in _STRIDES if turn * stride / _PIECES <= _TURN_PER_PIECE] for turn in turned]
    return [points[:: strides[0] if strides else 1, row] for row, strides in enumerate(fine)]


def perigee(d0: Floats, z0: Floats, phi: Floats) -> Floats:
    """Point of closest approach to the beam axis, rows of x, y, z."""
    return np.stack([d0 * np.sin(phi), -d0 * np.cos(phi), z0], axis=1)
