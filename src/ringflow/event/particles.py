"""Particle classes and the PDG numbers behind them."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: Labels of truth particles, targets and candidates. Label 0 is "not a particle".
PARTICLE_CLASSES = (
    "none",
    "charged_hadron",
    "neutral_hadron",
    "photon",
    "electron",
    "muon",
    "forward_hadronic",
    "forward_electromagnetic",
)
NONE, CHARGED_HADRON, NEUTRAL_HADRON, PHOTON, ELECTRON, MUON, FORWARD_HADRONIC, FORWARD_ELECTROMAGNETIC = range(8)

NEUTRINOS = (12, 14, 16)
#: Weakly interacting partners some models add: the lightest neutralino and the gravitino.
INVISIBLE = (*NEUTRINOS, 1000022, 1000039)

SPEED_OF_LIGHT = 299.792458  # mm / ns
#: Bending of a unit charge: pt [GeV] = BENDING * B [T] * radius [mm].
BENDING = SPEED_OF_LIGHT * 1e-6


class ParticleProperties(NamedTuple):
    """PDG facts of one kind of particle."""

    charge: int
    mass: float  # GeV
    ctau: float  # mm; infinite if stable


@cache
def properties(pdg: int) -> ParticleProperties:
    """Charge, mass and decay length; an unknown number counts as a stable neutral of no mass."""
    from particle import InvalidParticle, Particle, ParticleNotFound  # costs a table read

    try:
        known = Particle.from_pdgid(pdg)
    except (ParticleNotFound, InvalidParticle):
        return ParticleProperties(0, 0.0, float("inf"))
    ctau = known.ctau
    return ParticleProperties(
        charge=round(known.charge or 0.0),
        mass=(known.mass or 0.0) / 1000.0,
        ctau=float("inf") if ctau is None or ctau <= 0 else float(ctau),
    )


def lookup(pdg: npt.NDArray[np.integer], field: str) -> npt.NDArray[np.float64]:
    """One property for an array of PDG numbers."""
    kinds, inverse = np.unique(pdg, return_inverse=True)
    values = np.array([getattr(properties(int(kind)), field) for kind in kinds], dtype=np.float64)
    return values[inverse] if len(kinds) else np.zeros(0)


def label_of(pdg: npt.NDArray[np.integer]) -> npt.NDArray[np.int8]:
    """Particle class of a PDG number; neutrinos and other invisible ones get 0."""
    code = np.abs(pdg)
    charged = lookup(pdg, "charge") != 0
    label = np.where(charged, CHARGED_HADRON, NEUTRAL_HADRON)
    label = np.where(code == 22, PHOTON, label)
    label = np.where(code == 11, ELECTRON, label)
    label = np.where(code == 13, MUON, label)
    return np.where(np.isin(code, INVISIBLE), NONE, label).astype(np.int8)
