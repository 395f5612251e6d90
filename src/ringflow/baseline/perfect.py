"""Perfect particle flow: true associations, measured energies. Beyond it only a better estimate of energies wins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringflow.baseline.constants import BaselineConstants
from ringflow.baseline.rules import MASS, cartesian, momentum_of
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.event.particles import ELECTRON, NEUTRAL_HADRON, PHOTON

Floats = npt.NDArray[np.float64]

#: Calorimeter energy over track momentum from which on an electron counts as having radiated.
_RADIATED = 1.1


def perfect_block(block: EventBlock, constants: BaselineConstants) -> Collection:
    """One candidate per target: charged ones with the momentum of their track, neutral ones with the energy they left."""
    targets, tracks = block["target"], block["track"]
    event = np.repeat(np.arange(len(block)), targets.counts)
    label = targets["label"].astype(np.int64)
    left, centre = _deposits(block, len(targets))
    neutral = (label == PHOTON) | (label == NEUTRAL_HADRON)

    scale = np.interp(np.log(np.maximum(left, 1e-3)), np.log(constants.hadron.energy), constants.hadron.factor)
    energy = np.where(label == NEUTRAL_HADRON, left * scale, left)
    momentum = momentum_of(energy, label)
    length = np.linalg.norm(centre, axis=1)
    direction = centre / np.maximum(length, 1e-9)[:, None]

    track = np.where(targets["track"] >= 0, targets["track"] + tracks.offsets[event], 0)
    has_track = targets["track"] >= 0
    of_track = _momenta(tracks)[track] if len(tracks) else np.zeros((len(targets), 3))
    # A photon that converted has a track but is measured by the calorimeter, unless nothing of it arrived there; so is an
    # electron that lost momentum by radiation, which the calorimeter sees.
    radiated = (label == ELECTRON) & (left > _RADIATED * np.linalg.norm(of_track, axis=1))
    by_track = has_track & ((~neutral & ~radiated) | (left <= 0.0))
    p = np.where(by_track[:, None], of_track, momentum[:, None] * direction)
    energy = np.where(by_track, np.sqrt((of_track**2).sum(1) + MASS[label] ** 2), energy)
    columns = {
        "label": label,
        "charge": targets["charge"],
        **dict(zip(("px", "py", "pz"), p.T, strict=True)),
        "energy": energy,
        "track": targets["track"],
        "cluster": targets["cluster"],
    }
    return cast("candidate", targets.counts, columns)


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


def _momenta(tracks: Collection) -> Floats:
    return np.stack(cartesian(*(tracks[name].astype(np.float64) for name in ("pt", "eta", "phi"))), axis=1)
