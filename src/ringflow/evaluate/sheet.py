"""The score sheet of one reconstruction of one sample: histograms to draw, tallies and entries the figures are made of.

Distributions and fractions are drawn from the histograms; they add up over blocks of events and over processes. Medians and
widths are taken of single values, see `bootstrap.Entries`. Momenta, energies and masses in GeV.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hist
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from ringflow.base.rundir import write_atomic
from ringflow.evaluate.bootstrap import REPLICATES, Entries, event_weights
from ringflow.evaluate.jets import find_jets, in_barrel, invisible_momentum, masses_of, measure_masses
from ringflow.evaluate.matching import Pairs, match_jets, match_particles
from ringflow.evaluate.momenta import Floats, Integers, Mask, Momenta, generated, momenta, visible
from ringflow.event.block import EventBlock
from ringflow.event.particles import PARTICLE_CLASSES

#: Labels of the particle classes of every detector; forward classes go to the overflow of the axis.
LABELS = (1, 2, 3, 4, 5)
JET_PT_EDGES = (5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0)
ETA_EDGES = tuple(np.linspace(-3.0, 3.0, 13).tolist())
MISSING_PT_EDGES = (5.0, 10.0, 20.0, 40.0, 60.0, 100.0, 200.0)
PARTICLE_PT_EDGES = tuple(np.geomspace(0.1, 100.0, 17).tolist())
RESPONSE_PT_EDGES = tuple(np.geomspace(0.1, 100.0, 11).tolist())

Histograms = dict[str, hist.Hist[Any]]


def book() -> Histograms:
    """Empty histograms, by name."""
    jet_pt = "true jet $p_T$ [GeV]"
    matched = hist.axis.Boolean(name="matched", label="matched")
    label = hist.axis.IntCategory(LABELS, name="label", label="class")
    pt = hist.axis.Variable(PARTICLE_PT_EDGES, name="pt", label="$p_T$ [GeV]")
    eta = hist.axis.Regular(len(ETA_EDGES) - 1, ETA_EDGES[0], ETA_EDGES[-1], name="eta", label=r"$\eta$")

    def response(top: float) -> hist.axis.Regular:
        return hist.axis.Regular(600, 0, top, name="response", label="reconstructed / true")

    axes: dict[str, tuple[Any, ...]] = {
        "jet_response": (hist.axis.Variable(JET_PT_EDGES, name="truth_pt", label=jet_pt), response(3.0)),
        "jet_truth_pt": (hist.axis.Regular(100, 0, 200, name="truth_pt", label=jet_pt), matched),
        "jet_reco_pt": (hist.axis.Regular(100, 0, 200, name="pt", label="jet $p_T$ [GeV]"), matched),
        "particle_truth": (label, pt, eta, matched),
        "particle_reco": (label, pt, eta, matched),
        "confusion": (
            hist.axis.IntCategory((0, *LABELS), name="truth_label", label="true class"),
            hist.axis.IntCategory((0, *LABELS), name="reco_label", label="reconstructed class"),
        ),
        "multiplicity": (
            label,
            hist.axis.Regular(81, -40.5, 40.5, name="difference", label="reconstructed - true particles"),
        ),
        "particles_per_event": (hist.axis.Regular(120, 0, 240, name="count", label="particles per event"),),
        "met_response": (
            hist.axis.Variable(MISSING_PT_EDGES, name="truth_met", label="true missing $p_T$ [GeV]"),
            response(6.0),
        ),
        "met_error": (
            hist.axis.StrCategory(["x", "y", "z"], name="component", label="component"),
            hist.axis.Regular(400, -40, 40, name="difference", label="missing momentum, reconstructed - true [GeV]"),
        ),
        "visible_energy": (
            hist.axis.Regular(1000, 0.5, 1.5, name="ratio", label="visible energy, reconstructed / true"),
        ),
        "mass": (
            hist.axis.StrCategory([], growth=True, name="name", label="mass"),
            hist.axis.Regular(200, 0, 400, name="mass", label="mass [GeV]"),
        ),
    }
    return {name: hist.Hist(*parts) for name, parts in axes.items()}


def save_histogram(histograms: Mapping[str, hist.Hist[Any]], path: Path) -> None:
    """One histogram of all reconstructions as JSON in the exchange format of UHI; `load_histogram` reads it back."""
    import uhi.io.json
    from boost_histogram.serialization import to_uhi

    described = {name: to_uhi(histogram) for name, histogram in histograms.items()}
    write_atomic(path, json.dumps(described, default=uhi.io.json.default) + "\n")


def load_histogram(path: Path) -> dict[str, hist.Hist[Any]]:
    """What `save_histogram` wrote."""
    import uhi.io.json

    described = json.loads(path.read_text(encoding="utf-8"), object_hook=uhi.io.json.object_hook)
    return {name: hist.Hist(part) for name, part in described.items()}


#: Below this true missing pT (GeV) a ratio to it says nothing.
MIN_MISSING_PT = 5.0
#: Rows of entries are bins of two quantities: the first times this, plus the second.
_BINS = 100


def two_bins(row: npt.NDArray[np.int16]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """The bins, from one, that a row stands for: true pT and pseudorapidity of a jet, label and true pT of a particle."""
    return divmod(row, np.int16(_BINS))


@dataclass(frozen=True)
class Truth:
    """What is true of a block of events; the same for all reconstructions."""

    targets: Momenta
    visible: Momenta
    jets: Momenta  # of the visible particles
    generated: Momenta
    generated_jets: Momenta
    invisible: Floats  # summed four-momentum of the neutrinos of every event
    barrel: Mask

    @classmethod
    def of(cls, block: EventBlock) -> Truth:
        """The truth of a block that has one."""
        seen, made = visible(block), generated(block)
        jets = find_jets(seen), made, find_jets(made)
        return cls(momenta(block["target"]), seen, *jets, invisible_momentum(block), in_barrel(seen))


@dataclass(frozen=True)
class Sheet:
    """Histograms, tallies and entries; sheets of parts of the events add up to that of all of them.

    A tally has the axes (cell, ..., 1 + replicates): jets by bin of true pT and whether they were found, particles by true and
    by reconstructed label. Those named `generated` are against all generated particles and their jets.
    """

    histograms: Histograms
    tallies: dict[str, Floats]
    entries: dict[str, Entries]

    @classmethod
    def empty(cls, sample: str, *, has_truth: bool, replicates: int = REPLICATES) -> Sheet:
        """Nothing counted yet; without replicates no figure has an interval."""
        cells: dict[str, tuple[int, ...]] = dict.fromkeys(("events", "jets", "particles"), ())
        names = ["mass"]
        if has_truth:
            cells |= {"jet_matched": (len(JET_PT_EDGES), 2), "generated_jet_matched": (1, 2)}
            cells |= dict.fromkeys(("confusion", "generated_confusion"), (len(PARTICLE_CLASSES),) * 2)
            names += ["jet_response", "particle_response", "met_response", "momentum_error", "visible_energy"]
            names += ["generated_jet_response"]
            names += ["total_energy"] if sample.startswith("zuds") else []
        tallies = {name: np.zeros((*shape, 1 + replicates)) for name, shape in cells.items()}
        return cls(book(), tallies, {name: Entries(replicates) for name in names})

    def add(self, other: Sheet) -> None:
        """Add the sheet of further events."""
        for name in self.histograms:
            self.histograms[name] = self.histograms[name] + other.histograms[name]
        for name, tally in self.tallies.items():
            tally += other.tallies[name]
        for name, entries in self.entries.items():
            entries.add(other.entries[name])

    def count(self, name: str, weights: Floats, event: Integers, *cell: Integers) -> None:
        """Count things that belong to events of a block, whose weights are the columns of `weights`."""
        tally = self.tallies[name]
        place = np.ravel_multi_index(cell, tally.shape[:-1]) if cell else np.zeros(len(event), np.int64)
        entries = csr_array((np.ones(len(event)), (place, event)), shape=(tally[..., 0].size, weights.shape[1]))
        tally += (entries @ weights.T).reshape(tally.shape)


def mass_names(sample: str, *, has_truth: bool) -> list[str]:
    """Names of the masses of a sample: the rows of the entries of masses."""
    return list(dict.fromkeys(name for mass in masses_of(sample, has_truth) for name in mass.names))


def measure(sheet: Sheet, sample: str, event_number: Integers, truth: Truth | None, reco: Momenta) -> None:
    """Add the events of a block to a sheet; without truth, only what needs none is counted."""
    weights = event_weights(event_number, sheet.entries["mass"].replicates)
    jets, histograms, entries = find_jets(reco), sheet.histograms, sheet.entries
    histograms["particles_per_event"].fill(count=reco.counts)
    events = np.arange(len(reco.counts))
    for name, event in (("events", events), ("particles", reco.event), ("jets", jets.event)):
        sheet.count(name, weights, event)
    rows = mass_names(sample, has_truth=truth is not None)
    invisible = truth.invisible if truth is not None else np.zeros((len(events), 4))
    for name, (event, values) in measure_masses(masses_of(sample, truth is not None), invisible, reco):
        if len(values):
            histograms["mass"].fill(name=name, mass=values)
        entries["mass"].fill(event_number[event], values, np.full(len(values), rows.index(name)))
    if truth is None:
        histograms["jet_reco_pt"].fill(pt=jets.pt, matched=False)
        histograms["particle_reco"].fill(label=reco.label, pt=reco.pt, eta=reco.eta, matched=False)
        return
    _measure_particles(sheet, truth.targets, reco, event_number, weights)
    _measure_jets(sheet, truth.jets, jets, event_number, weights)
    _measure_generated(sheet, truth, reco, jets, event_number, weights)
    _measure_sums(sheet, truth, reco.sums(), event_number)


def _measure_jets(sheet: Sheet, truth: Momenta, reco: Momenta, number: Integers, weights: Floats) -> None:
    pairs, found, real = _matched(match_jets, truth, reco)
    true_pt, paired_pt = truth.pt, truth.pt[pairs.truth]
    response = reco.pt[pairs.reco] / paired_pt
    sheet.histograms["jet_response"].fill(truth_pt=paired_pt, response=response)
    sheet.histograms["jet_truth_pt"].fill(truth_pt=true_pt, matched=found)
    sheet.histograms["jet_reco_pt"].fill(pt=reco.pt, matched=real)
    row = _BINS * np.digitize(paired_pt, JET_PT_EDGES) + np.digitize(truth.eta[pairs.truth], ETA_EDGES)
    sheet.entries["jet_response"].fill(number[truth.event[pairs.truth]], response, row)
    # A cell per bin of true pT, the last for everything above.
    sheet.count("jet_matched", weights, truth.event, np.digitize(true_pt, JET_PT_EDGES[1:]), found.astype(np.int64))


def _measure_particles(sheet: Sheet, truth: Momenta, reco: Momenta, number: Integers, weights: Floats) -> None:
    """Who was found, invented, taken for whom, and how momenta agree."""
    pairs, found, real = _matched(match_particles, truth, reco)
    for name, particles, matched in (("particle_truth", truth, found), ("particle_reco", reco, real)):
        sheet.histograms[name].fill(label=particles.label, pt=particles.pt, eta=particles.eta, matched=matched)
    event, true_label, reco_label = _confusion(truth, reco, pairs, found, real)
    sheet.histograms["confusion"].fill(truth_label=true_label, reco_label=reco_label)
    sheet.count("confusion", weights, event, true_label, reco_label)
    true_pt = truth.pt[pairs.truth]
    row = _BINS * truth.label[pairs.truth] + np.digitize(true_pt, RESPONSE_PT_EDGES)
    sheet.entries["particle_response"].fill(number[truth.event[pairs.truth]], reco.pt[pairs.reco] / true_pt, row)
    for label in LABELS:
        difference = reco.select(reco.label == label).counts - truth.select(truth.label == label).counts
        sheet.histograms["multiplicity"].fill(label=label, difference=difference)


def _confusion(truth: Momenta, reco: Momenta, pairs: Pairs, found: Mask, real: Mask) -> tuple[Integers, ...]:
    """Event, true and reconstructed label of all pairs, of true particles without a partner (taken for none), and of candidates
    without one (made of none)."""
    missed, fake = np.flatnonzero(~found), np.flatnonzero(~real)
    true_label = np.concatenate([truth.label[pairs.truth], truth.label[missed], 0 * fake])
    reco_label = np.concatenate([reco.label[pairs.reco], 0 * missed, reco.label[fake]])
    event = np.concatenate([truth.event[pairs.truth], truth.event[missed], reco.event[fake]])
    return event, true_label, reco_label


def _measure_generated(
    sheet: Sheet, truth: Truth, reco: Momenta, jets: Momenta, number: Integers, weights: Floats
) -> None:
    """The same pairs of particles and of jets with everything generated, whether the detector could see it or not."""
    matched = _matched(match_particles, truth.generated, reco)
    sheet.count("generated_confusion", weights, *_confusion(truth.generated, reco, *matched))
    true = truth.generated_jets
    pairs, found, _ = _matched(match_jets, true, jets)
    response = jets.pt[pairs.reco] / true.pt[pairs.truth]
    sheet.entries["generated_jet_response"].fill(number[true.event[pairs.truth]], response)
    sheet.count("generated_jet_matched", weights, true.event, 0 * true.event, found.astype(np.int64))


def _measure_sums(sheet: Sheet, truth: Truth, reco: Floats, number: Integers) -> None:
    """Missing momentum (minus the sum) and visible energy; `reco` is (event, [px, py, pz, energy])."""
    histograms, entries, true = sheet.histograms, sheet.entries, truth.visible.sums()
    true_pt, reco_pt = np.hypot(true[:, 0], true[:, 1]), np.hypot(reco[:, 0], reco[:, 1])
    events = np.flatnonzero(true_pt > MIN_MISSING_PT)
    response = reco_pt[events] / true_pt[events]
    histograms["met_response"].fill(truth_met=true_pt[events], response=response)
    entries["met_response"].fill(number[events], response, np.digitize(true_pt[events], MISSING_PT_EDGES))
    error = true[:, :3] - reco[:, :3]
    for axis, component in enumerate("xyz"):
        histograms["met_error"].fill(component=component, difference=error[:, axis])
    entries["momentum_error"].fill(number, np.linalg.norm(error, axis=1))
    events = np.flatnonzero(true[:, 3] > 0)  # where nothing was visible there is no ratio
    ratio = reco[events, 3] / true[events, 3]
    histograms["visible_energy"].fill(ratio=ratio)
    entries["visible_energy"].fill(number[events], ratio)
    if "total_energy" in entries:
        entries["total_energy"].fill(number[truth.barrel], reco[truth.barrel, 3])


def _matched(match: Callable[[Momenta, Momenta], Pairs], truth: Momenta, reco: Momenta) -> tuple[Pairs, Mask, Mask]:
    """The pairs, and by true and by reconstructed object whether it is in one."""
    pairs = match(truth, reco)
    return pairs, np.isin(np.arange(len(truth)), pairs.truth), np.isin(np.arange(len(reco)), pairs.reco)
