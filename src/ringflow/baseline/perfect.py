"""Perfect particle flow: true associations, measured energies. One candidate per target.

- A charged particle has the momentum of its track, in the direction at the point where it came into being, where the truth has
  it, too: the perigee of a particle that was born elsewhere is a point it never passed. Of several tracks (duplicates, pieces,
  tracks of what it turned into) the one nearest its true momentum counts.
- A photon that converted, or a neutral particle that decayed, into two tracks of opposite charge has their summed momentum. If
  one of them is missing, it has the energy of that one or what it left in the hits, whichever is more.
- An electron whose hits have significantly more than its track radiated, and is measured by them; so is a pair.
- All other neutral particles have the energy they left in the hits. Noise, and tracks of nobody, belong to no candidate.

It is a rung of a ladder, not its end: shapes of showers tell energies better than the sum of their hits does.
"""

from __future__ import annotations

import numpy as np

from ringflow.base.errors import DatasetError
from ringflow.baseline.rules import (
    BENDING,
    MASS,
    BaselineConstants,
    Flags,
    Floats,
    Integers,
    cartesian,
    momentum_of,
    quiet,
)
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.event.particles import ELECTRON, NEUTRAL_HADRON, PHOTON

#: Energy in the hits beyond that of the tracks from which on an electron counts as having radiated, in standard deviations of
#: an electromagnetic shower of that energy: this times its root.
_RADIATED_SIGMAS, _EM_STOCHASTIC = 3.0, 0.16
_STRAIGHT = 1e-12  # rad / mm


@quiet
def perfect_block(block: EventBlock, constants: BaselineConstants) -> Collection:
    """Candidates of every event of a block."""
    targets = block["target"]
    num = len(targets)
    label = targets["label"].astype(np.int64)
    if (wrong := label[(label < 0) | (label >= len(MASS))]).size:
        raise DatasetError(f"a target has the label {wrong[0]}, which is no class of particles; make the dataset again")
    neutral = (label == PHOTON) | (label == NEUTRAL_HADRON)
    left, centre = _deposits(block, num)
    scale = np.interp(np.log(np.maximum(left, 1e-3)), np.log(constants.hadron.energy), constants.hadron.factor)
    in_hits = np.where(label == NEUTRAL_HADRON, left * scale, left)

    track, target, momentum = _tracks_of_targets(block, neutral, constants.field)
    summed = np.stack([np.bincount(target, momentum[:, k], num) for k in range(3)], axis=1)
    in_tracks = np.bincount(target, np.linalg.norm(momentum, axis=1), num)
    legs = np.bincount(target, minlength=num)
    radiated = in_hits > in_tracks + _RADIATED_SIGMAS * _EM_STOCHASTIC * np.sqrt(in_tracks)
    alone = neutral & (legs < 2) & (in_hits > in_tracks)
    by_track = (legs > 0) & ~alone & ~(radiated & ((label == ELECTRON) | neutral))

    # A track knows the direction best, also of what is measured by its hits.
    length = np.linalg.norm(summed, axis=1)
    of_track, straight = length > 0.0, np.linalg.norm(centre, axis=1)
    direction = np.where(
        of_track[:, None], summed / np.maximum(length, 1e-12)[:, None], centre / np.maximum(straight, 1e-9)[:, None]
    )
    energy = np.where(by_track, np.sqrt(length**2 + MASS[label] ** 2), in_hits)
    p = np.where(by_track, length, momentum_of(in_hits, label))[:, None] * direction
    first = np.full(num, -1, dtype=np.int64)
    first[target[::-1]] = track[::-1]
    columns = {
        "label": label,
        "charge": targets["charge"],
        **dict(zip(("px", "py", "pz"), p.T, strict=True)),
        "energy": energy,
        "track": first,
        "cluster": targets["cluster"],
    }
    return cast("candidate", targets.counts, columns)


