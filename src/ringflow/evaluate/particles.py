"""Particles compared one by one: who was found, who was invented, who was taken for whom, and how well momenta agree."""

from __future__ import annotations

import numpy as np

from ringflow.evaluate.bootstrap import Drawn
from ringflow.evaluate.candidates import Floats, Integers, Mask, Momenta
from ringflow.evaluate.histograms import LABELS
from ringflow.evaluate.matching import Pairs, match_particles
from ringflow.evaluate.sheet import CLASS_CELLS, Sheet


def fill_particles(sheet: Sheet, truth: Momenta, reco: Momenta, drawn: Drawn) -> None:
    """Match the candidates of a block to the true particles and count."""
    pairs = match_particles(truth, reco)
    found, real = _members(len(truth), pairs.truth), _members(len(reco), pairs.reco)
    for name, particles, matched in (("particle_truth", truth, found), ("particle_reco", reco, real)):
        sheet.histograms[name].fill(label=particles.label, pt=particles.pt, eta=particles.eta, matched=matched)
    _fill_confusion(sheet, truth, reco, pairs, drawn.weights)
    _fill_response(sheet, truth, reco, pairs, drawn.number)
    _fill_multiplicity(sheet, truth, reco)


def _fill_confusion(sheet: Sheet, truth: Momenta, reco: Momenta, pairs: Pairs, weights: Floats) -> None:
    """Pairs, then true particles without a partner (taken for none), then candidates without one (made of none)."""
    missed, fake = ~_members(len(truth), pairs.truth), ~_members(len(reco), pairs.reco)
    true_label = np.concatenate([truth.label[pairs.truth], truth.label[missed], np.zeros(fake.sum(), np.int64)])
    reco_label = np.concatenate([reco.label[pairs.reco], np.zeros(missed.sum(), np.int64), reco.label[fake]])
    event = np.concatenate([truth.event[pairs.truth], truth.event[missed], reco.event[fake]])
    sheet.histograms["confusion"].fill(truth_label=true_label, reco_label=reco_label)
    sheet.tallies["confusion"].fill(weights, event, reco_label.astype(np.float64), true_label)


def _fill_response(sheet: Sheet, truth: Momenta, reco: Momenta, pairs: Pairs, number: Integers) -> None:
    true_pt, label = truth.pt[pairs.truth], truth.label[pairs.truth]
    response = reco.pt[pairs.reco] / true_pt
    sheet.entries["particle_response"].fill(number[truth.event[pairs.truth]], response, CLASS_CELLS.of(label, true_pt))


def _fill_multiplicity(sheet: Sheet, truth: Momenta, reco: Momenta) -> None:
    for label in LABELS:
        difference = reco.select(reco.label == label).counts - truth.select(truth.label == label).counts
        sheet.histograms["multiplicity"].fill(label=label, difference=difference)


def _members(size: int, positions: Integers) -> Mask:
    mask = np.zeros(size, bool)
    mask[positions] = True
    return mask
