"""Photons: clusters that look like one, and cores of photons hidden in the shower of a charged hadron."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from ringflow.baseline.constants import PhotonConstants
from ringflow.event.block import Collection

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_DENSITY_RADIUS = 8.0  # mm, over which hits are summed to find a core
_TRACK_CORE = 7.0  # mm: hits so near a track are the track's
_FIRST_LAYER = 6  # a photon starts before this layer
#: Share of a photon's energy within the core radius; the rest is in the tail.
CORE_SHARE = 0.92


def looks_like_photon(clusters: Collection, constants: PhotonConstants) -> npt.NDArray[np.bool_]:
    """Clusters in the ECAL, narrow, early and starting at the front."""
    energy = clusters["energy"].astype(np.float64)
    where = np.log(np.maximum(energy, constants.energy[0]))
    knots = np.log(constants.energy)
    narrow = clusters["width_across"] < np.interp(where, knots, constants.width)
    early = clusters["mean_depth"] < np.interp(where, knots, constants.depth)
    in_ecal = clusters["ecal_energy"] > constants.ecal_share * energy
    result: npt.NDArray[np.bool_] = in_ecal & narrow & early & (clusters["start_layer"] <= constants.start_layer)
    return result


@njit(cache=True)
def find_cores(
    chosen: Integers,
    hits: Floats,
    layer: Integers,
    track_distance: Floats,
    face_radius: float,
    radius: float,
    min_energy: float,
    latest_layer: float,
    min_distance: float,
    cores: Floats,
) -> int:
    """Fill `cores` with rows (energy, x, y, z) of electromagnetic cores among chosen ECAL hits; returns how many.

    Hits are compared as seen from the collision, at the face. A core is the densest place that is not on a track, with the
    hits around it; it must start early and lie at the depth of an electromagnetic shower.
    """
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
    found = 0
    while found < len(cores):
        top, most = -1, min_energy
        for i in range(n):
            if not used[i] and track_distance[chosen[i]] > min_distance and density[i] > most:
                top, most = i, density[i]
        if top < 0:
            break
        total, depth, first = 0.0, 0.0, 999
        moment = np.zeros(3)
        for j in range(n):
            if used[j] or not _near(seen, top, j, radius):
                continue
            used[j] = True
            h = chosen[j]
            if track_distance[h] > _TRACK_CORE:
                total += hits[h, 3]
                depth += hits[h, 3] * layer[h]
                moment += hits[h, 3] * hits[h, :3]
                first = min(first, layer[h])
        used[top] = True
        if total > min_energy and depth < latest_layer * total and first <= _FIRST_LAYER:
            cores[found, 0] = total / CORE_SHARE
            cores[found, 1:] = moment / total
            found += 1
    return found


@njit(cache=True)
def _near(points: Floats, i: int, j: int, distance: float) -> bool:
    dx, dy, dz = points[i, 0] - points[j, 0], points[i, 1] - points[j, 1], points[i, 2] - points[j, 2]
    return bool(dx * dx + dy * dy + dz * dz < distance * distance)
