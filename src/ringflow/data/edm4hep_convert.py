"""One block of an EDM4hep file as collections of the schema: what depends on what, in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringflow.data import edm4hep_calorimeter as calorimeter
from ringflow.data import edm4hep_truth as truth
from ringflow.data.edm4hep_layout import Array, PodioFile
from ringflow.data.edm4hep_objects import Objects, PodioBlock, References, Rows
from ringflow.data.edm4hep_profile import HitSource, Profile
from ringflow.data.edm4hep_tracks import has_times, track_columns
from ringflow.event.block import Collection, cast
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, NONE, PHOTON, label_of
from ringflow.event.schema import COLLECTIONS

Columns = dict[str, Array]

#: Masses (GeV) below which a particle without a PDG number is an electron, or a muon, or (if neutral) a photon.
_ELECTRON_BELOW, _MUON_BELOW, _PHOTON_BELOW = 0.05, 0.12, 0.3


@dataclass(frozen=True)
class Parts:
    """What of a profile a file has."""

    hits: tuple[HitSource, ...]
    candidates: str | None
    particles: bool
    shapes: bool
    track_times: bool

    @classmethod
    def of(cls, file: PodioFile, profile: Profile, look_at: range) -> Parts:
        """Look into a file, and into some of its events."""
        hits = tuple(source for source in profile.hits or () if file.has(source.collection))
        candidates = profile.candidates if profile.candidates and file.has(profile.candidates) else None
        clusters = profile.clusters.collections if profile.clusters else ()
        shapes = bool(hits and clusters) and all(file.has_member(name, "hits_begin") for name in clusters)
        particles = profile.truth is not None and file.has(profile.truth.particles)
        track_times = profile.tracks is not None and has_times(file, look_at, profile.tracks)
        return cls(hits, candidates, particles, shapes, track_times)

    @staticmethod
    def truth_names(profile: Profile) -> list[str]:
        """Collections that truth is made of."""
        source = profile.truth
        if source is None:
            return []
        names = (source.particles, source.track_links, source.cluster_links, source.hit_links, source.candidate_links)
        return [name for name in names if name]

    @staticmethod
    def wanted(profile: Profile) -> list[str]:
        """Collections that are taken where they are there, truth aside."""
        return [*profile.hit_collections, *([profile.candidates] if profile.candidates else [])]


class Converter:
    """Reads one block."""

    def __init__(self, block: PodioBlock, profile: Profile, parts: Parts) -> None:
        self._block, self._profile, self._parts = block, profile, parts
        clusters, tracks = profile.clusters, profile.tracks
        self._tracks = block.objects([tracks.collection], "chi2") if tracks else None
        self._clusters = block.objects(clusters.collections, "energy") if clusters else None
        self._candidates = block.objects([parts.candidates], "energy") if parts.candidates else None
        self._objects: dict[str, Objects] = {}
        self._columns: dict[str, Columns] = {}
        self._events: dict[str, Rows] = {}

    def collections(self) -> dict[str, Collection]:
        """All collections in the order of the schema; indices count within the event."""
        if self._candidates is not None:
            self._add("candidate", self._candidate_columns(self._candidates), self._candidates.event)
        if self._tracks is not None and self._profile.tracks is not None:
            columns = track_columns(
                self._block, self._tracks, self._profile.tracks, self._profile, with_time=self._parts.track_times
            )
            self._add("track", columns, self._tracks.event)
        hits = calorimeter.read_hits(self._block, self._parts.hits) if self._parts.hits else None
        cluster_of = self._calorimeter(hits)
        if self._parts.particles:
            self._truth(hits, cluster_of)
        return self._placed()

    def references(self) -> list[tuple[References | None, Objects]]:
        """What in the block refers to which objects, from the best known to the least."""
        block, source = self._block, self._profile.truth
        found: list[tuple[References | None, Objects]] = []
        if source is not None and self._parts.particles:
            particles = block.objects([source.particles], "PDG")
            found.append((block.relation(particles, "parents"), particles))
        if self._candidates is not None:
            if source is not None and source.candidate_links and block.file.has(source.candidate_links):
                links = block.objects([source.candidate_links], "weight")
                found.append((block.reference(links, "from", "rec"), self._candidates))
            for relation, objects in (("tracks", self._tracks), ("clusters", self._clusters)):
                if objects is not None:
                    found.append((block.relation(self._candidates, relation), objects))
        if self._clusters is not None and self._parts.hits:
            hits = block.objects([part.collection for part in self._parts.hits], "energy")
            found.append((block.relation(self._clusters, "hits"), hits))
        return found

    def _add(self, name: str, columns: Columns, event: Rows) -> None:
        self._columns[name], self._events[name] = columns, event

    def _candidate_columns(self, candidates: Objects) -> Columns:
        block = self._block
        px, py, pz = block.three(candidates, "momentum")
        charge = np.rint(block.need(candidates, "charge").astype(np.float64))
        columns: Columns = {
            "label": _label(
                block.need(candidates, "PDG", "type").astype(np.int64), charge, block.need(candidates, "mass")
            ),
            "charge": charge,
            "px": px,
            "py": py,
            "pz": pz,
            "energy": block.need(candidates, "energy"),
        }
        for column, relation, objects in (("track", "tracks", self._tracks), ("cluster", "clusters", self._clusters)):
            if objects is not None:
                columns[column] = _first(block.relation(candidates, relation), objects, len(candidates))
        return columns

    def _calorimeter(self, hits: calorimeter.Hits | None) -> Rows | None:
        """Hits and clusters; returns the cluster of each hit."""
        clusters, source = self._clusters, self._profile.clusters
        cluster_of = None
        if clusters is not None and source is not None:
            momentum = self._momentum_of_clusters(clusters)
            columns = calorimeter.cluster_columns(self._block, clusters, source, momentum, self._profile)
            if hits is not None and self._parts.shapes:
                cluster_of = calorimeter.clusters_of_hits(self._block, clusters, hits.objects)
                columns |= calorimeter.shapes_from_hits(hits, cluster_of, columns, self._profile)
            self._add("cluster", columns, clusters.event)
        if hits is not None:
            columns = hits.columns if cluster_of is None else {**hits.columns, "cluster": cluster_of}
            self._add("hit", columns, hits.objects.event)
        return cluster_of

    def _momentum_of_clusters(self, clusters: Objects) -> calorimeter.Vectors | None:
        """Momentum of the reconstructed particle that each cluster belongs to."""
        if self._candidates is None:
            return None
        references = self._block.relation(self._candidates, "clusters")
        if references is None:
            return None
        cluster = clusters.locate(references)
        momentum = np.zeros((3, len(clusters)))
        whose = references.owner[cluster >= 0]
        momentum[:, cluster[cluster >= 0]] = np.stack(self._block.three(self._candidates, "momentum"))[:, whose]
        return momentum[0], momentum[1], momentum[2]

    def _truth(self, hits: calorimeter.Hits | None, cluster_of: Rows | None) -> None:
        block, source = self._block, self._profile.truth
        assert source is not None
        particles = truth.read_particles(block, source, self._profile)
        self._add("particle", dict(particles.columns), particles.event)
        track_particle, quality = self._tracks_to_particles(particles)
        hit_links = None
        if hits is not None:
            energy = hits.columns["energy"].astype(np.float64)
            hit_links = truth.linked(block, source.hit_links, hits.objects, particles, energy)
            if hit_links is None:
                hit_links = truth.through_simulated_hits(block, source, hits.objects, particles, energy)
            if hit_links is not None:
                self._targets("hit", hit_links, particles, track_particle, quality)
        if self._clusters is None:
            return
        links: truth.Links | None
        if hit_links is not None and cluster_of is not None:
            links = truth.of_clusters(hit_links, cluster_of, len(self._clusters), particles)
        else:
            energy = self._columns["cluster"]["energy"].astype(np.float64)
            links = truth.linked(block, source.cluster_links, self._clusters, particles, energy)
            if links is None:
                links = truth.through_candidates(
                    block, source.candidate_links, self._candidates, "clusters", self._clusters, particles, energy
                )
        if links is not None:
            self._targets("cluster", links, particles, track_particle, quality)

    def _tracks_to_particles(self, particles: truth.Particles) -> tuple[Rows, Array]:
        """The particle of each track, which also becomes a column, and how good the track is."""
        source, tracks = self._profile.truth, self._tracks
        if tracks is None or source is None:
            return np.zeros(0, np.int64), np.zeros(0)
        same = np.ones(len(tracks))
        links = truth.linked(self._block, source.track_links, tracks, particles, same)
        if links is None:
            links = truth.through_candidates(
                self._block, source.candidate_links, self._candidates, "tracks", tracks, particles, same
            )
        columns = self._columns["track"]
        num_hits = columns["num_hits"] if "num_hits" in columns else np.zeros(len(tracks))
        quality = num_hits * 1e6 + np.minimum(columns["pt"], 1e5)
        if links is None:
            return np.full(len(tracks), -1, np.int64), quality
        columns["particle"] = truth.particles_of_tracks(links, len(tracks))
        return columns["particle"], quality

    def _targets(
        self, element: str, links: truth.Links, particles: truth.Particles, track_particle: Rows, quality: Array
    ) -> None:
        """Collections of links and targets on clusters or hits; the particles learn their targets."""
        name = "target" if element == "cluster" else "hit_target"
        num_elements = len(self._events[element])
        columns, of_particles, event = truth.targets(links, num_elements, particles, track_particle, quality, element)
        self._add(name, columns, event)
        pairs = {element: links.element, "particle": links.particle, "energy": links.energy}
        self._add(f"{element}_link", pairs, particles.event[links.particle])
        of_particles[name] = of_particles.pop("target")
        self._columns["particle"] |= of_particles

    def _placed(self) -> dict[str, Collection]:
        """In the schema's order and types, with rows sorted by event and indices that count within it."""
        num_events = len(self._block.events)
        counts = {name: np.bincount(event, minlength=num_events) for name, event in self._events.items()}
        first = {name: np.cumsum(number) - number for name, number in counts.items()}
        placed = {}
        for name in (name for name in COLLECTIONS if name in self._columns):
            event, columns = self._events[name], dict(self._columns[name])
            for column in COLLECTIONS[name]:
                if column.points_to is not None and column.name in columns:
                    index = columns[column.name]
                    columns[column.name] = np.where(index >= 0, index - first[column.points_to][event], -1)
            order = np.argsort(event, kind="stable")
            if np.any(np.diff(event) < 0):
                columns = {column: values[order] for column, values in columns.items()}
            placed[name] = cast(name, counts[name], columns)
        return placed


def _first(references: References | None, objects: Objects, owners: int) -> Rows:
    """The first of the objects that each owner refers to, -1 for none."""
    first = np.full(owners, -1, np.int64)
    if references is not None:
        row = objects.locate(references)
        owner, place = np.unique(references.owner[row >= 0], return_index=True)
        first[owner] = row[row >= 0][place]
    return first


def _label(pdg: Rows, charge: Array, mass: Array) -> Array:
    """Class of a reconstructed particle: by its PDG number, else by charge and mass."""
    charged = np.where(mass < _ELECTRON_BELOW, ELECTRON, np.where(mass < _MUON_BELOW, MUON, CHARGED_HADRON))
    neutral = np.where(mass < _PHOTON_BELOW, PHOTON, NEUTRAL_HADRON)
    known = label_of(pdg)
    unknown = (pdg == 0) | (known == NONE)
    return np.where(unknown, np.where(charge != 0, charged, neutral), known)
