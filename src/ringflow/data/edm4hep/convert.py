"""One block of an EDM4hep file as collections of the schema: what depends on what, in order, and the truth behind it.

Simulated secondaries are traced back to the generator particle they descend from. A particle that lives for less than a metre
and decayed before the calorimeter stands for its products, as in the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import InputFileError
from ringflow.data.edm4hep.podio import Array, Objects, PodioBlock, References, Rows, relation_of, spread
from ringflow.data.edm4hep.profile import FLIGHT_SUBTRACTED, HitSource, Profile, TrackSource, TruthSource
from ringflow.event.block import Collection, cast
from ringflow.event.particles import (
    BENDING,
    CHARGED_HADRON,
    ELECTRON,
    MUON,
    NEUTRAL_HADRON,
    NONE,
    PHOTON,
    SPEED_OF_LIGHT,
    label_of,
    lookup,
)
from ringflow.event.schema import COLLECTIONS, SUBSYSTEMS

if TYPE_CHECKING:
    from torch import Tensor

    from ringflow.elements.helix import Helix

Columns = dict[str, Array]

_POSITION = {axis: f"position.{axis}" for axis in "xyz"}
#: Our columns and the members that hold them; a track and its states are more than that.
_HIT = {"energy": "energy", **_POSITION}
_CANDIDATE: dict[str, str | tuple[str, ...]] = {
    "label": ("PDG", "type"),
    "charge": "charge",
    "energy": "energy",
    "mass": "mass",
    **{f"p{axis}": f"momentum.{axis}" for axis in "xyz"},
}
_STATE = {
    "location": "location",
    "d0": "D0",
    "phi": "phi",
    "omega": "omega",
    "z0": "Z0",
    "tan_lambda": "tanLambda",
    **{axis: f"referencePoint.{axis}" for axis in "xyz"},
}

#: Masses (GeV) below which a particle without a PDG number is an electron, or a muon, or (if neutral) a photon.
_ELECTRON_BELOW, _MUON_BELOW, _PHOTON_BELOW = 0.05, 0.12, 0.3

AT_INTERACTION_POINT, AT_LAST_HIT, AT_CALORIMETER = 1, 3, 4
#: States in the order in which they describe the track at the beam: there, unnamed, at a vertex, first hit, last hit.
_NEAR_BEAM = (AT_INTERACTION_POINT, 0, 5, 2, 3, AT_CALORIMETER)
_STRAIGHT = 1e-9  # 1/mm; an omega of nothing would be an infinite momentum
#: A particle that turns more often has lost its energy on the way, as in the simulation.
_MOST_TURNS = 2.0
#: Parameters of a state in the order of their covariance.
_FITTED = ("d0", "phi", "omega", "z0", "tan_lambda")
_UNSET_TIME = -1.0
_POINT, _DIRECTION, _LAST = (tuple(f"{name}{axis}" for axis in "xyz") for name in ("calo_", "calo_d", "last_"))

#: Position of an object that was never given one.
_NOWHERE = 1e-3  # mm from the origin
#: Columns of clusters that need what not every profile or file tells of hits.
_BY_LAYER, _BY_TIME = {"start_layer", "front_energy"}, {"time"}


class Conversion:
    """Reads one block; the profile names nothing that the file has not, save links."""

    def __init__(self, block: PodioBlock, profile: Profile) -> None:
        self._block, self._profile = block, profile
        tracks, clusters, hits = profile.tracks, profile.clusters, profile.hits
        self._tracks = block.objects([tracks.collection], "chi2") if tracks else None
        self._clusters = block.objects(clusters.collections, "energy") if clusters else None
        self._hits = block.objects([source.collection for source in hits], "energy") if hits else None
        self._candidates = block.objects([profile.candidates], "energy")
        self._particles = block.objects([profile.truth.particles], "PDG") if profile.truth else None
        #: Event of every row, and columns; indices are rows.
        self._made: dict[str, tuple[Rows, Columns]] = {}

    def references(self) -> list[tuple[References | None, Objects | None]]:
        """What in the block refers to which objects, from the best known to the least."""
        source, candidates = self._profile.truth, self._candidates
        links = read_links(self._block, [source.candidate_links if source else None])
        return [
            (relation_of(self._particles, "parents"), self._particles),
            (links[1] if links else None, candidates),
            (relation_of(candidates, "tracks"), self._tracks),
            (relation_of(candidates, "clusters"), self._clusters),
            (relation_of(self._clusters, "hits"), self._hits),
        ]

    def collections(self) -> dict[str, Collection]:
        """All collections in the order of the schema; indices count within the event."""
        if self._candidates is not None:
            self._made["candidate"] = self._candidates.event, self._candidate_columns(self._candidates)
        if self._tracks is not None and self._profile.tracks is not None:
            self._made["track"] = self._tracks.event, track_columns(self._tracks, self._profile.tracks, self._profile)
        if self._hits is not None:
            self._made["hit"] = self._hits.event, hit_columns(self._hits, self._profile)
        if self._clusters is not None:
            self._made["cluster"] = self._clusters.event, self._cluster_columns(self._clusters)
        if self._particles is not None:
            self._truth(self._particles)
        return self._placed()

    def _candidate_columns(self, candidates: Objects) -> Columns:
        columns = candidates.table(_CANDIDATE)
        columns["charge"] = np.rint(columns["charge"])
        columns["label"] = _label(columns["label"], columns["charge"], columns.pop("mass"))
        for column, objects in (("track", self._tracks), ("cluster", self._clusters)):
            if objects is not None:
                columns[column] = first_of(candidates.relation(f"{column}s"), objects, len(candidates))
        return columns

    def _cluster_columns(self, clusters: Objects) -> Columns:
        """Of clusters, with the shapes that their hits give; hits get their cluster."""
        columns = cluster_columns(clusters, self._candidates, self._profile)
        references = clusters.relation("hits")
        if self._hits is not None and references is not None:
            hit, hits = self._hits.locate(references), self._made["hit"][1]
            hits["cluster"] = np.full(len(self._hits), -1, np.int64)
            hits["cluster"][hit[hit >= 0]] = references.owner[hit >= 0]
            columns |= shapes_from_hits(hits, columns, self._profile)
        return columns

    def _truth(self, everything: Objects) -> None:
        source = self._profile.truth
        assert source is not None, "it names the particles"
        particles = read_particles(everything, source, self._profile)
        self._made["particle"] = particles.event, dict(particles.columns)
        track_particle, quality = np.zeros(0, np.int64), np.zeros(0)
        if self._tracks is not None:
            columns, size = self._made["track"][1], len(self._tracks)
            track_particle = np.full(size, -1, np.int64)
            links = self._links(source.track_links, "tracks", self._tracks, particles, np.ones(size))
            if links is not None:  # the particle that weighs most
                order = np.argsort(links.energy, kind="stable")
                track_particle[links.element[order]] = links.particle[order]
                columns["particle"] = track_particle
            quality = columns.get("num_hits", np.zeros(size)) * 1e6 + np.minimum(columns["pt"], 1e5)
        from_hits = from_clusters = None
        if self._hits is not None:
            energy = self._made["hit"][1]["energy"]
            from_hits = linked(self._block, source.hit_links, self._hits, particles, energy)
            from_hits = from_hits or through_simulated_hits(self._block, source, self._hits, particles, energy)
        cluster_of = self._made["hit"][1].get("cluster") if self._hits is not None else None
        if self._clusters is not None and from_hits is not None and cluster_of is not None:
            from_clusters = of_clusters(from_hits, cluster_of, len(self._clusters), particles)
        elif self._clusters is not None:
            energy = self._made["cluster"][1]["energy"]
            from_clusters = self._links(source.cluster_links, "clusters", self._clusters, particles, energy)
        for element, name, found in (("hit", "hit_target", from_hits), ("cluster", "target", from_clusters)):
            if found is not None:
                size = len(self._made[element][0])
                event, columns, more = targets(found, size, particles, track_particle, quality, element)
                self._made[name] = event, columns
                pairs = {element: found.element, "particle": found.particle, "energy": found.energy}
                self._made[f"{element}_link"] = particles.event[found.particle], pairs
                self._made["particle"][1].update(more)

    def _links(
        self, collection: str | None, relation: str, elements: Objects, particles: Particles, energy: Array
    ) -> Links | None:
        """Links of tracks or clusters themselves, else those of the reconstructed particles that have them."""
        assert self._profile.truth is not None
        through, candidates = self._profile.truth.candidate_links, self._candidates
        return linked(self._block, collection, elements, particles, energy) or through_candidates(
            through, candidates, relation, elements, particles, energy
        )

    def _placed(self) -> dict[str, Collection]:
        """In the schema's order and types, with rows sorted by event and indices that count within it."""
        sizes = {name: np.bincount(made[0], minlength=len(self._block.events)) for name, made in self._made.items()}
        first = {name: np.cumsum(number) - number for name, number in sizes.items()}
        nowhere, placed = np.zeros(len(self._block.events), np.int64), {}
        for name in (name for name in COLLECTIONS if name in self._made):
            event, columns = self._made[name]
            for column in COLLECTIONS[name]:
                if column.points_to is not None and column.name in columns:
                    index = columns[column.name]
                    start = first.get(column.points_to, nowhere)[event]
                    columns[column.name] = np.where(index >= 0, index - start, -1)
            order = np.argsort(event, kind="stable")
            placed[name] = cast(name, sizes[name], {column: values[order] for column, values in columns.items()})
        return placed


