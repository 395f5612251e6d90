"""What one reconstruction made of an event, as JSON: candidates, their elements and matches, jets, errors of the event.

name, title    e.g. `baseline`, `Rules`
candidates     label, charge, px, py, pz, energy, pt, eta, phi, track, cluster, match, line;
               match is the target (a candidate of the reconstruction `target`) that it is paired with
elements       tracks and clusters: per candidate the elements it is made of, as far as the reconstruction tells
hits           per hit the candidate that has it
jets           pt, eta, phi, energy, match (place in the jets of the truth, or -1)
errors         see `event_errors`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.display.errors import event_errors
from ringflow.display.numbers import listed, places
from ringflow.display.outline import Outline
from ringflow.display.paths import helices, perigee, to_places
from ringflow.display.truth import EventTruth
from ringflow.evaluate.jets import find_jets
from ringflow.evaluate.matching import match_jets, match_particles
from ringflow.evaluate.momenta import Momenta, checked
from ringflow.event.block import Collection, EventBlock

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

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Lists = list[list[int]]


@dataclass(frozen=True)
class Made:
    """The candidates that a reconstruction made of one event."""

    name: str
    candidates: Collection

    @property
    def title(self) -> str:
        """What people call it."""
        return TITLES.get(self.name, self.name)


def describe(made: Made, event: EventBlock, truth: EventTruth, outline: Outline) -> dict[str, Any]:
    """The JSON described above."""
    found = checked(made.candidates, event.event_number, made.name)
    elements = _elements(made, event, truth)
    columns = {"label": found.label, "charge": _column(made.candidates, "charge", 0)}
    columns |= {name: getattr(found, name) for name in ("px", "py", "pz", "energy", "pt", "eta", "phi")}
    columns |= {name: _column(made.candidates, name, -1) for name in ("track", "cluster")}
    return {
        "name": made.name,
        "title": made.title,
        "candidates": {
            **{name: listed(values) for name, values in columns.items()},
            "match": listed(_matches(made, found, truth)),
            "line": [places(line) for line in _lines(made, found, event, truth, outline)],
        },
        "elements": elements,
        "hits": listed(_hit_owner(made, found, elements["clusters"], event, truth)),
        "jets": _jets(found, truth),
        "errors": event_errors(found, truth.visible),
    }


def _column(candidates: Collection, name: str, default: int) -> Integers:
    values = candidates.columns.get(name)
    return np.full(len(candidates), default, np.int64) if values is None else values.astype(np.int64)


def _matches(made: Made, found: Momenta, truth: EventTruth) -> Integers:
    match = np.full(len(found), -1, np.int64)
    if made.name == TRUTH:
        return np.arange(len(found))
    if truth.targets is not None:
        pairs = match_particles(truth.targets, found)
        match[pairs.reco] = pairs.truth
    return match


def _elements(made: Made, event: EventBlock, truth: EventTruth) -> dict[str, Lists]:
    """Tracks and clusters of every candidate: the truth knows all of them, others the one or two they name."""
    if made.name == TRUTH:
        owners = (truth.targets_of(truth.track_particle), truth.targets_of(truth.cluster_particle))
        count = len(made.candidates)
        return {"tracks": _groups(owners[0], count), "clusters": _groups(owners[1], count)}
    tracks, clusters = _column(made.candidates, "track", -1), _column(made.candidates, "cluster", -1)
    return {"tracks": _singles(tracks), "clusters": _singles(clusters)}


def _groups(owner: Integers, count: int) -> Lists:
    groups: Lists = [[] for _ in range(count)]
    for element, candidate in enumerate(owner.tolist()):
        if candidate >= 0:
            groups[candidate].append(element)
    return groups


def _singles(element: Integers) -> Lists:
    return [[index] if index >= 0 else [] for index in element.tolist()]


def _hit_owner(made: Made, found: Momenta, clusters: Lists, event: EventBlock, truth: EventTruth) -> Integers:
    """By true energy for the truth, else by cluster; of several candidates on a cluster the most energetic has it."""
    if "hit" not in event:
        return np.zeros(0, np.int64)
    if made.name == TRUTH:
        return truth.targets_of(truth.hit_particle)
    hits = event["hit"]
    if "cluster" not in hits.columns or "cluster" not in event:
        return np.full(len(hits), -1, np.int64)
    owner = np.full(len(event["cluster"]) + 1, -1, np.int64)  # the last is for hits of no cluster
    for candidate in np.argsort(found.energy, kind="stable").tolist():
        owner[clusters[candidate]] = candidate
    return owner[hits["cluster"].astype(np.int64)]


def _lines(made: Made, found: Momenta, event: EventBlock, truth: EventTruth, outline: Outline) -> list[Floats]:
    charge = _column(made.candidates, "charge", 0).astype(np.float64)
    momentum = np.stack([found.px, found.py, found.pz], axis=1)
    start = truth.vertex if made.name == TRUTH else _starts(made, event)
    lines = helices(start, momentum, charge, outline)
    return to_places(lines, _ends(made, charge, event)) if lines else []


def _starts(made: Made, event: EventBlock) -> Floats:
    """Where the track of a candidate is closest to the beam, else the origin."""
    start = np.zeros((len(made.candidates), 3))
    track = _column(made.candidates, "track", -1)
    if "track" in event and {"d0", "z0"} <= set(event["track"].columns) and (track >= 0).any():
        columns = [event["track"][name].astype(np.float64)[track[track >= 0]] for name in ("d0", "z0", "phi")]
        start[track >= 0] = perigee(*columns)
    return start


def _ends(made: Made, charge: Floats, event: EventBlock) -> Floats:
    """The cluster of a neutral candidate; NaN for others."""
    ends = np.full((len(charge), 3), np.nan)
    cluster = _column(made.candidates, "cluster", -1)
    ending = (charge == 0) & (cluster >= 0)
    if "cluster" in event and ending.any():
        ends[ending] = np.stack([event["cluster"][name] for name in ("x", "y", "z")], axis=1)[cluster[ending]]
    return ends


def _jets(found: Momenta, truth: EventTruth) -> dict[str, Any]:
    jets = find_jets(found)
    match = np.full(len(jets), -1, np.int64)
    if truth.visible is not None:
        pairs = match_jets(find_jets(truth.visible), jets)
        match[pairs.reco] = pairs.truth
    columns = {name: listed(getattr(jets, name)) for name in ("pt", "eta", "phi", "energy")}
    return {**columns, "match": listed(match)}
