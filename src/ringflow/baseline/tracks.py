"""Tracks that are not particles of their own: pattern recognition finds some twice, or in pieces, and of a particle that decays
or interacts in the tracker both what it was and what it became leave tracks.

- A track with the parameters of a better one, within their errors, is the same particle once more.
- A track that misses the beam line and begins where another one ends is what that one became.

Either has one owner, whose momentum counts; the clusters of both are the owner's. Lengths are mm, momenta GeV.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
from numba import njit

from ringflow.event.block import Collection
from ringflow.event.particles import BENDING

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: What is known of a track, by name; a column that data from outside lacks asks for nothing.
COLUMNS: Final = (
    *("pt", "eta", "phi", "charge", "d0", "z0", "sigma_pt", "sigma_phi", "sigma_theta", "sigma_d0", "num_hits"),
    *("last_x", "last_y", "last_z"),
)
_PT, _ETA, _PHI, _CHARGE, _D0, _Z0, _SIGMA_PT, _SIGMA_PHI, _SIGMA_THETA, _SIGMA_D0, _HITS, _X, _Y, _Z = range(14)
#: Standard deviations that two fits of one particle may differ by: their errors have tails.
_SAME = 6.0
#: Standard deviations by which a track must miss the beam line to have begun elsewhere.
_DISPLACED = 8.0
#: How far (mm) beyond its last hit a track may end, in such steps, and how near there another must pass to begin there.
_BEYOND, _STEP, _MEETING = 400.0, 4.0, 4.0
#: A particle is not much stiffer than what it came from.
_STIFFER = 1.05
_STRAIGHT = 1e-12
#: Distance of a point that a track does not come to on its way out.
_NOWHERE = 1e9


def fits_of(tracks: Collection) -> Floats | None:
    """What the fits of all tracks of a block say, as [track, column]; none if the data do not tell enough."""
    if not set(COLUMNS) <= set(tracks.columns):
        return None
    return np.stack([tracks[name] for name in COLUMNS], axis=1).astype(np.float64)


@njit(cache=True)
def owners(fits: Floats, field: float) -> Integers:
    """For each track of an event the track whose particle it belongs to: mostly itself."""
    count = len(fits)
    owner = np.arange(count)
    order = np.argsort(fits[:, _SIGMA_PT])
    for place in range(count):
        for better in order[:place]:
            if owner[better] == better and _are_same(fits[order[place]], fits[better]):
                owner[order[place]] = better
                break
    for track in range(count):
        if owner[track] != track or abs(fits[track, _D0]) < _DISPLACED * fits[track, _SIGMA_D0]:
            continue
        nearest = _MEETING
        for other in range(count):
            if other == track or owner[other] != other or _momentum(fits[track]) > _STIFFER * _momentum(fits[other]):
                continue
            distance = _from_its_end(fits[other], fits[track], field)
            if distance < nearest:
                owner[track], nearest = other, distance
    for track in range(count):  # what it became may have become something else
        while owner[owner[track]] != owner[track]:
            owner[track] = owner[owner[track]]
    return owner


@njit(cache=True)
def _momentum(fit: Floats) -> float:
    return float(fit[_PT] * math.cosh(fit[_ETA]))


@njit(cache=True)
def _are_same(one: Floats, other: Floats) -> bool:
    """Whether two fits agree within their errors."""
    if one[_CHARGE] != other[_CHARGE]:
        return False
    turned = (one[_PHI] - other[_PHI] + math.pi) % (2.0 * math.pi) - math.pi
    raised = math.atan(math.sinh(one[_ETA])) - math.atan(math.sinh(other[_ETA]))
    return bool(
        abs(one[_PT] / other[_PT] - 1.0) < _SAME * math.hypot(one[_SIGMA_PT], other[_SIGMA_PT])
        and abs(turned) < _SAME * math.hypot(one[_SIGMA_PHI], other[_SIGMA_PHI])
        and abs(raised) < _SAME * math.hypot(one[_SIGMA_THETA], other[_SIGMA_THETA])
    )


@njit(cache=True)
def _from_its_end(ends: Floats, begins: Floats, field: float) -> float:
    """How near one track passes another beyond that one's last hit."""
    turn = _turn(ends, field)
    x, y = ends[_D0] * math.sin(ends[_PHI]), -ends[_D0] * math.cos(ends[_PHI])
    half = 0.5 * abs(turn) * math.hypot(ends[_X] - x, ends[_Y] - y)
    path = 2.0 * math.asin(min(half, 1.0)) / abs(turn)
    off = ends[_Z] - ends[_Z0] - path * math.sinh(ends[_ETA])  # of the fit from its last hit, along the beam
    nearest, beyond = _NOWHERE, 0.0
    while beyond < _BEYOND:
        middle = ends[_PHI] + 0.5 * turn * path
        chord = math.sin(0.5 * turn * path) / (0.5 * turn)
        at_z = ends[_Z0] + path * math.sinh(ends[_ETA]) + off
        here = _distance(begins, x + chord * math.cos(middle), y + chord * math.sin(middle), at_z, field)
        nearest = min(nearest, here)
        # What is far away does not come near at once.
        step = _STEP if here == _NOWHERE else max(_STEP, 0.5 * (here - _MEETING))
        path, beyond = path + step / math.cosh(ends[_ETA]), beyond + step
    return nearest


@njit(cache=True)
def _turn(fit: Floats, field: float) -> float:
    """Turning rate (rad / mm); what does not turn at all turns very far out."""
    rate = -BENDING * field * fit[_CHARGE] / fit[_PT]
    return rate if abs(rate) > _STRAIGHT else _STRAIGHT


@njit(cache=True)
def _distance(fit: Floats, x: float, y: float, z: float, field: float) -> float:
    """Distance of a point from a track on its way out."""
    turn = _turn(fit, field)
    from_x, from_y = x - fit[_D0] * math.sin(fit[_PHI]), y + fit[_D0] * math.cos(fit[_PHI])
    if from_x * math.cos(fit[_PHI]) + from_y * math.sin(fit[_PHI]) < 0.0:
        return _NOWHERE
    radius = 1.0 / turn
    across = math.hypot(from_x + radius * math.sin(fit[_PHI]), from_y - radius * math.cos(fit[_PHI])) - abs(radius)
    path = 2.0 * math.asin(min(0.5 * abs(turn) * math.hypot(from_x, from_y), 1.0)) / abs(turn)
    return math.hypot(across, z - fit[_Z0] - path * math.sinh(fit[_ETA]))
