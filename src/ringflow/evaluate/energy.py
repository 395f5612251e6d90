"""Jet energy resolution from events of two equal back-to-back jets: RMS90 of the total energy, in the barrel."""

from __future__ import annotations

import numpy as np

from ringflow.evaluate.bootstrap import Entries
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


def jet_energy_resolution(energy: Entries) -> Floats:
    """sqrt(2) RMS90 / mean90 of the total energy, per replicate; NaN where there is nothing.

    RMS90 is the spread of the narrowest window that holds 90 % of the events [Thomson 2009, NIM A 611].
    """
    value, often = energy.samples()
    return np.array([_narrowest(np.repeat(value, times)) for times in often])


def _narrowest(ordered: Floats) -> float:
    if not len(ordered):
        return float("nan")
    inside = int(np.ceil(CENTRAL_FRACTION * len(ordered) * (1 - 1e-12)))
    first = int(np.argmin(ordered[inside - 1 :] - ordered[: len(ordered) - inside + 1]))
    window = ordered[first : first + inside]
    return float(np.sqrt(2.0) * window.std() / window.mean())
