"""Rule-based particle flow, in the spirit of Pandora and of the CMS algorithm, on tracks, clusters and hits.

1. Follow every track into the calorimeter and link it to the clusters whose hits lie on it.
2. Muons by their penetrating trace, electrons by an electromagnetic cluster that carries their momentum (their radiated
   photons are given back to them), all other tracks are charged hadrons with the momentum of the track. A stiff track that
   ends inside the tracker is left out: what it turned into is measured instead.
3. Clusters near a linked track that do not look like photons are pieces of its shower, as long as momentum explains them.
4. Where a group of clusters has more energy than its tracks explain, photon cores are taken out of its hits; what is still
   too much is a neutral hadron.
5. Clusters nobody owns are photons if they look like one, else neutral hadrons, pieces joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringflow.baseline.constants import BaselineConstants, LeptonConstants
from ringflow.baseline.link import (
    excess_neutrals,
    explain,
    follow_tracks,
    gather_remaining,
    hadronic,
    link_tracks,
    looks_like_photon,
    root_of,
)
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, PHOTON

#: Mass a candidate of each class is given: pion, long-lived kaon, electron, muon.
MASS = np.zeros(8)
MASS[[CHARGED_HADRON, NEUTRAL_HADRON, ELECTRON, MUON]] = (0.13957, 0.49761, 0.000511, 0.10566)

_COLUMNS = ("label", "charge", "px", "py", "pz", "energy", "track", "cluster")


class CandidateList:
    """Collects candidates; `end_event` closes an event, `collection` gives all of them."""

    def __init__(self) -> None:
        self._rows: list[Floats] = []
        self._counts: list[int] = []
        self._in_event = 0

    def add_tracks(
        self,
        pt_eta_phi: Floats,
        charge: npt.NDArray[np.int64],
        label: npt.NDArray[np.int64],
        cluster: npt.NDArray[np.int64],
        kept: npt.NDArray[np.bool_],
    ) -> None:
        """Charged particles with the momenta of the tracks of an event that are kept."""
        pt, eta, phi = pt_eta_phi.T
        px, py, pz = pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)
        energy = np.sqrt((pt * np.cosh(eta)) ** 2 + MASS[label] ** 2)
        columns = (label, charge, px, py, pz, energy, np.arange(len(pt)), cluster)
        self._add(*(column[kept] for column in columns))

    def add_neutrals(
        self,
        label: Sequence[float] | Floats,
        energy: Sequence[float] | Floats,
        position: Floats,
        cluster: Sequence[float] | Floats,
    ) -> None:
        """Neutral particles that come straight from the collision point to a position."""
        energies = np.asarray(energy, dtype=np.float64)
        momentum = np.sqrt(
            np.maximum(energies**2 - MASS[np.asarray(label, dtype=np.int64)] ** 2, (0.5 * energies) ** 2)
        )
        direction = position / np.linalg.norm(position, axis=1, keepdims=True)
        px, py, pz = (momentum[:, None] * direction).T
        none = np.zeros(len(energies))
        self._add(np.asarray(label), none, px, py, pz, energies, none - 1, np.asarray(cluster))

    def _add(self, *columns: npt.NDArray[np.generic]) -> None:
        self._rows.append(np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1))
        self._in_event += len(columns[0])

    def end_event(self) -> None:
        """Everything added since the last call is one event."""
        self._counts.append(self._in_event)
        self._in_event = 0

    def collection(self) -> Collection:
        """All candidates."""
        table = np.concatenate(self._rows) if self._rows else np.zeros((0, len(_COLUMNS)))
        columns = {name: table[:, index] for index, name in enumerate(_COLUMNS)}
        return cast("candidate", np.array(self._counts, dtype=np.int64), columns)


Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def label_tracks(
    momentum: Floats,
    main: Integers,
    pattern: Floats,
    cluster_energy: Floats,
    photon_like: Flags,
    constants: LeptonConstants,
) -> Integers:
    """Class of each track of an event.

    A muon leaves a minimum-ionising trace through the whole HCAL, or hits in the yoke, and little energy. An electron ends in
    an electromagnetic cluster that carries its momentum. Everything else is a charged hadron.
    """
    layers, hcal_energy, yoke_hits = pattern.T
    penetrates = (layers >= constants.muon_layers) | (yoke_hits >= constants.muon_yoke_hits)
    is_muon = penetrates & (hcal_energy < constants.muon_hcal_energy) & (momentum > constants.muon_momentum)
    linked = main >= 0
    ratio = np.where(linked, cluster_energy[main] if len(cluster_energy) else 0.0, 0.0) / momentum
    low, high = constants.electron_ratio
    electromagnetic = linked & (photon_like[main] if len(photon_like) else False)
    is_electron = electromagnetic & (ratio > low) & (ratio < high)
    return np.where(is_muon, MUON, np.where(is_electron, ELECTRON, CHARGED_HADRON))


def bremsstrahlung(
    label: Integers,
    direction_at_vertex: Floats,
    main: Integers,
    centre: Floats,
    parent: Integers,
    photon_like: Flags,
    angle: float,
) -> None:
    """Give photons that an electron radiated to the electron: they lie where it would have gone without the field.

    `direction_at_vertex` is the unit direction of each track at the beam. `parent` is changed in place.
    """
    towards = centre / np.linalg.norm(centre, axis=1, keepdims=True).clip(1e-9) if len(centre) else centre
    for track in np.nonzero((label == ELECTRON) & (main >= 0))[0]:
        cosine = towards @ direction_at_vertex[track]
        radiated = photon_like & (parent < 0) & (cosine > np.cos(angle))
        parent[radiated] = main[track]


_BENDING = 0.299792458e-3  # GeV / (T mm)
_MOST_NEUTRALS = 13
#: How much further from a track the centre of a cluster may lie than a hit.
_COARSER = np.array([6.0, 2.0, 1.0])
#: Transverse momentum above which a track must reach the calorimeter, in units of what just reaches it.
_STIFF = 1.2


@dataclass(frozen=True)
class EventView:
    """Arrays of one event."""

    tracks: Floats  # [track, (x, y, z, dx, dy, dz, turning rate)] at the calorimeter face
    momentum: Floats
    direction: Floats  # at the vertex
    pt_eta_phi: Floats
    charge: npt.NDArray[np.int64]
    centre: Floats
    energy: Floats
    photon_like: npt.NDArray[np.bool_]
    hits: Floats  # [hit, (x, y, z, energy)]
    calorimeter: npt.NDArray[np.int64]
    layer: npt.NDArray[np.int64]
    cluster: npt.NDArray[np.int64]
    coarse: bool  # whether the hits are really the centres of the clusters


def reconstruct_block(block: EventBlock, constants: BaselineConstants) -> Collection:
    """Candidates of every event of a block."""
    candidates = CandidateList()
    photon_like = looks_like_photon(block["cluster"], constants.photon)
    for view in event_views(block, constants.field, photon_like):
        _reconstruct(view, constants, candidates)
        candidates.end_event()
    return candidates.collection()


def _reconstruct(view: EventView, constants: BaselineConstants, candidates: CandidateList) -> None:
    link, hadron, photon, lepton = constants.link, constants.hadron, constants.photon, constants.lepton
    scale = (np.log(np.array(hadron.energy)), np.array(hadron.factor))
    reach = np.array([link.ecal_distance, link.hcal_distance, lepton.muon_yoke_distance])
    min_hits = link.min_hits
    if view.coarse:
        reach, min_hits = reach * _COARSER, 1
    shared, nearest, pattern = follow_tracks(
        view.tracks, view.hits, view.calorimeter, view.layer, view.cluster, len(view.energy), reach
    )
    main, parent = link_tracks(shared, view.photon_like, min_hits)
    label = label_tracks(view.momentum, main, pattern, view.energy, view.photon_like, lepton)
    bremsstrahlung(label, view.direction, main, view.centre, parent, view.photon_like, lepton.brem_angle)
    momenta, energies, spread = explain(
        view.tracks,
        view.momentum,
        main,
        parent,
        view.centre,
        view.energy,
        view.photon_like,
        link.fragment_distance,
        scale,
        (hadron.noise, hadron.stochastic),
        hadron.absorb_sigmas,
    )
    # A stiff track that ends inside the tracker interacted there: what it became is measured instead.
    reach_pt = 0.5 * _BENDING * constants.field * constants.face_radius
    whole = ~np.isnan(view.tracks[:, 6]) | (view.pt_eta_phi[:, 0] < _STIFF * reach_pt)
    candidates.add_tracks(view.pt_eta_phi, view.charge, label, main, whole)

    core = np.array([photon.core_radius, photon.core_energy, photon.core_layer, photon.core_track_distance])
    made = np.zeros((_MOST_NEUTRALS, 6))
    group = np.array([root_of(parent, c) if parent[c] >= 0 else -1 for c in range(len(parent))], dtype=np.int64)
    electrons = set(group[main[(label == ELECTRON) & (main >= 0)]].tolist())
    for root in np.nonzero(momenta > 0)[0].tolist():
        excess = hadronic(energies[root], *scale) - momenta[root]
        if excess < hadron.excess_sigmas * spread[root] or root in electrons:
            continue
        chosen = np.nonzero((view.calorimeter == 0) & (view.cluster >= 0) & (group[view.cluster] == root))[0]
        count = excess_neutrals(
            root,
            momenta[root],
            energies[root],
            spread[root],
            view.centre,
            chosen,
            view.hits,
            view.layer,
            nearest,
            constants.face_radius,
            core,
            scale,
            hadron.excess_sigmas,
            made,
        )
        candidates.add_neutrals(made[:count, 0], made[:count, 1], made[:count, 2:5], made[:count, 5])
    _add_remaining(view, parent, link.fragment_distance, scale, candidates)


def _add_remaining(
    view: EventView,
    parent: npt.NDArray[np.int64],
    reach: float,
    scale: tuple[Floats, Floats],
    candidates: CandidateList,
) -> None:
    """Photons and neutral hadrons from clusters nobody owns."""
    piece_of = gather_remaining(parent, view.photon_like, view.energy, view.centre, reach)
    free = piece_of >= 0
    total = np.bincount(piece_of[free], weights=view.energy[free], minlength=len(view.energy))
    for c in np.nonzero(total > 0)[0].tolist():
        if view.photon_like[c]:
            candidates.add_neutrals([PHOTON], [view.energy[c]], view.centre[c : c + 1], [c])
        else:
            pieces = piece_of == c
            where = np.average(view.centre[pieces], axis=0, weights=view.energy[pieces])
            candidates.add_neutrals([NEUTRAL_HADRON], [hadronic(total[c], *scale)], where[None], [c])


def event_views(block: EventBlock, field: float, photon_like: npt.NDArray[np.bool_]) -> Iterator[EventView]:
    """One view per event, cut from columns prepared for the whole block; the field in tesla, the flags per cluster."""
    tracks, clusters = block["track"], block["cluster"]
    hits = block["hit"] if "hit" in block else _centres_as_hits(clusters)

    def columns(part: Collection, *names: str) -> Floats:
        return np.stack([part[name] for name in names], axis=1).astype(np.float64)

    pt, eta, phi = (tracks[name].astype(np.float64) for name in ("pt", "eta", "phi"))
    turn = -_BENDING * field * tracks["charge"] / pt
    turn = np.where(tracks["reaches_calo"] > 0, turn, np.nan)
    at_face = np.column_stack([columns(tracks, "calo_x", "calo_y", "calo_z", "calo_dx", "calo_dy", "calo_dz"), turn])
    direction = np.stack([np.cos(phi), np.sin(phi), np.sinh(eta)], axis=1) / np.cosh(eta)[:, None]
    centre = columns(clusters, "x", "y", "z")
    position = columns(hits, "x", "y", "z", "energy")
    for event in range(len(block)):
        t, c, h = (slice(part.offsets[event], part.offsets[event + 1]) for part in (tracks, clusters, hits))
        yield EventView(
            tracks=at_face[t],
            momentum=(pt * np.cosh(eta))[t],
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
            "layer": clusters["start_layer"],
            "cluster": number,
        },
    )