def _label(pdg: Rows, charge: Array, mass: Array) -> Array:
    """Class of a reconstructed particle: by its PDG number, else by charge and mass."""
    charged = np.where(mass < _ELECTRON_BELOW, ELECTRON, np.where(mass < _MUON_BELOW, MUON, CHARGED_HADRON))
    neutral = np.where(mass < _PHOTON_BELOW, PHOTON, NEUTRAL_HADRON)
    known = label_of(pdg)
    unknown = (pdg == 0) | (known == NONE)
    return np.where(unknown, np.where(charge != 0, charged, neutral), known)


def lacking_of_states(block: PodioBlock, source: TrackSource | None) -> set[str]:
    """Columns of tracks that no state of theirs tells; many files have times but never fill them."""
    tracks = block.objects([source.collection], "chi2") if source else None
    location = tracks.held("trackStates", "location") if tracks is not None else None
    if tracks is None or location is None:
        return set()
    time = tracks.held("trackStates", "time")
    behind = np.isin(location[1], (AT_LAST_HIT, AT_CALORIMETER))
    lacking = set() if time is not None and np.any(_is_measured(time[1]) & behind) else {"time"}
    return lacking if np.any(location[1] == AT_LAST_HIT) else lacking | set(_LAST)


def _is_measured(time: Array) -> Array:
    """Whether times of states were ever set."""
    return ~np.isin(time, (0.0, _UNSET_TIME))


