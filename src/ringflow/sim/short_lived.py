"""Decays of the short-lived particles that a generator left undecayed, by the rule every source obeys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import FailureError
from ringflow.event.particles import SPEED_OF_LIGHT
from ringflow.sim.pythia import ATTEMPTS, COLUMNS, Columns, Cylinder, EventName, decay_lines, reseed, start_pythia
from ringflow.sim.seeds import event_key

_TAU = 15
_FINAL = 81  # Pythia's status of a hadron that is about to decay or to stay


class Decayer:
    """Lets Pythia decay what has less than about a metre to live, inside the cylinder; pi, K+-, K0L, mu and n stay."""

    def __init__(self, cylinder: Cylinder) -> None:
        self._pythia = start_pythia(decay_lines(cylinder))
        self._short_lived: dict[int, bool] = {}

    def is_short_lived(self, pdg: int) -> bool:
        """Whether Pythia would decay it; what is neither hadron nor tau, or not known to Pythia, is left alone."""
        if pdg not in self._short_lived:
            table = self._pythia.particleData
            decays = table.isParticle(pdg) and (table.isHadron(pdg) or abs(pdg) == _TAU)
            self._short_lived[pdg] = bool(decays and table.canDecay(pdg) and table.mayDecay(pdg))
        return self._short_lived[pdg]

    def decay(self, particles: Columns, settled: npt.NDArray[np.bool_], name: EventName) -> Columns:
        """The particles of one event with the short-lived ones replaced by their products, which follow at the end.

        A settled particle is known to leave the cylinder: it had its chance and is not decayed again.
        """
        short_lived = np.array([self.is_short_lived(pdg) for pdg in particles["pdg"].tolist()], dtype=bool)
        decaying = short_lived & ~settled
        if not decaying.any():
            return particles
        for attempt in range(ATTEMPTS):
            reseed(self._pythia, event_key(*name, attempt))
            self._fill({key: values[decaying] for key, values in particles.items()})
            if self._pythia.moreDecays():
                break
        else:
            kinds = sorted(set(particles["pdg"][decaying].tolist()))
            raise FailureError(f"Pythia failed {ATTEMPTS} times to decay PDG {kinds}; check energies and momenta")
        products = _final_state(self._pythia.event)
        return {key: np.concatenate([values[~decaying], products[key]]) for key, values in particles.items()}

    def _fill(self, particles: Columns) -> None:
        event, rndm, table = self._pythia.event, self._pythia.rndm, self._pythia.particleData
        event.reset()
        for pdg, px, py, pz, energy, x, y, z, time in zip(*(particles[key].tolist() for key in COLUMNS), strict=True):
            mass, energy = self._mass_and_energy(pdg, math.hypot(px, py, pz), energy)
            particle = event[event.append(pdg, _FINAL, 0, 0, px, py, pz, energy, mass)]
            particle.vProd(x, y, z, time * SPEED_OF_LIGHT)
            particle.tau(table.tau0(pdg) * rndm.exp())

    def _mass_and_energy(self, pdg: int, momentum: float, energy: float) -> tuple[float, float]:
        """Mass to decay with, and the energy that belongs to it: Pythia may search for ever below the mass it knows."""
        table = self._pythia.particleData
        mass, known_mass = max(energy**2 - momentum**2, 0.0) ** 0.5, table.m0(pdg)
        if abs(mass - known_mass) <= 1e-3 * known_mass + 5 * table.mWidth(pdg):
            return mass, energy
        # Rounded digits of a fast particle spoil its mass more than its energy.
        known_energy = math.hypot(momentum, known_mass)
        if abs(energy - known_energy) <= 1e-3 * known_energy:
            return known_mass, known_energy
        raise FailureError(f"PDG {pdg} has a mass of {mass:.3g} GeV, not {known_mass:.3g}; check energies and momenta")


def _final_state(event: Any) -> Columns:
    rows = [
        (p.id(), p.px(), p.py(), p.pz(), p.e(), p.xProd(), p.yProd(), p.zProd(), p.tProd() / SPEED_OF_LIGHT)
        for p in event
        if p.isFinal()
    ]
    columns: Columns = dict(zip(COLUMNS, np.array(rows).reshape(-1, len(COLUMNS)).T, strict=True))
    return {**columns, "pdg": columns["pdg"].astype(np.int32)}
