"""Charged particles: muons, electrons and charged hadrons from tracks and what they leave in the calorimeter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringflow.baseline.constants import LeptonConstants
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON

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
