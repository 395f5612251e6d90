"""The score sheet of one reconstruction of one sample: histograms to draw, and tallies the figures are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringflow.evaluate.bootstrap import REPLICATES, Entries, Tally
from ringflow.evaluate.candidates import Floats, Integers, Mask, Momenta, targets, visible
from ringflow.evaluate.energy import in_barrel
from ringflow.evaluate.histograms import ETA_EDGES, JET_PT_EDGES, LABELS, RESPONSE_PT_EDGES, Histograms, add, book
from ringflow.evaluate.jets import find_jets
from ringflow.evaluate.masses import invisible_momentum, masses_of
from ringflow.event.block import EventBlock
from ringflow.event.particles import PARTICLE_CLASSES

#: Tally of matched (above) and unmatched (below) things.
YES_OR_NO = np.array([0.5])


class Cells(NamedTuple):
    """Bins of two quantities as one row of entries."""

    first: Sequence[float]
    second: Sequence[float]

    def of(self, first: Floats | Integers, second: Floats) -> Integers:
        """The row of values; bins count from one, what lies below or above has the ones before and after."""
        return np.digitize(first, self.first) * (len(self.second) + 1) + np.digitize(second, self.second)

    def split(self, row: npt.NDArray[np.int16]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
        """The bins of both quantities."""
        return divmod(row, len(self.second) + 1)


#: Rows of the jet response: true pT and pseudorapidity; of the particle response: label and true pT.
JET_CELLS = Cells(JET_PT_EDGES, ETA_EDGES)
CLASS_CELLS = Cells((*LABELS, LABELS[-1] + 1), RESPONSE_PT_EDGES)


@dataclass(frozen=True)
class Truth:
    """What is true of a block of events; the same for all reconstructions."""

    targets: Momenta
    visible: Momenta
    jets: Momenta
    invisible: Floats  # summed four-momentum of the neutrinos of every event
    barrel: Mask

    @classmethod
    def of(cls, block: EventBlock) -> Truth:
        """The truth of a block that has one."""
        seen = visible(block)
        return cls(targets(block), seen, find_jets(seen), invisible_momentum(block), in_barrel(seen))


@dataclass(frozen=True)
class Sheet:
    """Histograms, tallies and entries; sheets of parts of the events add up to that of all of them."""

    histograms: Histograms
    tallies: dict[str, Tally]
    entries: dict[str, Entries]

    @classmethod
    def empty(cls, sample: str, *, has_truth: bool, replicates: int = REPLICATES) -> Sheet:
        """Nothing counted yet; without replicates no figure has an interval."""
        tallies = dict.fromkeys(("events", "jets", "particles"), (YES_OR_NO, 1))
        names = ["mass"]
        if has_truth:
            tallies["jet_matched"] = (YES_OR_NO, len(JET_PT_EDGES))
            tallies["confusion"] = (np.arange(0.5, len(PARTICLE_CLASSES) - 1), len(PARTICLE_CLASSES))
            names += ["jet_response", "particle_response", "met_response", "momentum_error", "visible_energy"]
            names += ["total_energy"] if sample.startswith("zuds") else []
        return cls(
            book(),
            {name: Tally.empty(edges, rows, replicates) for name, (edges, rows) in tallies.items()},
            {name: Entries(replicates) for name in names},
        )

    @property
    def replicates(self) -> int:
        """How often the events were resampled."""
        return self.entries["mass"].replicates

    def add(self, other: Sheet) -> None:
        """Add the sheet of further events."""
        add(self.histograms, other.histograms)
        for name, tally in self.tallies.items():
            tally.add(other.tallies[name])
        for name, entries in self.entries.items():
            entries.add(other.entries[name])


def mass_names(sample: str, *, has_truth: bool) -> list[str]:
    """Names of the masses of a sample: the rows of the tally of masses."""
    return list(dict.fromkeys(name for mass in masses_of(sample, has_truth) for name in mass.names))


def jet_bin(pt: Floats) -> Integers:
    """Row of the tally of jets: one per bin of true pT, the last for everything above."""
    return np.searchsorted(np.array(JET_PT_EDGES[1:]), pt, side="right")
