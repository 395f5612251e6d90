"""Track to calorimeter: how far hits and clusters lie from the extrapolated tracks, and which clusters a track enters.

Loops over the tracks and hits of one event, compiled by numba: they branch on every pair and allocate nothing.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Squared distance (mm^2) beyond which a hit has nothing to do with a track entering the calorimeter there.
_FAR2 = 2.2e3**2
_BEFORE_FACE = -20.0
#: Hits further in azimuth (rad) from where a track enters the calorimeter are not looked at.
_SECTOR = 0.5


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
def follow_tracks(
    tracks: Floats,
    hits: Floats,
    calorimeter: Integers,
    layer: Integers,
    cluster: Integers,
    num_clusters: int,
    reach: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Hits along the tracks of an event.

    `reach` is how near a hit must be to count, per calorimeter (ECAL, HCAL, yoke). Returns the number of such hits as
    [track, cluster]; the distance of each hit from the nearest track; and per track the HCAL layers, the HCAL energy and
    the yoke hits on it. A track that misses the calorimeter has a turning rate of NaN and is skipped.
    """
    shared = np.zeros((len(tracks), num_clusters))
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
                seen_layers[layer[h]] = True
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
def link_tracks(shared: Floats, photon_like: npt.NDArray[np.bool_], min_hits: int) -> tuple[Integers, Integers]:
    """Main cluster of each track (-1 if none), and for each cluster the group of clusters it is linked into by tracks.

    A cluster in which no track ends up is a group of its own that belongs to nobody: its parent is -1.
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
    return main, parent
