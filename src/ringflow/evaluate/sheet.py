"""The score sheet of one reconstruction of one sample: histograms to draw, tallies and entries the figures are made of.

Distributions and fractions are drawn from the histograms; they add up over blocks of events and over processes. Medians and
widths are taken of single values, see `bootstrap.Entries`. Momenta, energies and masses in GeV.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import hist
import numpy as np
import numpy.typing as npt

from ringflow.base.rundir import write_atomic
from ringflow.evaluate.bootstrap import REPLICATES, Drawn, Entries, Tally
from ringflow.evaluate.jets import find_jets, in_barrel, invisible_momentum, masses_of, measure_masses
from ringflow.evaluate.matching import Pairs, match_jets, match_particles
from ringflow.evaluate.momenta import Floats, Integers, Mask, Momenta, targets, visible
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
    return {**_jet_histograms(), **_particle_histograms(), **_event_histograms()}


def add(total: Histograms, part: Mapping[str, hist.Hist[Any]]) -> None:
    """Add the histograms of a part of the events to `total`, in place."""
    for name, histogram in part.items():
        total[name] = total[name] + histogram


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


def _jet_histograms() -> Histograms:
    truth_pt = hist.axis.Variable(JET_PT_EDGES, name="truth_pt", label="true jet $p_T$ [GeV]")
    matched = hist.axis.Boolean(name="matched", label="matched")
    return {
        "jet_response": hist.Hist(truth_pt, _response(600, 3.0)),
        "jet_truth_pt": hist.Hist(
            hist.axis.Regular(100, 0, 200, name="truth_pt", label="true jet $p_T$ [GeV]"), matched
        ),
        "jet_reco_pt": hist.Hist(hist.axis.Regular(100, 0, 200, name="pt", label="jet $p_T$ [GeV]"), matched),
    }


def _particle_histograms() -> Histograms:
    label = hist.axis.IntCategory(LABELS, name="label", label="class")
    pt = hist.axis.Variable(PARTICLE_PT_EDGES, name="pt", label="$p_T$ [GeV]")
    matched = hist.axis.Boolean(name="matched", label="matched")
    with_none = (0, *LABELS)
    return {
        "particle_truth": hist.Hist(label, pt, _eta(), matched),
        "particle_reco": hist.Hist(label, pt, _eta(), matched),
        "confusion": hist.Hist(
            hist.axis.IntCategory(with_none, name="truth_label", label="true class"),
            hist.axis.IntCategory(with_none, name="reco_label", label="reconstructed class"),
        ),
        "multiplicity": hist.Hist(
            label, hist.axis.Regular(81, -40.5, 40.5, name="difference", label="reconstructed - true particles")
        ),
        "particles_per_event": hist.Hist(hist.axis.Regular(120, 0, 240, name="count", label="particles per event")),
    }


def _event_histograms() -> Histograms:
    return {
        "met_response": hist.Hist(
            hist.axis.Variable(MISSING_PT_EDGES, name="truth_met", label="true missing $p_T$ [GeV]"),
            _response(600, 6.0),
        ),
        "met_error": hist.Hist(
            hist.axis.StrCategory(["x", "y", "z"], name="component", label="component"),
            hist.axis.Regular(400, -40, 40, name="difference", label="missing momentum, reconstructed - true [GeV]"),
        ),
        "visible_energy": hist.Hist(
            hist.axis.Regular(1000, 0.5, 1.5, name="ratio", label="visible energy, reconstructed / true")
        ),
        "mass": hist.Hist(
            hist.axis.StrCategory([], growth=True, name="name", label="mass"),
            hist.axis.Regular(200, 0, 400, name="mass", label="mass [GeV]"),
        ),
    }


def _response(bins: int, top: float) -> hist.axis.Regular:
    return hist.axis.Regular(bins, 0, top, name="response", label="reconstructed / true")


def _eta() -> hist.axis.Regular:
    return hist.axis.Regular(len(ETA_EDGES) - 1, ETA_EDGES[0], ETA_EDGES[-1], name="eta", label=r"$\eta$")


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
