"""How wrong a reconstruction is in one event, so that the worst events can be looked at first."""

from __future__ import annotations

import numpy as np

from ringflow.evaluate.jets import find_jets
from ringflow.evaluate.matching import match_jets
from ringflow.evaluate.momenta import Floats, Momenta

#: What events can be ordered by; GeV.
MEASURES = ("jet", "energy")


def event_errors(found: Momenta, visible: Momenta | None) -> dict[str, float | None]:
    """The errors of a single event; without truth there is only the energy."""
    energy = float(found.energy.sum())
    if visible is None:
        return {"energy_sum": round(energy, 3), "true_energy": None, "jet": None, "energy": None}
    jet, total = errors_by_event(found, visible)
    return {
        "energy_sum": round(energy, 3),
        "true_energy": round(float(visible.energy.sum()), 3),
        "jet": round(float(jet[0]), 3),
        "energy": round(float(total[0]), 3),
    }


def errors_by_event(found: Momenta, visible: Momenta) -> tuple[Floats, Floats]:
    """Per event the largest error of a jet and the error of the visible energy, both in GeV.

    The error of a true jet is the difference of transverse momentum to the jet it is matched with; a jet that is not found is
    wrong by all it has, and so is a jet that is not true.
    """
    true_jets, jets = find_jets(visible), find_jets(found)
    pairs = match_jets(true_jets, jets)
    true_error, false_error = true_jets.pt.copy(), jets.pt.copy()
    true_error[pairs.truth] = np.abs(jets.pt[pairs.reco] - true_jets.pt[pairs.truth])
    false_error[pairs.reco] = 0.0
    largest = np.zeros(len(visible.counts))
    np.maximum.at(largest, true_jets.event, true_error)
    np.maximum.at(largest, jets.event, false_error)
    return largest, np.abs(found.sums()[:, 3] - visible.sums()[:, 3])
