"""Jets of a block of events, with FastJet.

`find_jets` is the definition all jet figures use: `ee_genkt`, p = -1, R = 0.4, pT > 5 GeV. `force_jets` clusters an event
into a fixed number of jets (Durham), for masses. About 0.1 ms per ttbar event each.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType
from typing import Any

import awkward as ak
import numpy as np

from ringflow.evaluate.candidates import Floats, Mask, Momenta

RADIUS = 0.4
POWER = -1.0
MIN_PT = 5.0


def find_jets(particles: Momenta) -> Momenta:
    """The jets above 5 GeV of every event, in order of falling pT within it."""
    fastjet = _fastjet()
    definition = fastjet.JetDefinition(fastjet.ee_genkt_algorithm, RADIUS, POWER)
    if not len(particles):
        return particles
    jets = fastjet.ClusterSequence(_events(particles), definition).inclusive_jets(min_pt=MIN_PT)
    return _momenta(jets[ak.argsort(jets.px**2 + jets.py**2, axis=1, ascending=False)])


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
    columns = [ak.to_numpy(ak.flatten(jets[name])).reshape(-1, number) for name in ("px", "py", "pz", "E")]
    return np.stack(columns, axis=2), enough


def _events(particles: Momenta) -> Any:
    columns = {"px": particles.px, "py": particles.py, "pz": particles.pz, "E": particles.energy}
    return ak.unflatten(ak.zip(columns, with_name="Momentum4D"), particles.counts)


def _momenta(jets: Any) -> Momenta:
    counts = ak.to_numpy(ak.num(jets)).astype(np.int64)
    px, py, pz, energy = (ak.to_numpy(ak.flatten(jets[name])) for name in ("px", "py", "pz", "E"))
    return Momenta(counts, px, py, pz, energy, np.zeros(int(counts.sum()), np.int64))


@cache
def _fastjet() -> ModuleType:
    import fastjet

    # Its banner goes to stdout, which carries JSON and nothing else.
    fastjet._swig.ClusterSequence.set_fastjet_banner_stream(None)
    return fastjet  # type: ignore[no-any-return]
