"""The score sheet of one reconstruction of one sample: histograms to draw, and tallies the figures are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringflow.evaluate.bootstrap import Tally, response_edges
from ringflow.evaluate.candidates import Floats, Integers, Mask, Momenta, targets, visible
from ringflow.evaluate.energy import in_barrel
from ringflow.evaluate.histograms import JET_PT_EDGES, Histograms, add, book
from ringflow.evaluate.jets import find_jets
from ringflow.evaluate.masses import invisible_momentum, masses_of
from ringflow.event.block import EventBlock
from ringflow.event.particles import PARTICLE_CLASSES

#: Tally of matched (above) and unmatched (below) things.
YES_OR_NO = np.array([0.5])
#: Length of a momentum difference (GeV); the first bin is for what is exactly zero.
_ERROR_EDGES = np.concatenate([[0.0, 1e-4], np.linspace(0.02, 20.0, 1000), np.linspace(20.5, 400.0, 760)])


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
    """Histograms and tallies; sheets of parts of the events add up to that of all of them."""

    histograms: Histograms
    tallies: dict[str, Tally]

    @classmethod
    def empty(cls, sample: str, *, has_truth: bool) -> Sheet:
        """Nothing counted yet."""
        return cls(book(), {**_tallies(sample, has_truth), **(_truth_tallies(sample) if has_truth else {})})

    def add(self, other: Sheet) -> None:
        """Add the sheet of further events."""
        add(self.histograms, other.histograms)
        for name, tally in self.tallies.items():
            tally.add(other.tallies[name])


def mass_names(sample: str, *, has_truth: bool) -> list[str]:
    """Names of the masses of a sample: the rows of the tally of masses."""
    return list(dict.fromkeys(name for mass in masses_of(sample, has_truth) for name in mass.names))


def jet_bin(pt: Floats) -> Integers:
    """Row of the tally of jets: one per bin of true pT, the last for everything above."""
    return np.searchsorted(np.array(JET_PT_EDGES[1:]), pt, side="right")


def _tallies(sample: str, has_truth: bool) -> dict[str, Tally]:
    names = mass_names(sample, has_truth=has_truth)
    return {
        "events": Tally.empty(YES_OR_NO),
        "jets": Tally.empty(YES_OR_NO),
        "particles": Tally.empty(YES_OR_NO),
        "mass": Tally.empty(np.linspace(0.0, 500.0, 1001), rows=len(names)),
    }


def _truth_tallies(sample: str) -> dict[str, Tally]:
    tallies = {
        "jet_response": Tally.empty(response_edges(0.0, 3.0), rows=len(JET_PT_EDGES)),
        "jet_matched": Tally.empty(YES_OR_NO, rows=len(JET_PT_EDGES)),
        "confusion": Tally.empty(np.arange(0.5, len(PARTICLE_CLASSES) - 1), rows=len(PARTICLE_CLASSES)),
        "particle_response": Tally.empty(response_edges(0.5, 1.5), rows=len(PARTICLE_CLASSES)),
        "met_response": Tally.empty(response_edges(0.0, 10.0)),
        "momentum_error": Tally.empty(_ERROR_EDGES),
        "visible_energy": Tally.empty(response_edges(0.0, 3.0)),
    }
    if sample.startswith("zuds"):
        tallies["total_energy"] = Tally.empty(np.linspace(0.0, 500.0, 5001))
    return tallies
