"""Energy against momentum: what the tracks explain of the calorimeter, and the neutral particles that remain."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from ringflow.baseline.link import root_of, track_distance
from ringflow.baseline.photon import find_cores
from ringflow.event.particles import NEUTRAL_HADRON, PHOTON

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_MOST_CORES = 12
_BEFORE_FACE = -60.0
#: A photon in front of a track is only taken from it if it lies nearly on it.
_PHOTON_DISTANCE = 20.0
#: Small pieces scatter further.
_SMALL, _SMALL_REACH = 0.5, 1.3


@njit(cache=True)
def hadronic(energy: float, log_energy: Floats, factor: Floats) -> float:
    """Energy at the hadronic scale."""
    return energy * np.interp(math.log(max(energy, 1e-3)), log_energy, factor)


@njit(cache=True)
def explain(
    tracks: Floats,
    momentum: Floats,
    main: Integers,
    parent: Integers,
    centre: Floats,
    energy: Floats,
    photon_like: Flags,
    fragment_distance: float,
    scale: tuple[Floats, Floats],
    resolution: tuple[float, float],
    absorb_sigmas: float,
) -> tuple[Floats, Floats, Floats]:
    """Give pieces of hadronic showers to the tracks they belong to, as long as the tracks' momenta explain them.

    `parent` is changed in place. Returns per group (indexed by its root) the momentum of its tracks, the calorimeter energy
    and the expected spread of that energy.
    """
    num = len(energy)
    momenta, energies, spread = np.zeros(num), np.zeros(num), np.zeros(num)
    for t in range(len(main)):
        if main[t] >= 0:
            root = root_of(parent, main[t])
            momenta[root] += momentum[t]
            spread[root] += resolution[0] ** 2 + resolution[1] ** 2 * momentum[t]
    for c in range(num):
        if parent[c] >= 0:
            energies[root_of(parent, c)] += energy[c]
    spread = np.sqrt(spread)

    group, distance = np.full(num, -1), np.full(num, 1e9)
    for c in range(num):
        if parent[c] >= 0:
            continue
        limit = (
            _PHOTON_DISTANCE if photon_like[c] else fragment_distance * (_SMALL_REACH if energy[c] < _SMALL else 1.0)
        )
        for t in range(len(main)):
            if main[t] < 0:
                continue
            path, apart = track_distance(tracks[t], centre[c, 0], centre[c, 1], centre[c, 2])
            if not photon_like[c]:
                apart = min(apart, math.sqrt(((centre[c] - centre[main[t]]) ** 2).sum()))
            if path > _BEFORE_FACE and apart < limit and apart < distance[c]:
                group[c], distance[c] = main[t], apart
    for c in np.argsort(distance):
        if group[c] < 0:
            continue
        root = root_of(parent, group[c])
        together = hadronic(energies[root] + energy[c], scale[0], scale[1])
        if together < momenta[root] + absorb_sigmas * spread[root]:
            energies[root] += energy[c]
            parent[c] = root
    return momenta, energies, spread


@njit(cache=True)
def excess_neutrals(
    root: int,
    momentum: float,
    energy: float,
    spread: float,
    centre: Floats,
    chosen: Integers,
    hits: Floats,
    layer: Integers,
    nearest_track: Floats,
    face_radius: float,
    core: Floats,
    scale: tuple[Floats, Floats],
    excess_sigmas: float,
    made: Floats,
) -> int:
    """Neutral particles hidden in the group of clusters `root`: rows (label, energy, x, y, z, cluster) in `made`; how many.

    Photon cores are taken out as long as the calorimeter has more than the tracks explain; what is still too much is a neutral
    hadron. `core` holds radius, least energy, latest layer and least distance from a track of a core.
    """
    cores = np.zeros((_MOST_CORES, 4))
    num_cores = find_cores(chosen, hits, layer, nearest_track, face_radius, core[0], core[1], core[2], core[3], cores)
    count, rest = 0, energy
    for i in np.argsort(-cores[:num_cores, 0]):
        excess = hadronic(rest, scale[0], scale[1]) - momentum
        if excess < 0.5 * excess_sigmas * spread or count == len(made) - 1:
            break
        if cores[i, 0] < 1.25 * excess:
            made[count, 0], made[count, 1], made[count, 5] = PHOTON, cores[i, 0], root
            made[count, 2:5] = cores[i, 1:]
            rest -= cores[i, 0]
            count += 1
    excess = hadronic(rest, scale[0], scale[1]) - momentum
    if excess > excess_sigmas * spread:
        made[count, 0], made[count, 1], made[count, 5] = NEUTRAL_HADRON, excess, root
        made[count, 2:5] = centre[root]
        count += 1
    return count


@njit(cache=True)
def gather_remaining(parent: Integers, photon_like: Flags, energy: Floats, centre: Floats, reach: float) -> Integers:
    """For each cluster nobody owns the cluster it is a piece of: itself, or a larger shower of a neutral hadron nearby.

    Clusters that belong to tracks get -1.
    """
    num = len(energy)
    piece_of = np.full(num, -1)
    for c in range(num):
        if parent[c] >= 0:
            continue
        piece_of[c] = c
        if photon_like[c]:
            continue
        best = reach
        for other in range(num):
            if other == c or parent[other] >= 0 or photon_like[other] or energy[other] <= energy[c]:
                continue
            apart = math.sqrt(((centre[c] - centre[other]) ** 2).sum())
            if apart < best:
                piece_of[c], best = other, apart
    for c in range(num):  # pieces of pieces; energies rise along the chain, so it ends
        while piece_of[c] >= 0 and piece_of[piece_of[c]] != piece_of[c]:
            piece_of[c] = piece_of[piece_of[c]]
    return piece_of
