"""Sums over an event: missing momentum and visible energy."""

from __future__ import annotations

import numpy as np

from ringflow.evaluate.candidates import Floats, Integers, Momenta
from ringflow.evaluate.histograms import MISSING_PT_EDGES
from ringflow.evaluate.sheet import Sheet, Truth

#: Below this true missing pT (GeV) a ratio to it says nothing.
MIN_MISSING_PT = 5.0


def fill_missing_momentum(sheet: Sheet, truth: Floats, reco: Floats, number: Integers) -> None:
    """Count a block of summed four-momenta (event, [px, py, pz, energy]); what is missing is minus the sum."""
    true_pt, reco_pt = np.hypot(truth[:, 0], truth[:, 1]), np.hypot(reco[:, 0], reco[:, 1])
    events = np.flatnonzero(true_pt > MIN_MISSING_PT)
    response = reco_pt[events] / true_pt[events]
    sheet.histograms["met_response"].fill(truth_met=true_pt[events], response=response)
    sheet.entries["met_response"].fill(number[events], response, np.digitize(true_pt[events], MISSING_PT_EDGES))
    error = truth[:, :3] - reco[:, :3]
    for axis, component in enumerate("xyz"):
        sheet.histograms["met_error"].fill(component=component, difference=error[:, axis])
    sheet.entries["momentum_error"].fill(number, np.linalg.norm(error, axis=1))


def fill_visible_energy(sheet: Sheet, truth: Truth, reco: Momenta, number: Integers) -> None:
    """Count the summed energies of a block; events in which nothing was visible have no ratio."""
    true_energy, energy = truth.visible.sums()[:, 3], reco.sums()[:, 3]
    events = np.flatnonzero(true_energy > 0)
    ratio = energy[events] / true_energy[events]
    sheet.histograms["visible_energy"].fill(ratio=ratio)
    sheet.entries["visible_energy"].fill(number[events], ratio)
    if "total_energy" in sheet.entries:
        sheet.entries["total_energy"].fill(number[truth.barrel], energy[truth.barrel])
