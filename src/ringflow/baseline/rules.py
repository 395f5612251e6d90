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

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ringflow.baseline.constants import BaselineConstants, LeptonConstants, PhotonConstants
from ringflow.baseline.link import (
    EventView,
    Flags,
    Floats,
    HadronScale,
    Integers,
    PhotonCore,
    excess_neutrals,
    explain,
    find_cores,
    follow_tracks,
    gather_remaining,
    hadronic,
    link_tracks,
    root_of,
)
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, PHOTON

#: Mass a candidate of each class is given: pion, long-lived kaon, electron, muon.
MASS = np.zeros(8)
MASS[[CHARGED_HADRON, NEUTRAL_HADRON, ELECTRON, MUON]] = (0.13957, 0.49761, 0.000511, 0.10566)

_COLUMNS = ("label", "charge", "px", "py", "pz", "energy", "track", "cluster")
_BENDING = 0.299792458e-3  # GeV / (T mm)
#: How much further from a track the centre of a cluster may lie than a hit.
_COARSER = np.array([6.0, 2.0, 1.0])
#: Transverse momentum above which a track must reach the calorimeter, in units of what just reaches it.
_STIFF = 1.2


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
    main, parent = link_tracks(shared, view.photon_like, min_hits)
    label = _label_tracks(view, main, pattern, lepton)
    _give_back_radiation(view, label, main, parent, lepton.brem_angle)
    momenta, energies, spread = explain(view, main, parent, link.fragment_distance, scale)
    # A stiff track that ends inside the tracker interacted there: what it became is measured instead.
    reach_pt = 0.5 * _BENDING * constants.field * constants.face_radius
    whole = ~np.isnan(view.tracks[:, 6]) | (view.pt_eta_phi[:, 0] < _STIFF * reach_pt)
    made = [_of_tracks(view, label, main)[whole]]

    core = PhotonCore(photon.core_radius, photon.core_energy, photon.core_layer, photon.core_track_distance)
    group = np.array([root_of(parent, c) if parent[c] >= 0 else -1 for c in range(len(parent))], dtype=np.int64)
    electrons = set(group[main[(label == ELECTRON) & (main >= 0)]].tolist())
    for root in np.nonzero(momenta > 0)[0].tolist():
        excess = hadronic(energies[root], scale) - momenta[root]
        if excess < scale.excess_sigmas * spread[root] or root in electrons:
            continue
        chosen = np.nonzero((view.calorimeter == 0) & (view.cluster >= 0) & (group[view.cluster] == root))[0]
        cores = find_cores(view, chosen, nearest, constants.face_radius, core)
        hidden = excess_neutrals(view, root, momenta[root], energies[root], spread[root], cores, scale)
        made.append(_of_neutrals(hidden[:, 0], hidden[:, 1], hidden[:, 2:5], hidden[:, 5]))
    return np.concatenate([*made, *_remaining(view, parent, link.fragment_distance, scale)])


def _scale(constants: BaselineConstants) -> HadronScale:
    hadron = constants.hadron
    knots, factors = np.log(np.array(hadron.energy)), np.array(hadron.factor)
    return HadronScale(knots, factors, hadron.noise, hadron.stochastic, hadron.excess_sigmas, hadron.absorb_sigmas)


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
    """Clusters in the ECAL, narrow, early and starting at the front."""
    energy = clusters["energy"].astype(np.float64)
    where = np.log(np.maximum(energy, constants.energy[0]))
    knots = np.log(constants.energy)
    narrow = clusters["width_across"] < np.interp(where, knots, constants.width)
    early = clusters["mean_depth"] < np.interp(where, knots, constants.depth)
    in_ecal = clusters["ecal_energy"] > constants.ecal_share * energy
    result: Flags = in_ecal & narrow & early & (clusters["start_layer"] <= constants.start_layer)
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
