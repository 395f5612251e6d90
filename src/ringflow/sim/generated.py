"""What a generator hands to the detector: final-state particles of a block of events, and the interface that makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GeneratedEvents:
    """Final-state particles (neutrinos included), flat over the events in order; GeV, mm, ns."""

    event_number: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    pdg: npt.NDArray[np.int32]
    px: Floats
    py: Floats
    pz: Floats
    energy: Floats
    x: Floats
    y: Floats
    z: Floats
    time: Floats
    interaction: npt.NDArray[np.int16]  # 0 for the hard collision, 1, 2, ... for overlaid ones

    def __len__(self) -> int:
        return len(self.event_number)

    @classmethod
    def at_origin(
        cls,
        event_number: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        pdg: npt.NDArray[np.int32],
        momentum: tuple[Floats, Floats, Floats],
        energy: Floats,
    ) -> GeneratedEvents:
        """Particles that start at the collision point at time zero."""
        px, py, pz = momentum
        zero, hard = np.zeros(len(pdg)), np.zeros(len(pdg), dtype=np.int16)
        return cls(event_number, counts, pdg, px, py, pz, energy, zero, zero, zero, zero, hard)


class Generator(Protocol):
    """Makes event number n the same way whatever was asked for before: a pure function of settings, seed and n."""

    @property
    def num_available(self) -> int | None:
        """Events that exist, for a file; None where there is no end."""

    def generate(self, start: int, count: int) -> GeneratedEvents:
        """Events number `start` to `start + count - 1` (fewer at the end of a file)."""

    def describe(self) -> Mapping[str, object]:
        """What to write into the provenance: settings, versions, input hashes."""