def track_columns(tracks: Objects, source: TrackSource, profile: Profile) -> Columns:
    """Columns of the `track` collection without truth: functions of hits and fitted parameters, as in the simulation."""
    import torch

    found = {ours: tracks.held("trackStates", theirs) for ours, theirs in _STATE.items()}
    held = {name: part for name, part in found.items() if part is not None}
    if len(held) < len(found):
        raise InputFileError(
            f"{tracks.block.file.path}: {tracks.names[0]} has no track states; name another track collection"
        )
    owner, location = held["omega"][0], held["location"][1]
    states = {name: torch.from_numpy(values) for name, (_, values) in held.items()}
    straight = torch.where(states["omega"] < 0.0, -_STRAIGHT, _STRAIGHT)
    states["omega"] = torch.where(states["omega"].abs() < _STRAIGHT, straight, states["omega"])
    near = _nearest_beam(tracks, owner, location)
    # A state in the origin was never set.
    placed = np.where(np.hypot(held["x"][1], held["y"][1]) > 1.0, location, -1)
    last, face = (_state_at(place, owner, placed, len(tracks)) for place in (AT_LAST_HIT, AT_CALORIMETER))

    fitted = {name: values[near] for name, values in states.items()}
    d0, z0, phi = _helix(fitted).perigee()
    made: dict[str, Tensor] = {
        "pt": BENDING * profile.field / fitted["omega"].abs(),
        "eta": torch.asinh(fitted["tan_lambda"]),
        "phi": phi,
        "charge": fitted["omega"].sign(),
        "d0": d0,
        "z0": z0,
    }
    covariance = tracks.held("trackStates", "covMatrix.values", "covMatrix")
    if covariance is not None:
        lower = covariance[1][near, :15] if len(near) else np.zeros((0, 15))  # nothing has no second axis
        made |= _uncertainties(fitted, torch.from_numpy(lower))
    # From the last hit, else from the beam, along the fitted helix; what does not get to the face stays at its last hit, or
    # where it turns back.
    beam = {**fitted, "d0": -d0, "z0": z0, "phi": phi, **{axis: torch.zeros_like(d0) for axis in "xyz"}}
    has_last = torch.from_numpy(last >= 0)
    start = _helix({name: torch.where(has_last, states[name][last], beam[name]) for name in beam})
    path, reaches = _to_face(start, profile)
    path = torch.where(reaches, path, torch.where(has_last, 0.0, torch.pi / start.turn.abs()))
    given = reaches & torch.from_numpy(face >= 0)
    at_face, nothing = _helix({name: values[face] for name, values in states.items()}), torch.zeros_like(path)
    made["reaches_calo"] = reaches
    for names, along, at in (
        (_POINT, start.position(path), at_face.position(nothing)),
        (_DIRECTION, start.direction(path), at_face.direction(nothing)),
    ):
        made |= {name: torch.where(given, b, a) for name, a, b in zip(names, along, at, strict=True)}
    for name, point, place in zip(_LAST, _POINT, start.position(nothing), strict=True):
        made[name] = torch.where(has_last, place, made[point])
    columns: Columns = {name: values.numpy() for name, values in made.items()}
    if (times := tracks.held("trackStates", "time")) is not None:
        time = times[1]
        # A track whose time was not measured counts as prompt.
        columns["time"] = distance(columns, "calo_") / SPEED_OF_LIGHT
        later = (start.length(path) / SPEED_OF_LIGHT).numpy()
        for rows, known, add in ((last, last >= 0, later), (face, given.numpy(), 0.0)):
            columns["time"] = np.where(known & _is_measured(time[rows]), time[rows] + add, columns["time"])
    optional = {"chi2": tracks.column("chi2"), "ndf": tracks.column("ndf"), "num_hits": tracks.lengths("trackerHits")}
    optional["dedx"] = _energy_loss(tracks, source)
    return columns | {name: values for name, values in optional.items() if values is not None}


