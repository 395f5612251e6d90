"""Rule-based particle flow, in the spirit of Pandora and of the CMS algorithm, on tracks, clusters and hits.

1. Follow every track into the calorimeter and link it to the clusters whose hits lie on it. Tracks of one particle, found twice
   or in pieces, count once (`ringflow.baseline.tracks`).
2. Muons by their penetrating trace, electrons by an electromagnetic cluster that carries their momentum (their radiated
   photons are given back to them), all other tracks are charged hadrons with the momentum of the track.
3. Clusters with little momentum across a track (their energy times their angle against it, seen from the face) are pieces of
   its shower, as nuclear interactions give pieces little of it; unless momentum does not explain them, or they lie nearer to
   the line from the collision through a larger shower of nobody.
4. Photon cores with more momentum than that across all tracks are taken out of the hits of a group of clusters. Where a group
   has more energy than its tracks explain, so are others, and what is still too much is a neutral hadron, if it is much (GeV)
   and pulls to a side: the product of the excess and of the momentum that all hits together have across their tracks counts.
   A shower that fluctuates is balanced around its track, a neutral particle beside it is not.
5. Clusters nobody owns are photons if they look like one, else neutral hadrons, pieces joined.

The loops over the tracks, hits and clusters of one event are compiled by numba: they branch on every pair and allocate little.
Constants of a detector are derived from particle guns by `ringflow calibrate --baseline`. Lengths are mm, energies GeV.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
from numba import njit
from pydantic import Field, model_validator

from ringflow.base.config import Settings, require_curve
from ringflow.base.errors import UsageError
from ringflow.base.words import did_you_mean
from ringflow.baseline.tracks import fits_of, owners
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, PHOTON

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Mass a candidate of each class is given: pion, long-lived kaon, electron, muon.
MASS = np.zeros(8)
MASS[[CHARGED_HADRON, NEUTRAL_HADRON, ELECTRON, MUON]] = (0.13957, 0.49761, 0.000511, 0.10566)

_COLUMNS = ("label", "charge", "px", "py", "pz", "energy", "track", "cluster")
BENDING = 0.299792458e-3  # GeV / (T mm)
#: How much further from a track the centre of a cluster may lie than a hit.
_COARSER = np.array([6.0, 2.0, 1.0])
#: Squared distance (mm^2) beyond which a hit has nothing to do with a track entering the calorimeter there.
_FAR2 = 2.2e3**2
#: How far before the face (mm) a hit, or a piece of a shower, may lie along a track.
_BEFORE_FACE, _PIECE_BEFORE_FACE = -20.0, -60.0
#: Hits further in azimuth (rad) from where a track enters the calorimeter are not looked at.
_SECTOR = 0.5
#: How far before the face (mm) the pieces of a shower seem to come from.
_BEGINNING = 20.0
#: What looks like a photon is a piece of a shower up to this share of the momentum across the track that other pieces have.
_PHOTON_SHARE = 0.0625
#: A photon is taken out of a group as long as the rest is not further below the momentum of its tracks, in standard deviations;
#: any where there is too much, from this share on of what makes a neutral hadron, and up to so many times of it.
_DEFICIT_SIGMAS, _HIDDEN_SHARE, _HIDDEN_TIMES = 2.0, 0.5, 1.25
_DENSITY_RADIUS = 8.0  # mm, over which hits are summed to find a core
_TRACK_CORE = 7.0  # mm: hits so near a track are the track's
_FIRST_LAYER = 6  # a photon starts before this layer
_MOST_CORES = 12
_LEAST_PULL = 1e-3  # GeV, lest something is divided by none
#: Share of a photon's energy within the core radius; the rest is in the tail.
CORE_SHARE = 0.92

#: More than any event has, and few enough for compiled code.
_MANY = 1_000_000

CONSTANTS = Path(__file__).parent / "detectors"


class LinkConstants(Settings):
    """When a track and a hit or cluster belong together."""

    ecal_distance: float = Field(gt=0)  # of a hit from the track
    hcal_distance: float = Field(gt=0)
    min_hits: int = Field(ge=1, le=_MANY)  # near the track, to link it to their cluster
    fragment_distance: float = Field(gt=0)  # of the centre of a piece of a hadronic shower from the track or its shower
    fragment_momentum: float = Field(gt=0)  # across the track, that a piece has at most (GeV)


class HadronConstants(Settings):
    """Energy scale and resolution of hadronic showers: sigma^2 = noise^2 + stochastic^2 E."""

    energy: list[float]  # at the electromagnetic scale
    factor: list[float]  # to the hadronic scale, linear in ln E between
    noise: float = Field(ge=0)
    stochastic: float = Field(ge=0)
    #: Energy above that of the tracks, times the momentum across them, that makes a neutral particle (GeV^2).
    excess: float = Field(ge=0)
    absorb_sigmas: float = Field(ge=0)  # up to this excess pieces of showers are given to the tracks

    @model_validator(mode="after")
    def _is_curve(self) -> Self:
        require_curve(self.energy, self.factor)
        return self


class PhotonConstants(Settings):
    """Shape of photon showers: upper limits that all but a few per cent of photons keep, at some energies."""

    energy: list[float]
    width: list[float]
    depth: list[float]
    start_layer: int = Field(ge=-_MANY, le=_MANY)
    ecal_share: float
    core_radius: float  # of a photon hidden in a charged shower
    core_energy: float
    core_layer: float  # mean layer it may have at most
    core_track_distance: float

    @model_validator(mode="after")
    def _are_curves(self) -> Self:
        require_curve(self.energy, self.width, self.depth)
        return self


class LeptonConstants(Settings):
    """Electrons and muons."""

    electron_ratio: tuple[float, float]  # accepted calorimeter energy over track momentum
    brem_angle: float
    muon_layers: int = Field(ge=1, le=_MANY)  # HCAL layers with a hit on the track
    muon_hcal_energy: float  # largest energy on the track in the HCAL
    muon_yoke_hits: int = Field(ge=-_MANY, le=_MANY)
    muon_yoke_distance: float
    muon_momentum: float


class BaselineConstants(Settings):
    """Everything the rules need to know about a detector."""

    detector: str
    field: float = Field(gt=0)
    face_radius: float = Field(gt=0)
    link: LinkConstants
    hadron: HadronConstants
    photon: PhotonConstants
    lepton: LeptonConstants


@cache
def load_constants(detector: str) -> BaselineConstants:
    """Constants of a detector by name, or from a TOML file of the same form."""
    if detector.endswith(".toml"):
        if not Path(detector).is_file():
            raise UsageError(
                f"no file of constants at {detector}; ringflow calibrate --baseline --out {detector} derives them"
            )
        return BaselineConstants.resolve(Path(detector))
    known = sorted(path.stem for path in CONSTANTS.glob("*.toml"))
    if detector not in known:
        raise UsageError(
            f"no baseline constants for detector '{detector}': {did_you_mean(detector, known)}"
            f"known are {', '.join(known)}; `calibrate --baseline --out FILE` derives them, --constants FILE takes them"
        )
    return BaselineConstants.resolve(CONSTANTS / f"{detector}.toml")


class EventView(NamedTuple):
    """Arrays of one event."""

    #: [track, (x, y, z, dx, dy, dz, turning rate)] at the calorimeter face; a rate of NaN: it misses that.
    tracks: Floats
    owner: Integers  # of each track the one of the same particle that counts, see `ringflow.baseline.tracks`
    momentum: Floats  # none of tracks that do not count
    direction: Floats  # at the vertex
    pt_eta_phi: Floats
    charge: Integers
    centre: Floats
    energy: Floats
    photon_like: Flags
    hits: Floats  # [hit, (x, y, z, energy)]
    calorimeter: Integers  # of each hit: ECAL, HCAL, yoke
    layer: Integers
    cluster: Integers
    coarse: bool  # whether the hits are really the centres of the clusters


class HadronScale(NamedTuple):
    """Scale and resolution of hadronic showers, see `HadronConstants`."""

    log_energy: Floats
    factor: Floats
    noise: float
    stochastic: float
    excess: float
    absorb_sigmas: float


class PhotonCore(NamedTuple):
    """What a photon hidden in a charged shower looks like, see `PhotonConstants`."""

    radius: float
    energy: float
    layer: float
    track_distance: float


#: Of values that are not finite come candidates that are not: whoever uses them says so, numpy need not.
quiet = np.errstate(all="ignore")


@quiet
def reconstruct_block(block: EventBlock, constants: BaselineConstants) -> Collection:
    """Candidates of every event of a block."""
    photon_like = looks_like_photon(block["cluster"], constants.photon)
    events = [_reconstruct(view, constants) for view in event_views(block, constants.field, photon_like)]
    table = np.concatenate([np.zeros((0, len(_COLUMNS))), *events])
    counts = np.array([len(rows) for rows in events], dtype=np.int64)
    return cast("candidate", counts, {name: table[:, index] for index, name in enumerate(_COLUMNS)})


def _reconstruct(view: EventView, constants: BaselineConstants) -> Floats:
    """Candidates of an event, one row of `_COLUMNS` each."""
    link, photon, lepton = constants.link, constants.photon, constants.lepton
    scale = _scale(constants)
    reach = np.array([link.ecal_distance, link.hcal_distance, lepton.muon_yoke_distance])
    min_hits = link.min_hits
    if view.coarse:
        reach, min_hits = reach * _COARSER, 1
    shared, nearest, pattern = follow_tracks(view, reach)
    main, parent = link_tracks(shared, view.photon_like, view.owner, min_hits)
    label = _label_tracks(view, main, pattern, lepton)
    _give_back_radiation(view, label, main, parent, lepton.brem_angle)
    momenta, energies, spread = explain(view, main, parent, (link.fragment_momentum, link.fragment_distance), scale)
    made = [_of_tracks(view, label, main)[view.owner == np.arange(len(view.owner))]]

    core = PhotonCore(photon.core_radius, photon.core_energy, photon.core_layer, photon.core_track_distance)
    group = np.array([root_of(parent, c) if parent[c] >= 0 else -1 for c in range(len(parent))], dtype=np.int64)
    electrons = set(group[main[(label == ELECTRON) & (main >= 0)]].tolist())
    for root in np.nonzero(momenta > 0)[0].tolist():
        excess = hadronic(energies[root], scale) - momenta[root]
        if root in electrons or excess < -_DEFICIT_SIGMAS * spread[root]:
            continue
        inside = np.nonzero((view.cluster >= 0) & (group[view.cluster] == root))[0]
        tracks = np.nonzero((main >= 0) & (group[main] == root))[0]
        limit = scale.excess / max(pull_of(view, inside, tracks), _LEAST_PULL)
        in_ecal = inside[view.calorimeter[inside] == 0]
        cores = find_cores(view, in_ecal, nearest, constants.face_radius, core)
        firm = momentum_across(view, cores) > link.fragment_momentum
        of_group = (momenta[root], energies[root], spread[root], limit)
        hidden = excess_neutrals(view, root, of_group, cores, firm, scale)
        made.append(_of_neutrals(hidden[:, 0], hidden[:, 1], hidden[:, 2:5], hidden[:, 5]))
    return np.concatenate([*made, *_remaining(view, parent, link.fragment_distance, scale)])


def _scale(constants: BaselineConstants) -> HadronScale:
    hadron = constants.hadron
    knots, factors = np.log(np.array(hadron.energy)), np.array(hadron.factor)
    return HadronScale(knots, factors, hadron.noise, hadron.stochastic, hadron.excess, hadron.absorb_sigmas)


def _remaining(view: EventView, parent: Integers, reach: float, scale: HadronScale) -> Iterator[Floats]:
    """Photons and neutral hadrons from clusters nobody owns."""
    piece_of = gather_remaining(view, parent, reach)
    free = piece_of >= 0
    total = np.bincount(piece_of[free], weights=view.energy[free], minlength=len(view.energy))
    for c in np.nonzero(total > 0)[0].tolist():
        if view.photon_like[c]:
            yield _of_neutrals([PHOTON], [view.energy[c]], view.centre[c : c + 1], [c])
        else:
            pieces = piece_of == c
            where = np.average(view.centre[pieces], axis=0, weights=view.energy[pieces])
            yield _of_neutrals([NEUTRAL_HADRON], [hadronic(total[c], scale)], where[None], [c])


def _of_tracks(view: EventView, label: Integers, cluster: Integers) -> Floats:
    """Charged particles with the momenta of the tracks of an event."""
    pt, eta, phi = view.pt_eta_phi.T
    energy = np.sqrt((pt * np.cosh(eta)) ** 2 + MASS[label] ** 2)
    columns = (label, view.charge, *cartesian(pt, eta, phi), energy, np.arange(len(pt)), cluster)
    return np.stack(columns, axis=1).astype(np.float64)


def _of_neutrals(label: npt.ArrayLike, energy: npt.ArrayLike, position: Floats, cluster: npt.ArrayLike) -> Floats:
    """Neutral particles that come straight from the collision point to a position."""
    label, energy = np.asarray(label, dtype=np.int64), np.asarray(energy, dtype=np.float64)
    direction = position / np.linalg.norm(position, axis=1, keepdims=True)
    px, py, pz = (momentum_of(energy, label)[:, None] * direction).T
    none = np.zeros(len(energy))
    return np.stack([label, none, px, py, pz, energy, none - 1, np.asarray(cluster, dtype=np.float64)], axis=1)


def cartesian(pt: Floats, eta: Floats, phi: Floats) -> tuple[Floats, Floats, Floats]:
    """Momentum along x, y and z."""
    return pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)


def momentum_of(energy: Floats, label: Integers) -> Floats:
    """Momentum of candidates measured by their energy; at least half of it, where that is less than the mass."""
    momentum: Floats = np.sqrt(np.maximum(energy**2 - MASS[label] ** 2, (0.5 * energy) ** 2))
    return momentum


def looks_like_photon(clusters: Collection, constants: PhotonConstants) -> Flags:
    """Clusters in the ECAL, narrow, early and starting at the front. What data from outside lacks is not asked."""
    energy = clusters["energy"].astype(np.float64)
    where = np.log(np.maximum(energy, constants.energy[0]))
    knots = np.log(constants.energy)
    result: Flags = clusters["ecal_energy"] > constants.ecal_share * energy
    if "width_across" in clusters.columns:
        result &= clusters["width_across"] < np.interp(where, knots, constants.width)
    if "mean_depth" in clusters.columns:
        result &= clusters["mean_depth"] < np.interp(where, knots, constants.depth)
    if "start_layer" in clusters.columns:
        result &= clusters["start_layer"] <= constants.start_layer
    return result


def _label_tracks(view: EventView, main: Integers, pattern: Floats, constants: LeptonConstants) -> Integers:
    """Class of each track of an event.

    A muon leaves a minimum-ionising trace through the whole HCAL, or hits in the yoke, and little energy. An electron ends in
    an electromagnetic cluster that carries its momentum. Everything else is a charged hadron.
    """
    layers, hcal_energy, yoke_hits = pattern.T
    penetrates = (layers >= constants.muon_layers) | (yoke_hits >= constants.muon_yoke_hits)
    is_muon = penetrates & (hcal_energy < constants.muon_hcal_energy) & (view.momentum > constants.muon_momentum)
    linked = main >= 0
    ratio = np.where(linked, view.energy[main] if len(view.energy) else 0.0, 0.0) / view.momentum
    low, high = constants.electron_ratio
    electromagnetic = linked & (view.photon_like[main] if len(view.photon_like) else False)
    is_electron = electromagnetic & (ratio > low) & (ratio < high)
    return np.where(is_muon, MUON, np.where(is_electron, ELECTRON, CHARGED_HADRON))


def _give_back_radiation(view: EventView, label: Integers, main: Integers, parent: Integers, angle: float) -> None:
    """Give photons that an electron radiated to the electron: they lie where it would have gone without the field.

    `parent` is changed in place.
    """
    towards = view.centre / np.linalg.norm(view.centre, axis=1, keepdims=True).clip(1e-9)
    for track in np.nonzero((label == ELECTRON) & (main >= 0))[0]:
        cosine = towards @ view.direction[track]
        parent[view.photon_like & (parent < 0) & (cosine > np.cos(angle))] = main[track]


def event_views(block: EventBlock, field: float, photon_like: npt.NDArray[np.bool_]) -> Iterator[EventView]:
    """One view per event, cut from columns prepared for the whole block; the field in tesla, the flags per cluster."""
    tracks, clusters = block["track"], block["cluster"]
    hits = block["hit"] if "hit" in block else _centres_as_hits(clusters)

    def columns(part: Collection, *names: str) -> Floats:
        return np.stack([part[name] for name in names], axis=1).astype(np.float64)

    pt, eta, phi = (tracks[name].astype(np.float64) for name in ("pt", "eta", "phi"))
    turn = -BENDING * field * tracks["charge"] / pt
    turn = np.where(tracks["reaches_calo"] > 0, turn, np.nan)
    at_face = np.column_stack([columns(tracks, "calo_x", "calo_y", "calo_z", "calo_dx", "calo_dy", "calo_dz"), turn])
    direction = np.stack([np.cos(phi), np.sin(phi), np.sinh(eta)], axis=1) / np.cosh(eta)[:, None]
    centre = columns(clusters, "x", "y", "z")
    position = columns(hits, "x", "y", "z", "energy")
    fits = fits_of(tracks)
    for event in range(len(block)):
        t, c, h = (slice(part.offsets[event], part.offsets[event + 1]) for part in (tracks, clusters, hits))
        number = np.arange(tracks.counts[event])
        owner = number if fits is None else owners(fits[t], field)
        yield EventView(
            tracks=at_face[t],
            owner=owner,
            momentum=np.where(owner == number, (pt * np.cosh(eta))[t], 0.0),
            direction=direction[t],
            pt_eta_phi=np.stack([pt[t], eta[t], phi[t]], axis=1),
            charge=tracks["charge"][t].astype(np.int64),
            centre=centre[c],
            energy=clusters["energy"][c].astype(np.float64),
            photon_like=photon_like[c],
            hits=position[h],
            calorimeter=hits["subsystem"][h].astype(np.int64) // 2,
            layer=hits["layer"][h].astype(np.int64),
            cluster=hits["cluster"][h].astype(np.int64),
            coarse="hit" not in block,
        )


def _centres_as_hits(clusters: Collection) -> Collection:
    """One hit per cluster, for data without hits: the rules still work, but cannot look into a cluster."""
    in_hcal = clusters["hcal_energy"] > clusters["ecal_energy"]
    in_yoke = clusters["muon_energy"] > clusters["ecal_energy"] + clusters["hcal_energy"]
    number = np.arange(len(clusters)) - np.repeat(clusters.offsets[:-1], clusters.counts)
    columns = {name: clusters[name] for name in ("energy", "x", "y", "z")}
    return Collection(
        clusters.counts,
        {
            **columns,
            "subsystem": 2 * np.where(in_yoke, 2, in_hcal),
            "layer": clusters["start_layer"]
            if "start_layer" in clusters.columns
            else np.zeros(len(clusters), np.int64),
            "cluster": number,
        },
    )


@njit(cache=True)
def track_distance(track: Floats, x: float, y: float, z: float) -> tuple[float, float]:
    """Path along a track (position, direction, turning rate at the face) to the foot of a point, and the distance."""
    rx, ry, rz = x - track[0], y - track[1], z - track[2]
    path = rx * track[3] + ry * track[4] + rz * track[5]
    forward = max(path, 0.0)
    # The track bends sideways by half the curvature times the square of its transverse path.
    bend = 0.5 * track[6] * forward * forward * math.sqrt(track[3] ** 2 + track[4] ** 2)
    ex = rx - (forward * track[3] - bend * track[4])
    ey = ry - (forward * track[4] + bend * track[3])
    ez = rz - forward * track[5]
    return path, math.sqrt(ex * ex + ey * ey + ez * ez)


@njit(cache=True)
def follow_tracks(view: EventView, reach: Floats) -> tuple[Floats, Floats, Floats]:
    """Hits along the tracks of an event.

    `reach` is how near a hit must be to count, per calorimeter (ECAL, HCAL, yoke). Returns the number of such hits as
    [track, cluster]; the distance of each hit from the nearest track; and per track the HCAL layers, the HCAL energy and
    the yoke hits on it. A track that misses the calorimeter is skipped.
    """
    tracks, hits, calorimeter, cluster = view.tracks, view.hits, view.calorimeter, view.cluster
    shared = np.zeros((len(tracks), len(view.energy)))
    nearest = np.full(len(hits), 1e9)
    pattern = np.zeros((len(tracks), 3))
    # Hits in order of azimuth, twice around, so that a sector is one range whatever it crosses.
    azimuth = np.arctan2(hits[:, 1], hits[:, 0])
    order = np.argsort(azimuth)
    around = np.concatenate((azimuth[order], azimuth[order] + 2.0 * math.pi))
    order = np.concatenate((order, order))
    points = hits[order]
    for t in range(len(tracks)):
        if math.isnan(tracks[t, 6]):
            continue
        seen_layers = np.zeros(256, np.bool_)
        start = math.atan2(tracks[t, 1], tracks[t, 0]) - _SECTOR
        start += 2.0 * math.pi if start < -math.pi else 0.0
        first = np.searchsorted(around, start)
        last = np.searchsorted(around, start + 2.0 * _SECTOR)
        for place in range(first, last):
            x, y, z = points[place, 0], points[place, 1], points[place, 2]
            distance2 = (x - tracks[t, 0]) ** 2 + (y - tracks[t, 1]) ** 2 + (z - tracks[t, 2]) ** 2
            h = order[place]
            if distance2 > _FAR2 and calorimeter[h] < 2:
                continue
            path, distance = track_distance(tracks[t], x, y, z)
            if path < _BEFORE_FACE:
                continue
            nearest[h] = min(nearest[h], distance)
            if distance > reach[calorimeter[h]]:
                continue
            if cluster[h] >= 0:
                shared[t, cluster[h]] += 1.0
            if calorimeter[h] == 1:
                seen_layers[view.layer[h]] = True
                pattern[t, 1] += hits[h, 3]
            elif calorimeter[h] == 2:
                pattern[t, 2] += 1.0
        pattern[t, 0] = seen_layers.sum()
    return shared, nearest, pattern


@njit(cache=True)
def root_of(parent: Integers, member: int) -> int:
    """The cluster a group is named after."""
    while parent[member] != member:
        member = parent[member]
    return member


@njit(cache=True)
def link_tracks(shared: Floats, photon_like: Flags, owner: Integers, min_hits: int) -> tuple[Integers, Integers]:
    """Main cluster of each track (-1 if none), and for each cluster the group of clusters it is linked into by tracks.

    A cluster in which no track ends up is a group of its own that belongs to nobody: its parent is -1. Clusters of tracks of
    one particle are one group.
    """
    num_tracks, num_clusters = shared.shape
    parent = np.full(num_clusters, -1)
    main = np.full(num_tracks, -1)
    for t in range(num_tracks):
        most = 0.0
        for c in range(num_clusters):
            if shared[t, c] > most:
                most, main[t] = shared[t, c], c
        if most < min_hits:
            main[t] = -1
            continue
        if parent[main[t]] < 0:
            parent[main[t]] = main[t]
        root = root_of(parent, main[t])
        for c in range(num_clusters):
            # A photon beside the track stays a photon; a large part of the track's hits makes a cluster the track's.
            if c != main[t] and not photon_like[c] and shared[t, c] >= max(min_hits, 0.3 * most):
                if parent[c] < 0:
                    parent[c] = root
                else:
                    parent[root_of(parent, c)] = root
    for t in range(num_tracks):
        if owner[t] != t and main[t] >= 0:
            if main[owner[t]] < 0:
                main[owner[t]] = main[t]
            parent[root_of(parent, main[t])] = root_of(parent, main[owner[t]])
    return main, parent


@njit(cache=True)
def find_cores(
    view: EventView, chosen: Integers, nearest_track: Floats, face_radius: float, core: PhotonCore
) -> Floats:
    """Rows (energy, x, y, z) of electromagnetic cores among chosen ECAL hits.

    Hits are compared as seen from the collision, at the face. A core is the densest place that is not on a track, with the
    hits around it; it must start early and lie at the depth of an electromagnetic shower.
    """
    hits, layer = view.hits, view.layer
    n = len(chosen)
    seen = np.empty((n, 3))
    for i in range(n):
        h = chosen[i]
        flat = math.hypot(hits[h, 0], hits[h, 1])
        scale = face_radius / max(flat, 0.5 * abs(hits[h, 2]))
        for k in range(3):
            seen[i, k] = hits[h, k] * scale
    density = np.zeros(n)
    for i in range(n):
        density[i] += hits[chosen[i], 3]
        for j in range(i):
            if _near(seen, i, j, _DENSITY_RADIUS):
                density[i] += hits[chosen[j], 3]
                density[j] += hits[chosen[i], 3]
    used = np.zeros(n, np.bool_)
    cores, found = np.zeros((_MOST_CORES, 4)), 0
    while found < len(cores):
        top, most = -1, core.energy
        for i in range(n):
            if not used[i] and nearest_track[chosen[i]] > core.track_distance and density[i] > most:
                top, most = i, density[i]
        if top < 0:
            break
        total, depth, first = 0.0, 0.0, 999
        moment = np.zeros(3)
        for j in range(n):
            if used[j] or not _near(seen, top, j, core.radius):
                continue
            used[j] = True
            h = chosen[j]
            if nearest_track[h] > _TRACK_CORE:
                total += hits[h, 3]
                depth += hits[h, 3] * layer[h]
                moment += hits[h, 3] * hits[h, :3]
                first = min(first, layer[h])
        used[top] = True
        if total > core.energy and depth < core.layer * total and first <= _FIRST_LAYER:
            cores[found, 0] = total / CORE_SHARE
            cores[found, 1:] = moment / total
            found += 1
    return cores[:found]


@njit(cache=True)
def _near(points: Floats, i: int, j: int, distance: float) -> bool:
    dx, dy, dz = points[i, 0] - points[j, 0], points[i, 1] - points[j, 1], points[i, 2] - points[j, 2]
    return bool(dx * dx + dy * dy + dz * dz < distance * distance)


@njit(cache=True)
def hadronic(energy: float, scale: HadronScale) -> float:
    """Energy at the hadronic scale."""
    return energy * np.interp(math.log(max(energy, 1e-3)), scale.log_energy, scale.factor)


@njit(cache=True)
def explain(
    view: EventView, main: Integers, parent: Integers, fragment: tuple[float, float], scale: HadronScale
) -> tuple[Floats, Floats, Floats]:
    """Give pieces of hadronic showers to the tracks they belong to, as long as the tracks' momenta explain them.

    `fragment` is the momentum across a track that a piece has at most, and how far it may lie from a shower of nobody to belong
    to that instead. `main` and `parent` are changed in place: a track without a cluster may get one. Returns per group (indexed
    by its root) the momentum of its tracks, the calorimeter energy and the expected spread of that energy.
    """
    momentum, centre, energy, photon_like = view.momentum, view.centre, view.energy, view.photon_like
    num = len(energy)
    momenta, energies, spread = np.zeros(num), np.zeros(num), np.zeros(num)
    for t in range(len(main)):
        if main[t] >= 0 and view.owner[t] == t:
            root = root_of(parent, main[t])
            momenta[root] += momentum[t]
            spread[root] += scale.noise**2 + scale.stochastic**2 * momentum[t]
    for c in range(num):
        if parent[c] >= 0:
            energies[root_of(parent, c)] += energy[c]
    spread = np.sqrt(spread)

    track, across, apart = np.full(num, -1), np.full(num, 1e9), np.zeros(num)
    for c in range(num):
        if parent[c] >= 0:
            continue
        least = fragment[0] * (_PHOTON_SHARE if photon_like[c] else 1.0)
        for t in range(len(main)):
            off, angle = seen_from(view.tracks[t], centre[c])
            if energy[c] * angle < least:
                track[c], across[c], apart[c], least = t, energy[c] * angle, off, energy[c] * angle
    for c in range(num):
        if track[c] >= 0 and not photon_like[c] and _near_neutral(view, c, parent, track, apart[c], fragment[1]):
            across[c] = 1e9
    for c in np.argsort(across):
        if across[c] > fragment[0]:
            break
        t = track[c] if main[track[c]] >= 0 else view.owner[track[c]]
        if main[t] >= 0:
            root = root_of(parent, main[t])
            explained, expected, before = momenta[root], spread[root], energies[root]
        else:
            root, explained, before = c, momentum[t], 0.0
            expected = math.sqrt(scale.noise**2 + scale.stochastic**2 * momentum[t])
        if hadronic(before + energy[c], scale) < explained + scale.absorb_sigmas * expected:
            momenta[root], spread[root], energies[root] = explained, expected, before + energy[c]
            parent[c] = root
            main[t] = main[t] if main[t] >= 0 else c
    return momenta, energies, spread


@njit(cache=True)
def seen_from(track: Floats, point: Floats) -> tuple[float, float]:
    """Distance of a point from a track, and its angle against the track where that enters the calorimeter; both are large
    for what lies before the face, and for tracks that miss it."""
    if math.isnan(track[6]):
        return 1e9, 1e9
    path, apart = track_distance(track, point[0], point[1], point[2])
    if path < _PIECE_BEFORE_FACE:
        return 1e9, 1e9
    return apart, apart / (max(path, 0.0) + _BEGINNING)


@njit(cache=True)
def _near_neutral(view: EventView, piece: int, parent: Integers, track: Integers, apart: float, reach: float) -> bool:
    """Whether a piece lies near a larger shower of nobody, nearer to the line from the collision through it than `apart`."""
    centre, energy = view.centre, view.energy
    for c in range(len(energy)):
        if parent[c] >= 0 or track[c] >= 0 or view.photon_like[c] or energy[c] < energy[piece]:
            continue
        if ((centre[piece] - centre[c]) ** 2).sum() < reach * reach:
            along = (centre[piece] * centre[c]).sum() / math.sqrt((centre[c] ** 2).sum())
            if (centre[piece] ** 2).sum() - along * along < apart * apart:
                return True
    return False


@njit(cache=True)
def momentum_across(view: EventView, cores: Floats) -> Floats:
    """Of each core (energy, x, y, z) the momentum across the track of which it has least (GeV)."""
    across = np.full(len(cores), 1e9)
    for i in range(len(cores)):
        for t in range(len(view.tracks)):
            across[i] = min(across[i], cores[i, 0] * seen_from(view.tracks[t], cores[i, 1:])[1])
    return across


@njit(cache=True)
def pull_of(view: EventView, hits: Integers, tracks: Integers) -> float:
    """Momentum across the tracks of a group that its hits have together, each against the track nearest to it (GeV)."""
    pull = np.zeros(3)
    for h in hits:
        nearest, least = -1, 1e9
        for t in tracks:
            apart, _ = seen_from(view.tracks[t], view.hits[h, :3])
            if apart < least:
                nearest, least = t, apart
        if nearest < 0:
            continue
        track = view.tracks[nearest]
        x, y, z = view.hits[h, 0] - track[0], view.hits[h, 1] - track[1], view.hits[h, 2] - track[2]
        path = max(x * track[3] + y * track[4] + z * track[5], 0.0)
        bend = 0.5 * track[6] * path * path * math.hypot(track[3], track[4])
        weight = view.hits[h, 3] / (path + _BEGINNING)
        pull[0] += weight * (x - path * track[3] + bend * track[4])
        pull[1] += weight * (y - path * track[4] - bend * track[3])
        pull[2] += weight * (z - path * track[5])
    return math.sqrt((pull**2).sum())


@njit(cache=True)
def excess_neutrals(
    view: EventView,
    root: int,
    of_group: tuple[float, float, float, float],
    cores: Floats,
    firm: Flags,
    scale: HadronScale,
) -> Floats:
    """Neutral particles hidden in the group of clusters `root`: rows (label, energy, x, y, z, cluster).

    Of the group are given the momentum of its tracks, its energy, the spread of that, and which excess makes a neutral hadron.
    Photon cores are taken out if they are firm and the rest is still explained, others as long as the calorimeter has more than
    the tracks explain; what is still too much is a neutral hadron.
    """
    momentum, rest, spread, limit = of_group
    made = np.zeros((len(cores) + 1, 6))
    count = 0
    for i in np.argsort(-cores[:, 0]):
        excess = hadronic(rest, scale) - momentum
        left = hadronic(max(rest - cores[i, 0], 0.0), scale) - momentum
        is_photon = firm[i] and left > -_DEFICIT_SIGMAS * spread
        if is_photon or (excess > _HIDDEN_SHARE * limit and cores[i, 0] < _HIDDEN_TIMES * excess):
            made[count, 0], made[count, 1], made[count, 5] = PHOTON, cores[i, 0], root
            made[count, 2:5] = cores[i, 1:]
            rest -= cores[i, 0]
            count += 1
    excess = hadronic(rest, scale) - momentum
    if excess > limit:
        made[count, 0], made[count, 1], made[count, 5] = NEUTRAL_HADRON, excess, root
        made[count, 2:5] = view.centre[root]
        count += 1
    return made[:count]


@njit(cache=True)
def gather_remaining(view: EventView, parent: Integers, reach: float) -> Integers:
    """For each cluster nobody owns the cluster it is a piece of: itself, or a larger shower of a neutral hadron nearby.

    Clusters that belong to tracks get -1.
    """
    centre, energy, photon_like = view.centre, view.energy, view.photon_like
    num = len(energy)
    piece_of = np.full(num, -1)
    for c in range(num):
        if parent[c] >= 0:
            continue
        piece_of[c] = c
        if photon_like[c]:
            continue
        best = reach
        for other in range(num):
            if other == c or parent[other] >= 0 or photon_like[other] or energy[other] <= energy[c]:
                continue
            apart = math.sqrt(((centre[c] - centre[other]) ** 2).sum())
            if apart < best:
                piece_of[c], best = other, apart
    for c in range(num):  # pieces of pieces; energies rise along the chain, so it ends
        while piece_of[c] >= 0 and piece_of[piece_of[c]] != piece_of[c]:
            piece_of[c] = piece_of[piece_of[c]]
    return piece_of
