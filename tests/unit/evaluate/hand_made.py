"""Momenta written down by hand: lists of (pt, eta, phi, label) per event, massless."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringflow.evaluate.candidates import Momenta

Particle = tuple[float, float, float, int]


def momenta_of(events: Sequence[Sequence[Particle]]) -> Momenta:
    counts = np.array([len(event) for event in events], dtype=np.int64)
    flat = np.array([particle for event in events for particle in event], dtype=np.float64).reshape(-1, 4)
    pt, eta, phi, label = flat.T
    pz = pt * np.sinh(eta)
    return Momenta(counts, pt * np.cos(phi), pt * np.sin(phi), pz, np.hypot(pt, pz), label.astype(np.int64))