def distance(columns: Mapping[str, Array], prefix: str = "") -> Array:
    """From the origin."""
    return np.sqrt(sum(np.square(columns[f"{prefix}{axis}"], dtype=np.float64) for axis in "xyz"))


def _state_at(place: int, owner: Rows, location: Rows, num_tracks: int) -> Rows:
    """The state of each track at a place, -1 for none."""
    rows = np.flatnonzero(location == place)
    found = np.full(num_tracks, -1, np.int64)
    found[owner[rows]] = rows
    return found


def _helix(state: Mapping[str, Tensor]) -> Helix:
    """Of track states, from their points of closest approach to their reference points; signs there are those of EDM4hep."""
    import torch

    from ringflow.elements.helix import Helix

    x = state["x"] - state["d0"] * torch.sin(state["phi"])
    y = state["y"] + state["d0"] * torch.cos(state["phi"])
    return Helix(x, y, state["z"] + state["z0"], state["phi"], state["tan_lambda"], -state["omega"])


def _uncertainties(state: Mapping[str, Tensor], lower: Tensor) -> dict[str, Tensor]:
    """From the lower triangle of the covariance; what was fitted elsewhere is brought to the beam."""
    import torch

    row, column = torch.tril_indices(len(_FITTED), len(_FITTED))
    covariance = torch.zeros((len(lower), len(_FITTED), len(_FITTED)), dtype=lower.dtype)
    covariance[:, row, column] = covariance[:, column, row] = lower
    with torch.enable_grad():
        fitted = {name: state[name].clone().requires_grad_() for name in _FITTED}
        at_beam = dict(zip(("d0", "z0", "phi"), _helix({**state, **fitted}).perigee(), strict=True))
        at_beam |= {name: fitted[name] for name in ("omega", "tan_lambda")}
        sigma = {}
        for name, values in at_beam.items():
            slopes = torch.autograd.grad(
                values.sum(), tuple(fitted.values()), retain_graph=True, materialize_grads=True
            )
            variance = torch.einsum("in,nij,jn->n", torch.stack(slopes), covariance, torch.stack(slopes))
            sigma[name] = variance.nan_to_num(0.0, 0.0, 0.0).clamp_min(0.0).sqrt()
    return {
        "sigma_pt": sigma["omega"] / state["omega"].abs(),
        "sigma_theta": sigma["tan_lambda"] / (1.0 + state["tan_lambda"] ** 2),
        **{f"sigma_{name}": sigma[name] for name in ("phi", "d0", "z0")},
    }


