"""One event as JSON for the page: what the detector saw, the truth, and what every reconstruction made of it.

A scene is a dict of columns (lists with one entry per object; -1 points nowhere):

    event            index (place in the input), number, sample, detector, source
    detector         field, face and parts of the outline, see `geometry.py`
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
        errors         energy_sum, and where there is truth true_energy, jet, energy, see `errors_by_event`
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
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.display.geometry import Outline, helices, perigee, to_places
from ringflow.evaluate.jets import find_jets
from ringflow.evaluate.matching import match_jets, match_particles
from ringflow.evaluate.momenta import Momenta, checked, momenta, visible
from ringflow.event.block import Collection, EventBlock
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.event.schema import SUBSYSTEMS

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
    truth = EventTruth.of(event)
    return {
        "version": SCENE_VERSION,
        "event": {"index": 0, "number": int(event.event_number[0]), **(about or {})},
        "detector": asdict(outline),
        "classes": list(PARTICLE_CLASSES),
        "subsystems": list(SUBSYSTEMS),
        "tracks": {**_columns(event, "track", _TRACK), **_tracks(event, truth, outline)},
        "clusters": {**_columns(event, "cluster", _CLUSTER), **_clusters(event, truth)},
        "hits": {**_columns(event, "hit", _HIT), "particle": listed(truth.hit_particle)},
        "particles": _columns(event, "particle", _PARTICLE),
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
    """Points of lines in space as x, y, z, x, y, z, ... to a tenth of a millimetre."""
    return [np.round(points.reshape(-1), 1).tolist() for points in lines]


def _columns(event: EventBlock, collection: str, wanted: Sequence[str]) -> Record:
    part = event.collections.get(collection)
    if part is None:
        return {name: [] for name in wanted}
    return {name: listed(part[name]) for name in wanted if name in part.columns}


def _tracks(event: EventBlock, truth: EventTruth, outline: Outline) -> Record:
    if "track" not in event:
        return {"particle": [], "lines": []}
    tracks, zero = event["track"], np.zeros(len(event["track"]))
    d0, z0 = (tracks.columns.get(name, zero).astype(np.float64) for name in ("d0", "z0"))
    pt, eta, phi, charge = (tracks[name].astype(np.float64) for name in ("pt", "eta", "phi", "charge"))
    momentum = np.stack([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)], axis=1)
    lines = helices(perigee(d0, z0, phi), momentum, charge, outline)
    return {"particle": listed(truth.track_particle), "lines": _places(lines)}


def _clusters(event: EventBlock, truth: EventTruth) -> Record:
    if "cluster" not in event:
        return {"subsystem": [], "particle": []}
    part = event["cluster"]
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
        has_truth = "target" in event and "particle" in event and "target" in event["particle"].columns
        return cls(
            track_particle=_column(event.collections.get("track"), "particle", -1),
            cluster_particle=_strongest(event, "cluster"),
            hit_particle=_strongest(event, "hit"),
            target_of=_column(event["particle"], "target", -1) if has_truth else np.zeros(0, np.int64),
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


def _column(part: Collection | None, name: str, default: int) -> Integers:
    if part is None:
        return np.zeros(0, np.int64)
    values = part.columns.get(name)
    return np.full(len(part), default, np.int64) if values is None else values.astype(np.int64)


def _strongest(event: EventBlock, place: str) -> Integers:
    """The particle that left most in each cluster or hit."""
    owner = np.full(len(event[place]) if place in event else 0, -1, np.int64)
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
    found = checked(made, event.event_number, name)
    track, cluster, charge = (_column(made, *column) for column in (("track", -1), ("cluster", -1), ("charge", 0)))
    match = np.full(len(found), -1, np.int64)
    if name == TRUTH:
        match = np.arange(len(found))
        tracks, clusters = (
            _groups(truth.targets_of(owner), len(made)) for owner in (truth.track_particle, truth.cluster_particle)
        )
        start, hits = truth.vertex, truth.targets_of(truth.hit_particle)
    else:
        if truth.targets is not None:
            pairs = match_particles(truth.targets, found)
            match[pairs.reco] = pairs.truth
        tracks, clusters = ([[index] if index >= 0 else [] for index in one.tolist()] for one in (track, cluster))
        start, hits = _starts(track, event), _hit_owners(found, cluster, event)
    momentum = np.stack([found.px, found.py, found.pz], axis=1)
    lines = to_places(helices(start, momentum, charge.astype(np.float64), outline), _ends(cluster, charge, event))
    kinematics = {key: getattr(found, key) for key in ("px", "py", "pz", "energy", "pt", "eta", "phi")}
    columns = {"label": found.label, "charge": charge, **kinematics, "track": track, "cluster": cluster, "match": match}
    return {
        "name": name,
        "title": TITLES.get(name, name),
        "candidates": {**{key: listed(values) for key, values in columns.items()}, "line": _places(lines)},
        "elements": {"tracks": tracks, "clusters": clusters},
        "hits": listed(hits),
        "jets": _jets(found, truth),
        "errors": _errors(found, truth.visible),
    }


def _groups(owner: Integers, count: int) -> list[list[int]]:
    """Elements by candidate."""
    return [np.flatnonzero(owner == candidate).tolist() for candidate in range(count)]


def _hit_owners(found: Momenta, cluster: Integers, event: EventBlock) -> Integers:
    """Candidates by hit, through the cluster; of several candidates on a cluster the most energetic has it."""
    hits = _column(event.collections.get("hit"), "cluster", -1)
    clusters = len(event["cluster"]) if "cluster" in event else 0
    owner = np.full(clusters + 1, -1, np.int64)  # the last is for hits of no cluster
    if clusters:
        order = np.argsort(found.energy, kind="stable")
        owner[cluster[order]] = order
        owner[-1] = -1
    return owner[np.where(hits < clusters, hits, -1)]


def _starts(track: Integers, event: EventBlock) -> Floats:
    """Where the track of a candidate is closest to the beam, else the origin."""
    start, has = np.zeros((len(track), 3)), track >= 0
    if has.any() and "track" in event and {"d0", "z0"} <= set(event["track"].columns):
        start[has] = perigee(*(event["track"][name].astype(np.float64)[track[has]] for name in ("d0", "z0", "phi")))
    return start


def _ends(cluster: Integers, charge: Integers, event: EventBlock) -> Floats:
    """The cluster of a neutral candidate; NaN for others."""
    ends, ending = np.full((len(charge), 3), np.nan), (charge == 0) & (cluster >= 0)
    if ending.any() and "cluster" in event:
        ends[ending] = np.stack([event["cluster"][name] for name in "xyz"], axis=1)[cluster[ending]]
    return ends


def _jets(found: Momenta, truth: EventTruth) -> Record:
    jets = find_jets(found)
    match = np.full(len(jets), -1, np.int64)
    if truth.visible is not None:
        pairs = match_jets(find_jets(truth.visible), jets)
        match[pairs.reco] = pairs.truth
    return {**{name: listed(getattr(jets, name)) for name in ("pt", "eta", "phi", "energy")}, "match": listed(match)}


def _errors(found: Momenta, visible: Momenta | None) -> dict[str, float | None]:
    """How wrong it is; without truth there is only the energy."""
    errors = dict.fromkeys(("energy_sum", "true_energy", *MEASURES))
    told = {"energy_sum": found.energy.sum()}
    if visible is not None:
        jet, energy = errors_by_event(found, visible)
        told |= {"true_energy": visible.energy.sum(), "jet": jet[0], "energy": energy[0]}
    return errors | {name: round(float(value), 3) for name, value in told.items()}


def errors_by_event(found: Momenta, visible: Momenta) -> tuple[Floats, Floats]:
    """Per event the largest error of a jet and the error of the visible energy, both in GeV.

    The error of a true jet is the difference of transverse momentum to the jet it is matched with; a jet that is not found is
    wrong by all it has, and so is a jet that is not true.
    """
    true_jets, jets = find_jets(visible), find_jets(found)
    pairs = match_jets(true_jets, jets)
    true_error, false_error = true_jets.pt.copy(), jets.pt.copy()
    true_error[pairs.truth] = np.abs(jets.pt[pairs.reco] - true_jets.pt[pairs.truth])
    false_error[pairs.reco] = 0.0
    largest = np.zeros(len(visible.counts))
    np.maximum.at(largest, true_jets.event, true_error)
    np.maximum.at(largest, jets.event, false_error)
    return largest, np.abs(found.sums()[:, 3] - visible.sums()[:, 3])
