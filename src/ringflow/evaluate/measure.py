"""Measure one reconstruction of a block of events: particles, jets, missing momentum, visible energy, masses."""

from __future__ import annotations

import numpy as np

from ringflow.evaluate.bootstrap import Drawn
from ringflow.evaluate.candidates import Floats, Integers, Momenta
from ringflow.evaluate.jets import find_jets
from ringflow.evaluate.masses import masses_of, measure_masses
from ringflow.evaluate.matching import match_jets
from ringflow.evaluate.missing import fill_missing_momentum, fill_visible_energy
from ringflow.evaluate.particles import fill_particles
from ringflow.evaluate.sheet import JET_CELLS, Sheet, Truth, jet_bin, mass_names


def measure(sheet: Sheet, sample: str, event_number: Integers, truth: Truth | None, reco: Momenta) -> None:
    """Add the events of a block to a sheet; without truth, only what needs none is counted."""
    drawn = Drawn.of(event_number, sheet.replicates)
    jets = find_jets(reco)
    _fill_counts(sheet, reco, jets, drawn.weights)
    _fill_masses(sheet, sample, truth, reco, drawn.number)
    if truth is None:
        sheet.histograms["jet_reco_pt"].fill(pt=jets.pt, matched=False)
        sheet.histograms["particle_reco"].fill(label=reco.label, pt=reco.pt, eta=reco.eta, matched=False)
        return
    fill_particles(sheet, truth.targets, reco, drawn)
    fill_jets(sheet, truth.jets, jets, drawn)
    fill_missing_momentum(sheet, truth.visible.sums(), reco.sums(), drawn.number)
    fill_visible_energy(sheet, truth, reco, drawn.number)


def fill_jets(sheet: Sheet, truth: Momenta, reco: Momenta, drawn: Drawn) -> None:
    """Match the jets of a block to the true ones and count."""
    pairs = match_jets(truth, reco)
    found, real = np.zeros(len(truth), bool), np.zeros(len(reco), bool)
    found[pairs.truth], real[pairs.reco] = True, True
    true_pt, histograms = truth.pt, sheet.histograms
    response = reco.pt[pairs.reco] / true_pt[pairs.truth]
    histograms["jet_response"].fill(truth_pt=true_pt[pairs.truth], response=response)
    histograms["jet_truth_pt"].fill(truth_pt=true_pt, matched=found)
    histograms["jet_reco_pt"].fill(pt=reco.pt, matched=real)
    place = JET_CELLS.of(true_pt[pairs.truth], truth.eta[pairs.truth])
    sheet.entries["jet_response"].fill(drawn.number[truth.event[pairs.truth]], response, place)
    sheet.tallies["jet_matched"].fill(drawn.weights, truth.event, found.astype(np.float64), jet_bin(true_pt))


def _fill_counts(sheet: Sheet, reco: Momenta, jets: Momenta, weights: Floats) -> None:
    sheet.histograms["particles_per_event"].fill(count=reco.counts)
    events = np.arange(len(reco.counts))
    sheet.tallies["events"].fill(weights, events, np.ones(len(events)))
    sheet.tallies["particles"].fill(weights, reco.event, np.ones(len(reco)))
    sheet.tallies["jets"].fill(weights, jets.event, np.ones(len(jets)))


def _fill_masses(sheet: Sheet, sample: str, truth: Truth | None, reco: Momenta, number: Integers) -> None:
    has_truth = truth is not None
    rows = mass_names(sample, has_truth=has_truth)
    invisible = truth.invisible if truth is not None else np.zeros((len(reco.counts), 4))
    for name, (events, values) in measure_masses(masses_of(sample, has_truth), invisible, reco):
        if len(values):
            sheet.histograms["mass"].fill(name=name, mass=values)
        sheet.entries["mass"].fill(number[events], values, np.full(len(values), rows.index(name)))
