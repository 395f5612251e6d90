"""Jet energy resolution from events of two equal back-to-back jets: RMS90 of the total energy, in the barrel."""

from __future__ import annotations

import numpy as np

from ringflow.evaluate.bootstrap import Tally
from ringflow.evaluate.candidates import Floats, Mask, Momenta

#: Largest |cos theta| of the thrust axis of an event in the barrel.
BARREL = 0.7
CENTRAL_FRACTION = 0.9
_ITERATIONS = 5


def in_barrel(particles: Momenta) -> Mask:
    """Events whose thrust axis points into the barrel; never those without particles."""
    axis = thrust_axis(particles)
    return (np.abs(axis[:, 2]) < BARREL) & (particles.counts > 0)


def thrust_axis(particles: Momenta) -> Floats:
    """Unit vector per event along which the summed |momentum components| are largest.

    From the main axis of the linear momentum tensor each step sums the momenta of one hemisphere; the sum never gets
    shorter, and a few steps reach the end of it [Brandt, Dahmen 1979].
    """
    momentum = np.stack([particles.px, particles.py, particles.pz], axis=1)
    length = np.maximum(np.linalg.norm(momentum, axis=1), 1e-12)
    event, events = particles.event, len(particles.counts)
    products = (momentum[:, :, np.newaxis] * momentum[:, np.newaxis, :] / length[:, np.newaxis, np.newaxis]).reshape(
        -1, 9
    )
    tensor = np.stack([np.bincount(event, products[:, k], events) for k in range(9)], axis=1).reshape(-1, 3, 3)
    axis = np.linalg.eigh(tensor).eigenvectors[:, :, 2]
    for _ in range(_ITERATIONS):
        side = np.where((momentum * axis[event]).sum(axis=1) >= 0, 1.0, -1.0)
        summed = np.stack([np.bincount(event, side * momentum[:, k], events) for k in range(3)], axis=1)
        norm = np.linalg.norm(summed, axis=1, keepdims=True)
        axis = np.where(norm > 0, summed / np.maximum(norm, 1e-12), axis)
    return axis


def jet_energy_resolution(energy: Tally) -> Floats:
    """sqrt(2) RMS90 / mean90 of the total energy, per replicate; NaN where there is nothing.

    RMS90 is the spread of the narrowest window that holds 90 % of the events [Thomson 2009, NIM A 611].
    """
    middles = (energy.edges[1:] + energy.edges[:-1]) / 2.0
    return np.array([_narrowest(counts, middles) for counts in energy.counts[0, 1:-1].T])


def _narrowest(counts: Floats, middles: Floats) -> float:
    total = counts.sum()
    if not total:
        return float("nan")
    cumulated = np.concatenate([[0.0], np.cumsum(counts)])
    firsts = np.flatnonzero(counts)
    lasts = np.searchsorted(cumulated, cumulated[firsts] + CENTRAL_FRACTION * total * (1 - 1e-12), side="left")
    firsts, lasts = firsts[lasts < len(cumulated)], lasts[lasts < len(cumulated)]
    best = np.argmin(middles[lasts - 1] - middles[firsts])
    inside = slice(firsts[best], lasts[best])
    mean = np.average(middles[inside], weights=counts[inside])
    variance = np.average((middles[inside] - mean) ** 2, weights=counts[inside])
    return float(np.sqrt(2.0 * variance) / mean)