def _to_face(helix: Helix, profile: Profile) -> tuple[Tensor, Tensor]:
    """Path to the calorimeter face, and whether it is met before too many turns."""
    import torch

    endcaps = profile.endcaps or ((profile.face_z, 0.0, math.inf),)
    path, _ = helix.to_faces(profile.face_radius, profile.sides or 0, profile.half_length or profile.face_z, endcaps)
    return path, path <= 2.0 * torch.pi * _MOST_TURNS / helix.turn.abs()


def _nearest_beam(tracks: Objects, owner: Rows, location: Rows) -> Rows:
    """The state of each track that describes it at the beam."""
    rank = [_NEAR_BEAM.index(place) if place in _NEAR_BEAM else 9 for place in location.tolist()]
    order = np.lexsort((np.array(rank), owner))
    track, first = np.unique(owner[order], return_index=True)
    if len(track) != len(tracks):
        lacking = int(np.setdiff1d(np.arange(len(tracks)), track)[0])
        event = tracks.block.events[int(tracks.event[lacking])]
        raise InputFileError(
            f"{tracks.block.file.path}: a track of entry {event} in {tracks.names[0]} has no state; "
            "it has no momentum, so leave it out of the file"
        )
    return order[first]


def _energy_loss(tracks: Objects, source: TrackSource) -> Array | None:
    """dE/dx in units of a minimum-ionising particle; nothing if the profile does not say what that is."""
    if source.mip_dedx is None:
        return None
    if source.dedx_collection is None:
        values = tracks.column("dEdx")
        return None if values is None else values / source.mip_dedx
    measured = tracks.block.objects([source.dedx_collection], "dQdx.value")
    if measured is None or (references := measured.reference("track")) is None:
        return None
    track, loss = tracks.locate(references), np.zeros(len(tracks))
    loss[track[track >= 0]] = measured.need("dQdx.value")[track >= 0]
    return loss / source.mip_dedx


def hit_columns(hits: Objects, profile: Profile) -> Columns:
    """Columns of the `hit` collection without clusters."""
    columns, sources = hits.table(_HIT), profile.hits or ()
    if (time := hits.column("time")) is not None:
        columns["time"] = time
        if profile.hit_times == FLIGHT_SUBTRACTED and np.any(time):  # nothing but zeros was never filled
            columns["time"] = time + distance(columns) / SPEED_OF_LIGHT

    def of_source(fact: Callable[[HitSource], float]) -> Array:
        return np.array([fact(source) for source in sources])[hits.source]

    is_endcap = np.abs(columns["z"]) >= of_source(lambda source: source.endcap_from or np.inf)
    columns["subsystem"] = of_source(lambda source: SUBSYSTEMS.index(source.subsystem)) | is_endcap
    bits = [source.layer for source in sources if source.layer is not None]
    cells = hits.column("cellID")
    if cells is not None and len(bits) == len(sources):
        offset, width, first = np.array([(part.offset, part.width, part.first) for part in bits]).T[:, hits.source]
        number = (cells.astype(np.uint64) >> offset.astype(np.uint64)).astype(np.int64) & ((1 << width) - 1)
        columns["layer"] = np.clip(number - first, 0, None)
    return columns


def cluster_columns(clusters: Objects, candidates: Objects | None, profile: Profile) -> Columns:
    """Columns of the `cluster` collection that need no hits.

    A cluster without a position is put on the calorimeter face in the direction of its reconstructed particle.
    """
    position, references = clusters.three("position"), relation_of(candidates, "clusters")
    nowhere = sum(component**2 for component in position) < _NOWHERE**2
    if candidates is not None and references is not None and np.any(nowhere):
        row, momentum = clusters.locate(references), np.zeros(position.shape)
        momentum[:, row[row >= 0]] = candidates.three("momentum")[:, references.owner[row >= 0]]
        position = np.where(nowhere, _on_face(momentum, profile), position)
    x, y, z = position
    columns: Columns = {"energy": clusters.need("energy"), "x": x, "y": y, "z": z}
    columns |= {"eta": np.arcsinh(z / np.maximum(np.hypot(x, y), _NOWHERE)), "phi": np.arctan2(y, x)}
    names = profile.clusters.subdetectors if profile.clusters else None
    energies = clusters.held("subdetectorEnergies") if names is not None else None
    if names is not None and energies is not None:
        owner, energy = energies
        place = np.arange(len(owner)) - np.searchsorted(owner, owner)
        table, named = np.zeros((len(clusters), len(names))), place < len(names)
        table[owner[named], place[named]] = energy[named]
        for part in ("ecal", "hcal", "muon"):
            columns[f"{part}_energy"] = table[:, [name == part for name in names]].sum(axis=1)
        # Their sum is what the hits of a cluster sum to, before any correction.
        total = table.sum(axis=1)
        columns["energy"] = np.where(total > 0.0, total, columns["energy"])
    if (num_hits := clusters.lengths("hits")) is not None:
        columns["num_hits"] = num_hits
    return columns