def _tracks_of_targets(block: EventBlock, neutral: Flags, field: float) -> tuple[Integers, Integers, Floats]:
    """The tracks that measure a target: their numbers in the event, whose they are, and their momenta where it was born.

    One track for a charged target, at most one of either charge for a neutral one; in the order of the tracks.
    """
    tracks, particles, targets = block["track"], block["particle"], block["target"]
    if not len(tracks) or not len(targets):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 3))
    event = np.repeat(np.arange(len(block)), tracks.counts)
    row = np.flatnonzero(tracks["particle"] >= 0)
    particle = tracks["particle"][row] + particles.offsets[event[row]]
    seen = particles["target"][particle] >= 0
    row, particle = row[seen], particle[seen]
    target = particles["target"][particle] + targets.offsets[event[row]]

    pt, eta, phi = (tracks[name][row].astype(np.float64) for name in ("pt", "eta", "phi"))
    charge = np.sign(tracks["charge"][row].astype(np.int64))
    birth = np.stack([particles[axis][particle] for axis in ("x", "y")], axis=1).astype(np.float64)
    tangent = neutral[target]
    at = direction_at(birth, pt, phi, tracks["d0"][row].astype(np.float64), charge, field, tangent)
    momentum = np.stack(cartesian(pt, eta, at), axis=1)

    true = np.stack([targets[axis][target] for axis in ("px", "py", "pz")], axis=1).astype(np.float64)
    # Of a leg of a pair nothing is known to compare with: the longest track is the best one.
    off = np.linalg.norm(momentum - true, axis=1)
    off = np.where(tangent, -tracks["num_hits"][row].astype(np.float64), off)
    wanted = 2 * target + (tangent & (charge > 0))
    order = np.lexsort((off, wanted))
    best = np.sort(order[np.diff(wanted[order], prepend=-1) != 0])
    chosen = row[best]
    return chosen - tracks.offsets[event[chosen]], target[best], momentum[best]


def direction_at(
    birth: Floats, pt: Floats, phi: Floats, d0: Floats, charge: Integers, field: float, tangent: Flags
) -> Floats:
    """Azimuth of tracks, given at the perigee, where they pass a point (x, y).

    Under `tangent` the point is where a neutral parent came from, which flew straight until it turned into tracks that go on in
    its direction: there the line from the point touches the circle of the track.
    """
    # Signed radius: the centre lies to the left of what turns left. What does not turn at all turns very far out.
    turn = -BENDING * field * charge / pt
    radius = 1.0 / np.where(turn == 0.0, _STRAIGHT, turn)
    x, y = d0 * np.sin(phi), -d0 * np.cos(phi)
    to_centre_x, to_centre_y = x - radius * np.sin(phi) - birth[:, 0], y + radius * np.cos(phi) - birth[:, 1]
    # Seen from the centre the point is at the angle of what moves there, turned back by a quarter.
    passing = np.arctan2(-to_centre_y, -to_centre_x) + np.sign(radius) * 0.5 * np.pi
    distance = np.hypot(to_centre_x, to_centre_y)
    touching = np.arctan2(to_centre_y, to_centre_x) - np.arcsin(np.clip(radius / distance, -1.0, 1.0))
    return np.where(tangent & (distance > np.abs(radius)), touching, passing)


def _deposits(block: EventBlock, num_targets: int) -> tuple[Floats, Floats]:
    """What the particles of each target left in the hits (without hits, in the clusters), and the centre of it."""
    place = "hit" if "hit" in block and "hit_link" in block else "cluster"
    links, particles, places, targets = (block[name] for name in (f"{place}_link", "particle", place, "target"))
    event = np.repeat(np.arange(len(block)), links.counts)
    target = particles["target"][links["particle"] + particles.offsets[event]]
    seen = target >= 0
    row = (target + targets.offsets[event])[seen]
    where = (links[place] + places.offsets[event])[seen]
    energy = links["energy"][seen].astype(np.float64)
    left = np.bincount(row, weights=energy, minlength=num_targets).astype(np.float64)
    centre = np.stack(
        [np.bincount(row, weights=energy * places[axis][where], minlength=num_targets) for axis in ("x", "y", "z")],
        axis=1,
    )
    return left, centre / np.maximum(left, 1e-12)[:, None]
