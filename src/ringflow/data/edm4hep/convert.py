"""One block of an EDM4hep file as collections of the schema: what depends on what, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import InputFileError
from ringflow.data.edm4hep import truth
from ringflow.data.edm4hep.podio import Array, Objects, PodioBlock, PodioFile, References, Rows
from ringflow.data.edm4hep.profile import ClusterSource, HitSource, Profile, TrackSource
from ringflow.event.block import Collection, cast
from ringflow.event.particles import (
    CHARGED_HADRON,
    ELECTRON,
    MUON,
    NEUTRAL_HADRON,
    NONE,
    PHOTON,
    SPEED_OF_LIGHT,
    label_of,
    properties,
)
from ringflow.event.schema import COLLECTIONS, SUBSYSTEMS

Columns = dict[str, Array]

#: Masses (GeV) below which a particle without a PDG number is an electron, or a muon, or (if neutral) a photon.
_ELECTRON_BELOW, _MUON_BELOW, _PHOTON_BELOW = 0.05, 0.12, 0.3


@dataclass(frozen=True)
class PartsPresent:
    """What of a profile a file has."""

    hits: tuple[HitSource, ...]
    candidates: str | None
    particles: bool
    shapes: bool
    track_times: bool

    @classmethod
    def of(cls, file: PodioFile, profile: Profile, look_at: range) -> PartsPresent:
        """Look into a file, and into some of its events."""
        hits = tuple(source for source in profile.hits or () if file.has(source.collection))
        candidates = profile.candidates if profile.candidates and file.has(profile.candidates) else None
        clusters = profile.clusters.collections if profile.clusters else ()
        shapes = bool(hits and clusters) and all(file.has_member(name, "hits_begin") for name in clusters)
        particles = profile.truth is not None and file.has(profile.truth.particles)
        track_times = profile.tracks is not None and has_times(file, look_at, profile.tracks)
        return cls(hits, candidates, particles, shapes, track_times)


class Converter:
    """Reads one block."""

    def __init__(self, block: PodioBlock, profile: Profile, parts: PartsPresent) -> None:
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
        hits = read_hits(self._block, self._parts.hits) if self._parts.hits else None
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

    def _calorimeter(self, hits: CalorimeterRead | None) -> Rows | None:
        """Hits and clusters; returns the cluster of each hit."""
        clusters, source = self._clusters, self._profile.clusters
        cluster_of = None
        if clusters is not None and source is not None:
            momentum = self._momentum_of_clusters(clusters)
            columns = cluster_columns(self._block, clusters, source, momentum, self._profile)
            if hits is not None and self._parts.shapes:
                cluster_of = clusters_of_hits(self._block, clusters, hits.objects)
                columns |= shapes_from_hits(hits, cluster_of, columns, self._profile)
            self._add("cluster", columns, clusters.event)
        if hits is not None:
            columns = hits.columns if cluster_of is None else {**hits.columns, "cluster": cluster_of}
            self._add("hit", columns, hits.objects.event)
        return cluster_of

    def _momentum_of_clusters(self, clusters: Objects) -> Vectors | None:
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

    def _truth(self, hits: CalorimeterRead | None, cluster_of: Rows | None) -> None:
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
            links = self._links(source.cluster_links, "clusters", self._clusters, particles, energy)
        if links is not None:
            self._targets("cluster", links, particles, track_particle, quality)

    def _links(
        self, collection: str | None, relation: str, elements: Objects, particles: truth.Particles, energy: Array
    ) -> truth.Links | None:
        """Links of tracks or clusters themselves, else those of the reconstructed particles that have them."""
        assert self._profile.truth is not None
        found = truth.linked(self._block, collection, elements, particles, energy)
        if found is not None:
            return found
        through = self._profile.truth.candidate_links
        return truth.through_candidates(self._block, through, self._candidates, relation, elements, particles, energy)

    def _tracks_to_particles(self, particles: truth.Particles) -> tuple[Rows, Array]:
        """The particle of each track, which also becomes a column, and how good the track is."""
        source, tracks = self._profile.truth, self._tracks
        if tracks is None or source is None:
            return np.zeros(0, np.int64), np.zeros(0)
        links = self._links(source.track_links, "tracks", tracks, particles, np.ones(len(tracks)))
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


#: pt [GeV] = BENDING * B [T] / |omega| [1/mm]
BENDING = SPEED_OF_LIGHT * 1e-6

AT_INTERACTION_POINT, AT_CALORIMETER = 1, 4
#: States in the order in which they describe the track at the beam: there, unnamed, at a vertex, first hit, last hit.
_NEAR_BEAM = (AT_INTERACTION_POINT, 0, 5, 2, 3, AT_CALORIMETER)

_STRAIGHT = 1e-9  # 1/mm; an omega of nothing would be an infinite momentum
#: A particle that turns more often has lost its energy on the way, as in the simulation.
_MOST_TURNS = 2.0
_PION_MASS = properties(211).mass

#: Place of the variances in the lower triangle of the covariance of (d0, phi, omega, z0, tan lambda).
_D0, _PHI, _OMEGA, _Z0, _TAN_LAMBDA = 0, 2, 5, 9, 14

Double = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TrackHelix:
    """Helices by their parameters at the point of closest approach to a reference point, signs as in EDM4hep."""

    d0: Double
    phi: Double
    omega: Double
    z0: Double
    tan_lambda: Double
    reference: tuple[Double, Double, Double]

    def at_beam(self) -> TrackHelix:
        """The same helices with the origin as reference point."""
        x, y, z = self.reference
        radius = 1.0 / self.omega
        centre_x = x + (radius - self.d0) * np.sin(self.phi)
        centre_y = y - (radius - self.d0) * np.cos(self.phi)
        sign, distance = np.sign(self.omega), np.hypot(centre_x, centre_y)
        phi = np.arctan2(sign * centre_x, -sign * centre_y)
        path = -wrap(phi - self.phi) * radius
        nothing = np.zeros_like(phi)
        z0 = z + self.z0 + path * self.tan_lambda
        return TrackHelix(radius - sign * distance, phi, self.omega, z0, self.tan_lambda, (nothing, nothing, nothing))

    def point(self, path: Double) -> tuple[Double, Double, Double]:
        """Position after a transverse path from the point of closest approach."""
        half_turn = -0.5 * self.omega * path
        chord = path * np.sinc(half_turn / np.pi)
        x, y, z = self.reference
        return (
            x - self.d0 * np.sin(self.phi) + chord * np.cos(self.phi + half_turn),
            y + self.d0 * np.cos(self.phi) + chord * np.sin(self.phi + half_turn),
            z + self.z0 + path * self.tan_lambda,
        )

    def direction(self, path: Double) -> tuple[Double, Double, Double]:
        """Unit vector of the momentum after a transverse path."""
        azimuth, cos_lambda = self.phi - self.omega * path, 1.0 / np.hypot(1.0, self.tan_lambda)
        return cos_lambda * np.cos(azimuth), cos_lambda * np.sin(azimuth), cos_lambda * self.tan_lambda

    def path_to_face(self, radius: float, z: float) -> tuple[Double, npt.NDArray[np.bool_]]:
        """Transverse path from the origin's side to the calorimeter, and whether it gets there.

        A path that never does ends where it turns back to the beam.
        """
        bend = 1.0 / np.abs(self.omega)
        distance = np.abs(1.0 / self.omega - self.d0)
        with np.errstate(divide="ignore", invalid="ignore"):
            square = (radius**2 - self.d0**2) / (4.0 * distance * bend)
            barrel = np.where(square <= 1.0, 2.0 * bend * np.arcsin(np.sqrt(np.clip(square, 0.0, 1.0))), np.inf)
            endcap = (np.copysign(z, self.tan_lambda) - self.z0) / self.tan_lambda
        path = np.minimum(barrel, np.where(endcap > 0.0, endcap, np.inf))
        reaches = path <= 2.0 * np.pi * _MOST_TURNS * bend
        return np.where(reaches, path, np.pi * bend), reaches


def wrap(angle: Double) -> Double:
    """An angle between -pi and pi."""
    wrapped: Double = np.remainder(angle + np.pi, 2.0 * np.pi) - np.pi
    return wrapped


def has_times(file: PodioFile, events: range, source: TrackSource) -> bool:
    """Whether states at the calorimeter carry times; many files have the member but never fill it."""
    location = file.vector(events, source.collection, "trackStates", "location")
    time = file.vector(events, source.collection, "trackStates", "time")
    return location is not None and time is not None and bool(np.any(time.values[location.values == AT_CALORIMETER]))


def track_columns(
    block: PodioBlock, tracks: Objects, source: TrackSource, profile: Profile, *, with_time: bool
) -> Columns:
    """Columns of the `track` collection without truth."""
    states = _States(block, tracks)
    near, at_face = states.nearest_beam(), states.at_face()
    helix = states.helix(near).at_beam()
    pt = BENDING * profile.field / np.abs(helix.omega)
    columns: Columns = {
        "pt": pt,
        "eta": np.arcsinh(helix.tan_lambda),
        "phi": helix.phi,
        "charge": np.sign(helix.omega),
        "d0": -helix.d0,
        "z0": helix.z0,
        **states.uncertainties(near),
    }
    for name in ("chi2", "ndf"):
        if (values := block.column(tracks, name)) is not None:
            columns[name] = values
    if (num_hits := block.lengths(tracks, "trackerHits")) is not None:
        columns["num_hits"] = num_hits
    if (dedx := _energy_loss(block, tracks, source)) is not None:
        columns["dedx"] = dedx
    return columns | _at_calorimeter(states, helix, near, at_face, pt, profile, with_time)


class _States:
    """The states of all tracks."""

    def __init__(self, block: PodioBlock, tracks: Objects) -> None:
        self._block, self._tracks = block, tracks
        self.owner, location = self._member("location")
        self._location = location.astype(np.int64)
        self._omega = self._member("omega")[1].astype(np.float64)

    def _member(self, *names: str) -> tuple[Rows, Array]:
        found = self._block.held(self._tracks, "trackStates", *names)
        if found is None:
            raise InputFileError(
                f"{self._block.file.path}: {self._tracks.names[0]} has no track states; name another track collection"
            )
        return found

    def nearest_beam(self) -> Rows:
        """The state of each track that describes it at the beam."""
        rank = np.array([_NEAR_BEAM.index(place) if place in _NEAR_BEAM else 9 for place in self._location.tolist()])
        order = np.lexsort((np.arange(len(rank)), rank, self.owner)) if len(rank) else np.zeros(0, np.int64)
        track, first = np.unique(self.owner[order], return_index=True)
        if len(track) != len(self._tracks):
            lacking = int(np.setdiff1d(np.arange(len(self._tracks)), track)[0])
            event = self._block.events[int(self._tracks.event[lacking])]
            raise InputFileError(
                f"{self._block.file.path}: a track of entry {event} in {self._tracks.names[0]} has no state; "
                "it has no momentum, so leave it out of the file"
            )
        return order[first]

    def at_face(self) -> Rows:
        """The state of each track at the calorimeter; -1 without one. A state in the origin was never set."""
        away = np.hypot(*(self._member(f"referencePoint.{axis}")[1] for axis in "xy")) > 1.0
        rows = np.flatnonzero((self._location == AT_CALORIMETER) & away)
        face = np.full(len(self._tracks), -1, np.int64)
        face[self.owner[rows]] = rows
        return face

    def column(self, state: Rows, *names: str) -> Double:
        """A member of some states."""
        return self._member(*names)[1][state].astype(np.float64)

    def helix(self, state: Rows) -> TrackHelix:
        """Helices of some states."""
        omega = self._omega[state]
        omega = np.where(np.abs(omega) < _STRAIGHT, np.copysign(_STRAIGHT, omega), omega)
        d0, phi, z0, tan_lambda = (self.column(state, name) for name in ("D0", "phi", "Z0", "tanLambda"))
        x, y, z = (self.column(state, f"referencePoint.{axis}") for axis in "xyz")
        return TrackHelix(d0, phi, omega, z0, tan_lambda, (x, y, z))

    def uncertainties(self, state: Rows) -> Columns:
        """Uncertainties from the covariance; none if the file has no covariance."""
        found = self._block.held(self._tracks, "trackStates", "covMatrix.values", "covMatrix")
        if found is None:
            return {}
        # Nothing has no second axis.
        variance = found[1][state].astype(np.float64) if len(state) else np.zeros((0, _TAN_LAMBDA + 1))
        sigma = np.sqrt(np.clip(np.nan_to_num(variance), 0.0, None))
        helix = self.helix(state)
        return {
            "sigma_pt": sigma[:, _OMEGA] / np.abs(helix.omega),
            "sigma_phi": sigma[:, _PHI],
            "sigma_theta": sigma[:, _TAN_LAMBDA] / (1.0 + helix.tan_lambda**2),
            "sigma_d0": sigma[:, _D0],
            "sigma_z0": sigma[:, _Z0],
        }


def _at_calorimeter(
    states: _States, helix: TrackHelix, near: Rows, at_face: Rows, pt: Double, profile: Profile, with_time: bool
) -> Columns:
    """Where a track enters the calorimeter: from the state there, else along its helix."""
    path, reaches = helix.path_to_face(profile.face_radius, profile.face_z)
    given = at_face >= 0
    face = states.helix(at_face[given])
    point, direction = helix.point(path), helix.direction(path)
    nothing = np.zeros(int(given.sum()))
    columns: Columns = {"reaches_calo": reaches | given}
    for axis, along, heading, at, to in zip(
        "xyz", point, direction, face.point(nothing), face.direction(nothing), strict=True
    ):
        along[given], heading[given] = at, to
        columns[f"calo_{axis}"], columns[f"calo_d{axis}"] = along, heading
    if with_time:
        # Some tracks lack the state: as if they were pions.
        momentum = pt * np.hypot(1.0, helix.tan_lambda)
        length = path * np.hypot(1.0, helix.tan_lambda)
        time = states.column(near, "time") + length * np.hypot(1.0, _PION_MASS / momentum) / SPEED_OF_LIGHT
        time[given] = states.column(at_face[given], "time")
        columns["time"] = time
    return columns


def _energy_loss(block: PodioBlock, tracks: Objects, source: TrackSource) -> Array | None:
    """dE/dx in units of a minimum-ionising particle; nothing if the profile does not say what that is."""
    if source.mip_dedx is None:
        return None
    values: Array | None
    if source.dedx_collection is None:
        values = block.column(tracks, "dEdx")
    elif not block.file.has(source.dedx_collection):
        values = None
    else:
        measured = block.objects([source.dedx_collection], "dQdx.value")
        references = block.reference(measured, "track")
        values = None
        if references is not None:
            track = tracks.locate(references)
            values = np.zeros(len(tracks))
            values[track[track >= 0]] = block.need(measured, "dQdx.value")[track >= 0]
    return None if values is None else values / source.mip_dedx


Vectors = tuple[Array, Array, Array]

#: Of the columns that need layers.
_BY_LAYER = ("start_layer", "front_energy")
#: Position of an object that was never given one.
_NOWHERE = 1e-3  # mm from the origin


@dataclass(frozen=True)
class CalorimeterRead:
    """Hits, the collections they are from, and whether the profile tells their layers."""

    objects: Objects
    columns: Columns
    know_layers: bool


def read_hits(block: PodioBlock, sources: Sequence[HitSource]) -> CalorimeterRead:
    """Columns of the `hit` collection without clusters."""
    hits = block.objects([source.collection for source in sources], "energy")
    x, y, z = block.three(hits, "position")
    columns: Columns = {"energy": block.need(hits, "energy"), "x": x, "y": y, "z": z}
    if (time := block.column(hits, "time")) is not None:
        columns["time"] = time
    cells = block.column(hits, "cellID")
    know_layers = cells is not None and all(source.layer is not None for source in sources)
    subsystem = np.zeros(len(hits), np.int64)
    layer = np.zeros(len(hits), np.int64)
    for number, source in enumerate(sources):
        rows = hits.rows_of(number)
        subsystem[rows] = SUBSYSTEMS.index(source.subsystem)
        if source.endcap_from is not None:
            subsystem[rows[np.abs(z[rows]) >= source.endcap_from]] |= 1
        if know_layers and cells is not None and source.layer is not None:
            bits = cells[rows].astype(np.uint64) >> np.uint64(source.layer.offset)
            number_in_cell = (bits & np.uint64((1 << source.layer.width) - 1)).astype(np.int64)
            layer[rows] = np.clip(number_in_cell - source.layer.first, 0, None)
    columns["subsystem"] = subsystem
    if know_layers:
        columns["layer"] = layer
    return CalorimeterRead(hits, columns, know_layers)


def clusters_of_hits(block: PodioBlock, clusters: Objects, hits: Objects) -> Rows:
    """Cluster of every hit, -1 for a hit in none."""
    cluster_of = np.full(len(hits), -1, np.int64)
    if (references := block.relation(clusters, "hits")) is not None:
        hit = hits.locate(references)
        cluster_of[hit[hit >= 0]] = references.owner[hit >= 0]
    return cluster_of


def cluster_columns(
    block: PodioBlock, clusters: Objects, source: ClusterSource, momentum: Vectors | None, profile: Profile
) -> Columns:
    """Columns of the `cluster` collection that need no hits.

    `momentum` is that of the reconstructed particle each cluster belongs to: where a cluster was never given a position, it
    is put on the calorimeter face in that direction.
    """
    position = block.three(clusters, "position")
    nowhere = sum(component**2 for component in position) < _NOWHERE**2
    if momentum is not None and np.any(nowhere):
        on_face = _on_face(momentum, profile)
        x, y, z = (np.where(nowhere, there, given) for there, given in zip(on_face, position, strict=True))
        position = (x, y, z)
    columns: Columns = {"energy": block.need(clusters, "energy").astype(np.float64), **_place(position)}
    if source.subdetectors is not None:
        columns |= _parts(block, clusters, source.subdetectors)
    if (num_hits := block.lengths(clusters, "hits")) is not None:
        columns["num_hits"] = num_hits
    return columns


def _place(position: Vectors) -> Columns:
    x, y, z = position
    return {
        "x": x,
        "y": y,
        "z": z,
        "eta": np.arcsinh(z / np.maximum(np.hypot(x, y), _NOWHERE)),
        "phi": np.arctan2(y, x),
    }


def _on_face(momentum: Vectors, profile: Profile) -> Vectors:
    """Where straight lines from the origin meet the calorimeter; the origin for no direction."""
    across, along = np.hypot(momentum[0], momentum[1]), np.abs(momentum[2])
    with np.errstate(divide="ignore"):
        length = np.minimum(profile.face_radius / across, profile.face_z / along)
    length = np.where(np.isfinite(length), length, 0.0)
    x, y, z = (component * length for component in momentum)
    return x, y, z


def _parts(block: PodioBlock, clusters: Objects, subdetectors: Sequence[str]) -> Columns:
    """Energy per calorimeter, and their sum: what the hits of a cluster sum to, before any correction."""
    energies = block.held(clusters, "subdetectorEnergies")
    if energies is None:
        return {}
    owner, energy = energies
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    table = np.zeros((len(clusters), len(subdetectors)))
    named = place < len(subdetectors)
    table[owner[named], place[named]] = energy[named]
    parts = {
        f"{part}_energy": table[:, [name == part for name in subdetectors]].sum(axis=1)
        for part in ("ecal", "hcal", "muon")
    }
    total, whole = table.sum(axis=1), block.need(clusters, "energy")
    return {"energy": np.where(total > 0.0, total, whole), **parts}


def shapes_from_hits(hits: CalorimeterRead, cluster_of: Rows, clusters: Columns, profile: Profile) -> Columns:
    """Columns of clusters from their hits, by the same definitions as in the simulation.

    A cluster without hits counts as one of its energy at its place.
    """
    import torch

    from ringflow.elements.shapes import cluster_columns as columns_of

    num_clusters = len(clusters["energy"])
    inside = cluster_of >= 0
    energy = np.where(inside, hits.columns["energy"], 0.0).astype(np.float64)
    sums = np.bincount(cluster_of[inside], energy[inside], minlength=num_clusters)
    empty = np.flatnonzero(sums <= 0.0)
    # Hits of nothing would leave a cluster without a centre.
    label = np.where(inside & (sums[cluster_of] > 0.0), cluster_of, -1) if len(cluster_of) else cluster_of
    stand_in = {name: clusters[name][empty] for name in ("energy", "x", "y", "z")}
    stand_in["energy"] = np.maximum(stand_in["energy"], 1e-6)
    stand_in["subsystem"] = (np.abs(stand_in["z"]) >= profile.face_z).astype(np.int64)
    none = np.zeros(len(hits.columns["energy"]))
    tensors = {
        name: torch.from_numpy(
            np.concatenate([hits.columns.get(name, none), stand_in.get(name, np.zeros(len(empty)))]).astype(kind)
        )
        for name, kind in _HIT_TYPES.items()
    }
    layers = profile.layers
    in_front = {"ecal": 0, "hcal": layers.ecal if layers else 0, "yoke": layers.ecal + layers.hcal if layers else 0}
    made = columns_of(
        tensors,
        torch.from_numpy(np.concatenate([label, empty])),
        num_clusters,
        profile.face_radius,
        profile.face_z,
        [in_front[name.split("_")[0]] for name in SUBSYSTEMS],
    )
    columns: Columns = {name: values.numpy() for name, values in made.items()}
    columns["num_hits"][empty] = 0
    lacking = {*(() if hits.know_layers and layers else _BY_LAYER), *(() if "time" in hits.columns else ("time",))}
    return {name: values for name, values in columns.items() if name not in lacking}


_HIT_TYPES: dict[str, npt.DTypeLike] = {
    "energy": np.float64,
    "x": np.float64,
    "y": np.float64,
    "z": np.float64,
    "time": np.float64,
    "subsystem": np.int64,
    "layer": np.int64,
}