def _on_face(momentum: Array, profile: Profile) -> Array:
    """Where straight lines from the origin meet the calorimeter; the origin for no direction."""
    with np.errstate(divide="ignore"):
        across, along = np.hypot(momentum[0], momentum[1]), np.abs(momentum[2])
        length = np.minimum(profile.face_radius / across, profile.face_z / along)
    return momentum * np.where(np.isfinite(length), length, 0.0)


def shapes_from_hits(hits: Columns, clusters: Columns, profile: Profile) -> Columns:
    """Columns of clusters from their hits, by the same definitions as in the simulation.

    A cluster without hits counts as one of its energy at its place.
    """
    import torch

    from ringflow.elements.shapes import Face
    from ringflow.elements.shapes import cluster_columns as columns_of

    cluster_of, num_clusters = hits["cluster"], len(clusters["energy"])
    inside = cluster_of >= 0
    sums = np.bincount(cluster_of[inside], hits["energy"][inside], minlength=num_clusters)
    empty = np.flatnonzero(sums <= 0.0)
    # Hits of nothing would leave a cluster without a centre.
    label = np.where(inside & (sums[cluster_of] > 0.0), cluster_of, -1) if len(cluster_of) else cluster_of
    stand_in = {name: clusters[name][empty] for name in ("energy", "x", "y", "z")}
    stand_in["energy"] = np.maximum(stand_in["energy"], 1e-6)
    stand_in["subsystem"] = (np.abs(stand_in["z"]) >= profile.face_z).astype(np.int64)
    nothing = np.zeros(len(cluster_of)), np.zeros(len(empty))
    codes = ("subsystem", "layer")
    values = {
        name: np.concatenate([hits.get(name, nothing[0]), stand_in.get(name, nothing[1])])
        for name in ("energy", "x", "y", "z", "time", *codes)
    }
    layers = profile.layers
    in_front = {"ecal": 0, "hcal": layers.ecal if layers else 0, "yoke": layers.ecal + layers.hcal if layers else 0}
    made = columns_of(
        {
            name: torch.from_numpy(part.astype(np.int64 if name in codes else np.float64))
            for name, part in values.items()
        },
        torch.from_numpy(np.concatenate([label, empty])),
        num_clusters,
        Face(profile.face_radius, profile.face_z, profile.sides or 0),
        [in_front[name.split("_")[0]] for name in SUBSYSTEMS],
    )
    made["num_hits"][empty] = 0
    lacking = (set() if "layer" in hits and layers else _BY_LAYER) | (set() if "time" in hits else _BY_TIME)
    return {name: values.numpy() for name, values in made.items() if name not in lacking}


# The truth: generator particles, what each left where, and targets by the definition of the simulation

_STABLE = 1  # generator status
_OVERLAY_BIT = 23  # of the simulator status
_SHORT_LIVED = 1000.0  # mm, c tau; pions, kaons, muons, neutrons and K0L live longer
_NO_CHARGE = 8  # charges beyond are not charges: some files mark unknown ones so
_LONGEST_CHAIN = 200
_PARTICLE = {
    "pdg": "PDG",
    "px": "momentum.x",
    "py": "momentum.y",
    "pz": "momentum.z",
    "mass": "mass",
    "charge": "charge",
    "x": "vertex.x",
    "y": "vertex.y",
    "z": "vertex.z",
    "time": "time",
}


class Links(NamedTuple):
    """Who left how much where; rows of elements and of particles."""

    element: Rows
    particle: Rows
    energy: npt.NDArray[np.float64]


class Particles(NamedTuple):
    """The particles of the truth: their columns, and which of them every particle of the file belongs to (-1: none)."""

    all: Objects
    event: Rows
    columns: Columns
    belongs_to: Rows


