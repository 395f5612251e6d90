"""Masses of W, Z, H and top from jets: which ones a sample has, and how jets are paired.

Which events enter is decided by the truth, so that all reconstructions measure the same events; how their jets are paired is
decided by each reconstruction for itself. The jets are Durham jets, as many as the process has quarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from ringflow.evaluate.candidates import Floats, Integers, Mask, Momenta, momenta
from ringflow.evaluate.jets import force_jets
from ringflow.event.block import EventBlock
from ringflow.event.particles import INVISIBLE

#: Masses (GeV) that pairings are judged by.
W_MASS, Z_MASS, H_MASS = 80.4, 91.2, 125.0
#: Four-momentum of the invisible particles: a Z that decayed to neutrinos, or nothing but neutrinos inside jets (GeV).
_Z_WINDOW = (70.0, 110.0)
_QUIET = 20.0

Values = tuple[Integers, Floats]  # events of the block, and one mass each


@dataclass(frozen=True)
class Mass:
    """One or several masses of a sample: their names, which events have them and how they are measured."""

    names: tuple[str, ...]
    events: Callable[[Floats], Mask]  # of the summed invisible four-momenta
    measure: Callable[[Momenta], tuple[Floats, Mask]]  # (event, mass of each name), and which events could be measured


def masses_of(sample: str, has_truth: bool) -> tuple[Mass, ...]:
    """What to measure in a sample; in one we know nothing about, the mass of everything visible."""
    process = sample.split("_")[0]
    if process in _MASSES and (has_truth or process not in _NEED_TRUTH):
        return _MASSES[process]
    return (Mass(("visible",), _all_events, visible_mass),)


def measure_masses(masses: tuple[Mass, ...], invisible: Floats, reco: Momenta) -> Iterator[tuple[str, Values]]:
    """Name by name the events of the block and their masses."""
    for mass in masses:
        chosen = np.flatnonzero(mass.events(invisible))
        selected = np.zeros(len(reco.counts), bool)
        selected[chosen] = True
        values, measured = mass.measure(reco.select_events(selected))
        for column, name in enumerate(mass.names):
            yield name, (chosen[measured], values[:, column])


def invisible_momentum(block: EventBlock) -> Floats:
    """Summed four-momentum of the neutrinos and their like in every event."""
    particles = block["particle"]
    return momenta(particles).select(np.isin(np.abs(particles["pdg"]), INVISIBLE)).sums()


def visible_mass(reco: Momenta) -> tuple[Floats, Mask]:
    """Mass of all particles of an event."""
    some: Mask = reco.counts > 0
    return invariant_mass(reco.sums()[some])[:, np.newaxis], some


def boson_pair(masses: tuple[float, float] | None) -> Callable[[Momenta], tuple[Floats, Mask]]:
    """Two dijet masses of four jets: nearest to the given two masses, or without them of most equal mass."""

    def measure(reco: Momenta) -> tuple[Floats, Mask]:
        jets, enough = force_jets(reco, 4)
        pairs = invariant_mass(jets[:, _PAIRINGS].sum(axis=3))  # (event, pairing, boson)
        off = pairs - (pairs[..., ::-1] if masses is None else np.array(masses))
        return pairs[np.arange(len(pairs)), (off**2).sum(axis=2).argmin(axis=1)], enough

    return measure


def top_pair(reco: Momenta) -> tuple[Floats, Mask]:
    """Both W and both top masses of six jets: dijets near the W mass and three-jet masses alike."""
    jets, enough = force_jets(reco, 6)
    w = invariant_mass(jets[:, _TOP_PAIRINGS[:, :, :2]].sum(axis=3))
    top = invariant_mass(jets[:, _TOP_PAIRINGS].sum(axis=3))
    badness = ((w - W_MASS) ** 2).sum(axis=2) + (top[..., 0] - top[..., 1]) ** 2
    best = np.arange(len(w)), badness.argmin(axis=1)
    return np.concatenate([w[best], top[best]], axis=1), enough


def invariant_mass(four_momenta: Floats) -> Floats:
    """Mass of [px, py, pz, energy] along the last axis; rounding below zero is zero."""
    squared: Floats = four_momenta[..., 3] ** 2 - (four_momenta[..., :3] ** 2).sum(axis=-1)
    return np.sqrt(np.maximum(squared, 0.0))


def _all_events(invisible: Floats) -> Mask:
    return np.ones(len(invisible), bool)


def _nothing_missing(invisible: Floats) -> Mask:
    return invisible[:, 3] < _QUIET


def _invisible_z(invisible: Floats) -> Mask:
    mass = invariant_mass(invisible)
    return (mass > _Z_WINDOW[0]) & (mass < _Z_WINDOW[1])


def _two_triplets() -> Integers:
    """The 90 ways to make two tops of six jets: (way, top, [W jet, W jet, b jet])."""
    halves = [((0, *two), tuple(sorted({1, 2, 3, 4, 5} - set(two)))) for two in combinations(range(1, 6), 2)]
    return np.array([pair for first, second in halves for pair in product(_b_last(first), _b_last(second))])


def _b_last(jets: tuple[int, ...]) -> list[list[int]]:
    return [[*(jet for jet in jets if jet != b), b] for b in jets]


#: The ways to make two pairs of four jets, in either order: (way, boson, jet).
_PAIRINGS = np.array(
    [[pair, [jet for jet in range(4) if jet not in pair]] for pair in map(list, combinations(range(4), 2))]
)
_TOP_PAIRINGS = _two_triplets()

_MASSES = {
    "zuds": (Mass(("Z",), _all_events, visible_mass),),
    "qq": (Mass(("dijet",), _all_events, visible_mass),),
    "ww": (Mass(("W", "W"), _all_events, boson_pair(None)),),
    "zh": (
        Mass(("H, Z to neutrinos",), _invisible_z, visible_mass),
        Mass(("Z", "H"), _nothing_missing, boson_pair((Z_MASS, H_MASS))),
    ),
    "ttbar": (Mass(("W", "W", "top", "top"), _nothing_missing, top_pair),),
}
_NEED_TRUTH = ("zh", "ttbar")
