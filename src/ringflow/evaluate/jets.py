"""Jets of a block of events, with FastJet.

`find_jets` is the definition all jet figures use: `ee_genkt`, p = -1, R = 0.4, pT > 5 GeV. `force_jets` clusters an event
into a fixed number of jets (Durham), for masses. About 0.1 ms per ttbar event each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import combinations, product
from types import ModuleType
from typing import Any, NamedTuple

import awkward as ak
import numpy as np

from ringflow.evaluate.bootstrap import Entries
from ringflow.evaluate.momenta import Floats, Integers, Mask, Momenta, momenta
from ringflow.event.block import EventBlock
from ringflow.event.particles import INVISIBLE

RADIUS = 0.4
POWER = -1.0
MIN_PT = 5.0
_COMPONENTS = ("px", "py", "pz", "E")


def find_jets(particles: Momenta) -> Momenta:
    """The jets above 5 GeV of every event, in order of falling pT within it."""
    if not len(particles):
        return particles
    fastjet = _fastjet()
    definition = fastjet.JetDefinition(fastjet.ee_genkt_algorithm, RADIUS, POWER)
    jets = fastjet.ClusterSequence(_events(particles), definition).inclusive_jets(min_pt=MIN_PT)
    jets = jets[ak.argsort(jets.px**2 + jets.py**2, axis=1, ascending=False)]
    counts = ak.to_numpy(ak.num(jets)).astype(np.int64)
    px, py, pz, energy = (ak.to_numpy(ak.flatten(jets[name])) for name in _COMPONENTS)
    return Momenta(counts, px, py, pz, energy, np.zeros(len(px), np.int64))


def force_jets(particles: Momenta, number: int) -> tuple[Floats, Mask]:
    """Exactly `number` Durham jets (event, jet, [px, py, pz, energy]) of every event that has enough particles.

    The mask says which events these are.
    """
    enough: Mask = particles.counts >= number
    if not enough.any():
        return np.zeros((0, number, 4)), enough
    fastjet = _fastjet()
    definition = fastjet.JetDefinition0Param(fastjet.ee_kt_algorithm)
    sequence = fastjet.ClusterSequence(_events(particles.select_events(enough)), definition)
    with warnings.catch_warnings():
        # FastJet warns of algorithms without exclusive jets and takes Durham, which has them, for one.
        warnings.filterwarnings("ignore", message="dcut and exclusive jets", category=UserWarning)
        jets = sequence.exclusive_jets(n_jets=number)
    columns = [ak.to_numpy(ak.flatten(jets[name])).reshape(-1, number) for name in _COMPONENTS]
    return np.stack(columns, axis=2), enough


def _events(particles: Momenta) -> Any:
    columns = (particles.px, particles.py, particles.pz, particles.energy)
    vectors = ak.zip(dict(zip(_COMPONENTS, columns, strict=True)), with_name="Momentum4D")
    return ak.unflatten(vectors, particles.counts)


@cache
def _fastjet() -> ModuleType:
    import fastjet

    # Its banner goes to stdout, which carries JSON and nothing else.
    fastjet._swig.ClusterSequence.set_fastjet_banner_stream(None)
    return fastjet  # type: ignore[no-any-return]


#: Largest |cos theta| of the thrust axis of an event in the barrel.
BARREL = 0.7
CENTRAL_FRACTION = 0.9
_ITERATIONS = 5


def in_barrel(particles: Momenta) -> Mask:
    """Events whose thrust axis points into the barrel; never those without particles."""
    axis = thrust_axis(particles)
    return (np.abs(axis[:, 2]) < BARREL) & (particles.counts > 0)


def thrust_axis(particles: Momenta) -> Floats:
    """Unit vector per event along which the summed |momentum components| are largest.

    From the main axis of the linear momentum tensor each step sums the momenta of one hemisphere; the sum never gets
    shorter, and a few steps reach the end of it [Brandt, Dahmen 1979].
    """
    momentum = np.stack([particles.px, particles.py, particles.pz], axis=1)
    length = np.maximum(np.linalg.norm(momentum, axis=1), 1e-12)
    event, events = particles.event, len(particles.counts)
    products = (momentum[:, :, np.newaxis] * momentum[:, np.newaxis, :] / length[:, np.newaxis, np.newaxis]).reshape(
        -1, 9
    )
    tensor = np.stack([np.bincount(event, products[:, k], events) for k in range(9)], axis=1).reshape(-1, 3, 3)
    axis = np.linalg.eigh(tensor).eigenvectors[:, :, 2]
    for _ in range(_ITERATIONS):
        side = np.where((momentum * axis[event]).sum(axis=1) >= 0, 1.0, -1.0)
        summed = np.stack([np.bincount(event, side * momentum[:, k], events) for k in range(3)], axis=1)
        norm = np.linalg.norm(summed, axis=1, keepdims=True)
        axis = np.where(norm > 0, summed / np.maximum(norm, 1e-12), axis)
    return axis


def jet_energy_resolution(energy: Entries) -> Floats:
    """sqrt(2) RMS90 / mean90 of the total energy, per replicate; NaN where there is nothing."""
    resolution: Floats = np.sqrt(2.0) * relative_rms(energy, CENTRAL_FRACTION)
    return resolution


def relative_rms(entries: Entries, share: float = 1.0) -> Floats:
    """Standard deviation over mean, per replicate; NaN where there is nothing.

    Of the narrowest window that holds a share of the values: with 90 %, it is RMS90 / mean90 [Thomson 2009, NIM A 611].
    """
    value, often = entries.samples()
    return np.array([_narrowest(np.repeat(value, times), share) for times in often])


def _narrowest(ordered: Floats, share: float) -> float:
    if not len(ordered):
        return float("nan")
    inside = int(np.ceil(share * len(ordered) * (1 - 1e-12)))
    first = int(np.argmin(ordered[inside - 1 :] - ordered[: len(ordered) - inside + 1]))
    window = ordered[first : first + inside]
    return float(window.std() / window.mean()) if window.mean() else float("nan")


#: Masses (GeV) that pairings are judged by.
W_MASS, Z_MASS, H_MASS = 80.4, 91.2, 125.0
#: Four-momentum of the invisible particles: a Z that decayed to neutrinos, or nothing but neutrinos inside jets (GeV).
_Z_WINDOW = (70.0, 110.0)
_QUIET = 20.0


class Mass(NamedTuple):
    """One or several masses of a sample: their names, which events have them and how they are measured."""

    names: tuple[str, ...]
    events: Callable[[Floats], Mask]  # of the summed invisible four-momenta
    measure: Callable[[Momenta], tuple[Floats, Mask]]  # (event, mass of each name), and which events could be measured


def masses_of(sample: str, has_truth: bool) -> tuple[Mass, ...]:
    """What to measure in a sample; in one we know nothing about, the mass of everything visible."""
    process = sample.partition("@")[0].split("_")[0]
    if process in _MASSES and (has_truth or process not in _NEED_TRUTH):
        return _MASSES[process]
    return (Mass(("visible",), _all_events, visible_mass),)


def measure_masses(
    masses: tuple[Mass, ...], invisible: Floats, reco: Momenta
) -> Iterator[tuple[str, tuple[Integers, Floats]]]:
    """Name by name the events of the block and their masses."""
    for mass in masses:
        chosen = mass.events(invisible)
        values, measured = mass.measure(reco.select_events(chosen))
        for column, name in enumerate(mass.names):
            yield name, (np.flatnonzero(chosen)[measured], values[:, column])


def invisible_momentum(block: EventBlock) -> Floats:
    """Summed four-momentum of the neutrinos and their like in every event."""
    particles = block["particle"]
    return momenta(particles).select(np.isin(np.abs(particles["pdg"]), INVISIBLE)).sums()


def visible_mass(reco: Momenta) -> tuple[Floats, Mask]:
    """Mass of all particles of an event."""
    some: Mask = reco.counts > 0
    return invariant_mass(reco.sums()[some])[:, np.newaxis], some


def boson_pair(masses: tuple[float, float] | None, reco: Momenta) -> tuple[Floats, Mask]:
    """Two dijet masses of four jets: nearest to the given two masses, or without them of most equal mass."""
    jets, enough = force_jets(reco, 4)
    pairs = invariant_mass(jets[:, _PAIRINGS].sum(axis=3))  # (event, pairing, boson)
    off = pairs - (pairs[..., ::-1] if masses is None else np.array(masses))
    return pairs[np.arange(len(pairs)), (off**2).sum(axis=2).argmin(axis=1)], enough


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


def _others(jets: Iterable[int], taken: Iterable[int]) -> list[int]:
    return [jet for jet in jets if jet not in taken]


#: The ways to make two pairs of four jets, in either order: (way, boson, jet).
_PAIRINGS = np.array([[pair, _others(range(4), pair)] for pair in combinations(range(4), 2)])
#: The 90 ways to make two tops of six jets: (way, top, [W jet, W jet, b jet]).
_TOP_PAIRINGS = np.array(
    [
        [[*_others(first, [b]), b], [*_others(second, [other_b]), other_b]]
        for first in ([0, *two] for two in combinations(range(1, 6), 2))
        for second in [_others(range(6), first)]
        for b, other_b in product(first, second)
    ]
)

_MASSES = {
    "zuds": (Mass(("Z",), _all_events, visible_mass),),
    "qq": (Mass(("dijet",), _all_events, visible_mass),),
    "ww": (Mass(("W", "W"), _all_events, partial(boson_pair, None)),),
    "zh": (
        Mass(("H, Z to neutrinos",), _invisible_z, visible_mass),
        Mass(("Z", "H"), _nothing_missing, partial(boson_pair, (Z_MASS, H_MASS))),
    ),
    "ttbar": (Mass(("W", "W", "top", "top"), _nothing_missing, top_pair),),
}
_NEED_TRUTH = ("zh", "ttbar")