def read_particles(everything: Objects, source: TruthSource, profile: Profile) -> Particles:
    """Stable generator particles, neutrinos included."""
    pdg, parent = everything.need("PDG"), first_of(everything.relation("parents"), everything, len(everything))
    is_true = _final_state(everything, pdg, parent, profile)
    rows = np.flatnonzero(is_true)
    number = np.full(len(pdg), -1, np.int64)
    number[rows] = np.arange(len(rows))
    columns = {name: values[rows] for name, values in everything.table(_PARTICLE).items()}
    px, py, pz, charge = (columns[name] for name in ("px", "py", "pz", "charge"))
    columns["energy"] = np.sqrt(px**2 + py**2 + pz**2 + np.clip(columns.pop("mass"), 0.0, None) ** 2)
    columns["charge"] = np.rint(np.where(np.abs(charge) > _NO_CHARGE, lookup(columns["pdg"], "charge"), charge))
    columns["time"] = columns["time"] * (source.time_unit or 1.0)
    status = everything.column("simulatorStatus")
    columns["interaction"] = np.zeros(len(rows)) if status is None else (status[rows] >> _OVERLAY_BIT) & 1
    return Particles(everything, everything.event[rows], columns, number[_ancestor(is_true, parent)])


def first_of(references: References | None, objects: Objects, owners: int) -> Rows:
    """The first of these objects that each owner refers to, -1 for none."""
    first = np.full(owners, -1, np.int64)
    if references is not None:
        row = objects.locate(references)
        owner, place = np.unique(references.owner[row >= 0], return_index=True)
        first[owner] = row[row >= 0][place]
    return first


def _final_state(particles: Objects, pdg: Rows, parent: Rows, profile: Profile) -> Array:
    """Which particles are the truth: stable ones, or the products of those that decayed on the way."""
    is_true: Array = np.asarray(particles.need("generatorStatus") == _STABLE)
    x, y, z = particles.three("endpoint")
    has_products = np.zeros(len(pdg), bool)
    has_products[parent[parent >= 0]] = True
    decays = has_products & (lookup(pdg, "ctau") < _SHORT_LIVED)
    decays &= (np.hypot(x, y) < profile.face_radius) & (np.abs(z) < profile.face_z)
    for _ in range(_LONGEST_CHAIN):
        decaying = is_true & decays
        if not decaying.any():
            break
        is_true = (is_true & ~decaying) | ((parent >= 0) & decaying[parent])
    return is_true


def _ancestor(is_true: Array, parent: Rows) -> Rows:
    """Row of the first of a particle and its ancestors that belongs to the truth; the last row reached if none does."""
    row = np.arange(len(parent))
    for _ in range(_LONGEST_CHAIN):
        climbs = ~is_true[row] & (parent[row] >= 0)
        if not climbs.any():
            break
        row = np.where(climbs, parent[row], row)
    return row


def read_links(block: PodioBlock, names: Sequence[str | None]) -> tuple[Array, References, References] | None:
    """Weight and both ends of the links of those collections that the file has."""
    links = block.objects(names, "weight")
    if links is None:
        return None
    start, end = links.reference("from", "rec"), links.reference("to", "sim")
    return None if start is None or end is None else (links.need("weight"), start, end)


def linked(
    block: PodioBlock, collection: str | None, elements: Objects, particles: Particles, energy: Array
) -> Links | None:
    """Links from elements to particles, in whichever direction the file stores them."""
    found = read_links(block, [collection])
    if found is None:
        return None
    weight, start, end = found
    element, particle = elements.locate(start), particles.all.locate(end)
    if len(weight) and not np.any((element >= 0) & (particle >= 0)):
        element, particle = elements.locate(end), particles.all.locate(start)
    return _shared(element, particle, weight, particles, energy)


def _shared(element: Rows, particle: Rows, weight: Array, particles: Particles, energy: Array) -> Links:
    """The energy of each element, divided among the particles linked to it by weight; by their energy if no link weighs."""
    truth = np.where(particle >= 0, particles.belongs_to[particle], -1) if len(particle) else particle
    good = (element >= 0) & (truth >= 0)
    element, truth, weight = element[good], truth[good], np.clip(weight[good], 0.0, None)
    total = np.bincount(element, weight, minlength=len(energy))[element]
    weight = np.where(total > 0.0, weight, particles.columns["energy"][truth])
    return _merge(element, truth, weight, particles, energy)


