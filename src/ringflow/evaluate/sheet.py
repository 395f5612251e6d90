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
from ringflow.evaluate.matching import match_jets, match_particles
from ringflow.evaluate.momenta import Floats, Integers, Mask, Momenta, momenta, visible
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
        return cls(momenta(block["target"]), seen, find_jets(seen), invisible_momentum(block), in_barrel(seen))


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
        for name, histogram in other.histograms.items():
            self.histograms[name] = self.histograms[name] + histogram
        for name, tally in self.tallies.items():
            tally.add(other.tallies[name])
        for name, entries in self.entries.items():
            entries.add(other.entries[name])


def mass_names(sample: str, *, has_truth: bool) -> list[str]:
    """Names of the masses of a sample: the rows of the tally of masses."""
    return list(dict.fromkeys(name for mass in masses_of(sample, has_truth) for name in mass.names))


def measure(sheet: Sheet, sample: str, event_number: Integers, truth: Truth | None, reco: Momenta) -> None:
    """Add the events of a block to a sheet; without truth, only what needs none is counted."""
    drawn = Drawn.of(event_number, sheet.replicates)
    jets = find_jets(reco)
    histograms, tallies, events = sheet.histograms, sheet.tallies, np.arange(len(reco.counts))
    histograms["particles_per_event"].fill(count=reco.counts)
    for name, event in (("events", events), ("particles", reco.event), ("jets", jets.event)):
        tallies[name].fill(drawn.weights, event, np.ones(len(event)))
    _fill_masses(sheet, sample, truth, reco, drawn.number)
    if truth is None:
        histograms["jet_reco_pt"].fill(pt=jets.pt, matched=False)
        histograms["particle_reco"].fill(label=reco.label, pt=reco.pt, eta=reco.eta, matched=False)
        return
    _fill_particles(sheet, truth.targets, reco, drawn)
    _fill_jets(sheet, truth.jets, jets, drawn)
    _fill_sums(sheet, truth, reco.sums(), drawn.number)


def _fill_jets(sheet: Sheet, truth: Momenta, reco: Momenta, drawn: Drawn) -> None:
    """Match the jets of a block to the true ones and count."""
    pairs = match_jets(truth, reco)
    found, real = _members(len(truth), pairs.truth), _members(len(reco), pairs.reco)
    true_pt, paired_pt = truth.pt, truth.pt[pairs.truth]
    response = reco.pt[pairs.reco] / paired_pt
    sheet.histograms["jet_response"].fill(truth_pt=paired_pt, response=response)
    sheet.histograms["jet_truth_pt"].fill(truth_pt=true_pt, matched=found)
    sheet.histograms["jet_reco_pt"].fill(pt=reco.pt, matched=real)
    place = JET_CELLS.of(paired_pt, truth.eta[pairs.truth])
    sheet.entries["jet_response"].fill(drawn.number[truth.event[pairs.truth]], response, place)
    # A row per bin of true pT, the last for everything above.
    row = np.searchsorted(np.array(JET_PT_EDGES[1:]), true_pt, side="right")
    sheet.tallies["jet_matched"].fill(drawn.weights, truth.event, found.astype(np.float64), row)


def _fill_particles(sheet: Sheet, truth: Momenta, reco: Momenta, drawn: Drawn) -> None:
    """Match the candidates of a block to the true particles: who was found, invented, taken for whom; how momenta agree."""
    pairs = match_particles(truth, reco)
    found, real = _members(len(truth), pairs.truth), _members(len(reco), pairs.reco)
    for name, particles, matched in (("particle_truth", truth, found), ("particle_reco", reco, real)):
        sheet.histograms[name].fill(label=particles.label, pt=particles.pt, eta=particles.eta, matched=matched)
    # Pairs, then true particles without a partner (taken for none), then candidates without one (made of none).
    missed, fake = np.flatnonzero(~found), np.flatnonzero(~real)
    true_label = np.concatenate([truth.label[pairs.truth], truth.label[missed], 0 * fake])
    reco_label = np.concatenate([reco.label[pairs.reco], 0 * missed, reco.label[fake]])
    event = np.concatenate([truth.event[pairs.truth], truth.event[missed], reco.event[fake]])
    sheet.histograms["confusion"].fill(truth_label=true_label, reco_label=reco_label)
    sheet.tallies["confusion"].fill(drawn.weights, event, reco_label.astype(np.float64), true_label)
    true_pt = truth.pt[pairs.truth]
    place = CLASS_CELLS.of(truth.label[pairs.truth], true_pt)
    number = drawn.number[truth.event[pairs.truth]]
    sheet.entries["particle_response"].fill(number, reco.pt[pairs.reco] / true_pt, place)
    for label in LABELS:
        difference = reco.select(reco.label == label).counts - truth.select(truth.label == label).counts
        sheet.histograms["multiplicity"].fill(label=label, difference=difference)


def _fill_sums(sheet: Sheet, truth: Truth, reco: Floats, number: Integers) -> None:
    """Count missing momentum (minus the sum) and visible energy of a block; `reco` is (event, [px, py, pz, energy])."""
    true = truth.visible.sums()
    true_pt, reco_pt = np.hypot(true[:, 0], true[:, 1]), np.hypot(reco[:, 0], reco[:, 1])
    events = np.flatnonzero(true_pt > MIN_MISSING_PT)
    response = reco_pt[events] / true_pt[events]
    sheet.histograms["met_response"].fill(truth_met=true_pt[events], response=response)
    sheet.entries["met_response"].fill(number[events], response, np.digitize(true_pt[events], MISSING_PT_EDGES))
    error = true[:, :3] - reco[:, :3]
    for axis, component in enumerate("xyz"):
        sheet.histograms["met_error"].fill(component=component, difference=error[:, axis])
    sheet.entries["momentum_error"].fill(number, np.linalg.norm(error, axis=1))
    events = np.flatnonzero(true[:, 3] > 0)  # where nothing was visible there is no ratio
    ratio = reco[events, 3] / true[events, 3]
    sheet.histograms["visible_energy"].fill(ratio=ratio)
    sheet.entries["visible_energy"].fill(number[events], ratio)
    if "total_energy" in sheet.entries:
        sheet.entries["total_energy"].fill(number[truth.barrel], reco[truth.barrel, 3])


def _fill_masses(sheet: Sheet, sample: str, truth: Truth | None, reco: Momenta, number: Integers) -> None:
    rows = mass_names(sample, has_truth=truth is not None)
    invisible = truth.invisible if truth is not None else np.zeros((len(reco.counts), 4))
    for name, (events, values) in measure_masses(masses_of(sample, truth is not None), invisible, reco):
        if len(values):
            sheet.histograms["mass"].fill(name=name, mass=values)
        sheet.entries["mass"].fill(number[events], values, np.full(len(values), rows.index(name)))


def _members(size: int, positions: Integers) -> Mask:
    mask = np.zeros(size, bool)
    mask[positions] = True
    return mask
