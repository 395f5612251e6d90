"""Four-momenta of a block of events, flat over the events: truth, candidates or jets, whatever made them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import FailureError
from ringflow.event.block import Collection, EventBlock
from ringflow.event.particles import NONE, PARTICLE_CLASSES, label_of

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Generated particles count up to this |pseudorapidity|, where calorimeters end.
GENERATED_ETA = 3.0
#: Pseudorapidity given to momenta along the beam axis: far outside every detector, but finite.
_ETA_OF_THE_BEAM = 20.0


@dataclass(frozen=True)
class Momenta:
    """Objects with a four-momentum (GeV), `counts` per event; `label` is their class, 0 for jets."""

    counts: Integers
    px: Floats
    py: Floats
    pz: Floats
    energy: Floats
    label: Integers

    def __len__(self) -> int:
        return len(self.px)

    @property
    def event(self) -> Integers:
        """Position in the block of the event each object belongs to."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def pt(self) -> Floats:
        """Transverse momentum."""
        return np.hypot(self.px, self.py)

    @property
    def eta(self) -> Floats:
        """Pseudorapidity, cut off where it would be infinite."""
        slope = self.pz / np.maximum(self.pt, np.finfo(np.float64).tiny ** 0.5)
        return np.clip(np.arcsinh(slope), -_ETA_OF_THE_BEAM, _ETA_OF_THE_BEAM)

    @property
    def phi(self) -> Floats:
        """Azimuth."""
        return np.arctan2(self.py, self.px)

    def sums(self) -> Floats:
        """Summed four-momentum of every event: rows of px, py, pz, energy."""
        columns = (self.px, self.py, self.pz, self.energy)
        return np.stack([np.bincount(self.event, values, len(self.counts)) for values in columns], axis=1)

    def select(self, mask: Mask) -> Momenta:
        """The objects under a mask."""
        return self._kept(np.bincount(self.event[mask], minlength=len(self.counts)).astype(np.int64), mask)

    def select_events(self, mask: Mask) -> Momenta:
        """The events under a mask."""
        return self._kept(self.counts[mask], np.repeat(mask, self.counts))

    def _kept(self, counts: Integers, mask: Mask) -> Momenta:
        return Momenta(counts, self.px[mask], self.py[mask], self.pz[mask], self.energy[mask], self.label[mask])


def momenta(collection: Collection) -> Momenta:
    """A collection that has a four-momentum, in double precision."""
    px, py, pz, energy = (collection[name].astype(np.float64) for name in ("px", "py", "pz", "energy"))
    labels = collection.columns.get("label")
    label = np.zeros(len(collection), np.int64) if labels is None else labels.astype(np.int64)
    return Momenta(collection.counts, px, py, pz, energy, label)


def visible(block: EventBlock) -> Momenta:
    """The visible generator particles, which true jets and sums are made of."""
    particles = block["particle"]
    return momenta(particles).select(particles["target"] >= 0)


def generated(block: EventBlock) -> Momenta:
    """All stable generated particles but neutrinos up to |eta| < 3, seen or not; classes are those of their PDG numbers.

    Publications count these, so figures of other reconstructions compare with this truth.
    """
    particles = block["particle"]
    stable = replace(momenta(particles), label=label_of(particles["pdg"]).astype(np.int64))
    return stable.select(counts_as_generated(particles))


def counts_as_generated(particles: Collection) -> Mask:
    """Which particles are in that truth."""
    stable = momenta(particles)
    counts: Mask = (label_of(particles["pdg"]) != NONE) & (np.abs(stable.eta) < GENERATED_ETA) & (stable.energy > 0.0)
    return counts


def checked(candidates: Collection, event_number: Integers, reconstruction: str) -> Momenta:
    """The candidates of a reconstruction; refuses numbers that are not finite and classes that do not exist."""
    made = momenta(candidates)
    infinite = ~np.isfinite([made.px, made.py, made.pz, made.energy]).all(axis=0)
    unknown = (made.label <= NONE) | (made.label >= len(PARTICLE_CLASSES))
    for wrong, fault in (
        (infinite, "a momentum that is not finite; make the candidates again"),
        (unknown, f"the label {{}}; labels go from 1 to {len(PARTICLE_CLASSES) - 1}"),
    ):
        if wrong.any():
            first = int(np.argmax(wrong))
            number = event_number[made.event[first]]
            fault = fault.format(made.label[first])
            raise FailureError(f"{reconstruction}: a candidate of event {number} has {fault}")
    return made