def _merge(element: Rows, truth: Rows, weight: Array, particles: Particles, energy: Array) -> Links:
    """One link per pair, with the energy of the element in proportion to the weights."""
    size = max(len(particles.event), 1)
    key, pair = np.unique(element * size + truth, return_inverse=True)
    weight = np.bincount(pair, weight, minlength=len(key)) if len(key) else np.zeros(0)
    element, truth = key // size, key % size
    total = np.bincount(element, weight, minlength=len(energy))[element]
    share = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0.0)
    return Links(element, truth, share * energy[element])


def through_simulated_hits(
    block: PodioBlock, source: TruthSource, hits: Objects, particles: Particles, energy: Array
) -> Links | None:
    """Links of hits by way of the simulated hits they were made of, and the contributions to those."""
    simulated = block.objects(source.simulated_hits or (), "energy")
    contributions = block.objects(source.contributions or (), "energy")
    found = read_links(block, source.simulated_hit_links or ())
    if simulated is None or contributions is None or found is None:
        return None
    held, who = simulated.relation("contributions"), contributions.reference("particle")
    if held is None or who is None:
        return None
    hit_of = np.full(len(simulated), -1, np.int64)
    hit, made_of = hits.locate(found[1]), simulated.locate(found[2])
    both = (hit >= 0) & (made_of >= 0)
    hit_of[made_of[both]] = hit[both]
    contribution = contributions.locate(held)
    good = contribution >= 0
    element, contribution = hit_of[held.owner[good]], contribution[good]
    particle = particles.all.locate(who)[contribution]
    return _shared(element, particle, contributions.need("energy")[contribution], particles, energy)


def through_candidates(
    collection: str | None,
    candidates: Objects | None,
    relation: str,
    elements: Objects,
    particles: Particles,
    energy: Array,
) -> Links | None:
    """Links of the tracks or clusters of reconstructed particles, for files that link these only."""
    held = relation_of(candidates, relation)
    if candidates is None or held is None or (found := read_links(candidates.block, [collection])) is None:
        return None
    weight, start, end = found
    candidate, particle = candidates.locate(start), particles.all.locate(end)
    order = np.argsort(candidate, kind="stable")
    first, last = (np.searchsorted(candidate[order], held.owner, side=side) for side in ("left", "right"))
    link = order[spread(first, last - first)]
    element = np.repeat(elements.locate(held), last - first)
    return _shared(element, particle[link], weight[link], particles, energy)


def of_clusters(hit_links: Links, cluster_of: Rows, num_clusters: int, particles: Particles) -> Links:
    """What each particle left in each cluster, from what it left in the hits."""
    inside = cluster_of[hit_links.element] >= 0
    cluster, left = cluster_of[hit_links.element][inside], hit_links.energy[inside]
    energy = np.bincount(cluster, left, minlength=num_clusters)
    return _merge(cluster, hit_links.particle[inside], left, particles, energy)


def targets(
    links: Links, num_elements: int, particles: Particles, track_particle: Rows, quality: Array, element: str
) -> tuple[Rows, Columns, Columns]:
    """The event of each target, the columns of the target collection, and those that particles get; rows as indices."""
    import torch

    from ringflow.elements.truth import TruthInput, assign_targets

    tracks, of = np.flatnonzero(track_particle >= 0), particles.columns
    momentum = np.stack([of[name] for name in ("px", "py", "pz", "energy")], axis=1)
    made = assign_targets(
        TruthInput(
            label=torch.from_numpy(label_of(of["pdg"]).astype(np.int64)),
            charge=torch.from_numpy(of["charge"]),
            momentum=torch.from_numpy(momentum),
            track_particle=torch.from_numpy(track_particle[tracks]),
            track_quality=torch.from_numpy(quality[tracks]),
            **{f"link_{name}": torch.from_numpy(values) for name, values in links._asdict().items()},
            num_elements=num_elements,
        ),
        element,
    )
    columns: Columns = {name: column.numpy() for name, column in made.columns.items()}
    if len(tracks):
        columns["track"] = np.where(columns["track"] >= 0, tracks[columns["track"]], -1)
    name = "target" if element == "cluster" else "hit_target"
    of_particles = {"label": made.particle_label, "calo_energy": made.particle_energy, name: made.target_of}
    return particles.event[made.owner.numpy()], columns, {name: part.numpy() for name, part in of_particles.items()}
