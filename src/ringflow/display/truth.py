"""Who left what: the true particle and the target behind every track, cluster and hit of one event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringflow.evaluate.momenta import Momenta, momenta, visible
from ringflow.event.block import Collection, EventBlock

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EventTruth:
    """Indices of particles by element, and of targets by particle; all -1 where nothing is known."""

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
        particles = event["particle"]["target"].astype(np.int64) if has_truth else np.zeros(0, np.int64)
        tracks = _size(event, "track")
        known = "track" in event and "particle" in event["track"].columns
        return cls(
            track_particle=event["track"]["particle"].astype(np.int64) if known else np.full(tracks, -1),
            cluster_particle=_strongest(event, "cluster"),
            hit_particle=_strongest(event, "hit"),
            target_of=particles,
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


def _size(event: EventBlock, collection: str) -> int:
    return len(event[collection]) if collection in event else 0


def _strongest(event: EventBlock, place: str) -> Integers:
    """The particle that left most in each cluster or hit."""
    owner = np.full(_size(event, place), -1, np.int64)
    if (links := event.collections.get(f"{place}_link")) is not None and len(owner):
        order = np.argsort(links["energy"], kind="stable")  # of several that write to one place the last wins
        owner[links[place][order]] = links["particle"][order]
    return owner


def _vertices(event: EventBlock) -> Floats:
    particles: Collection = event["particle"]
    vertex = np.zeros((len(event["target"]), 3))
    if not {"x", "y", "z"} <= set(particles.columns):
        return vertex
    order = np.argsort(particles["energy"], kind="stable")
    order = order[particles["target"][order] >= 0]
    rows = np.stack([particles[name] for name in ("x", "y", "z")], axis=1).astype(np.float64)
    vertex[particles["target"][order]] = rows[order]
    return vertex
