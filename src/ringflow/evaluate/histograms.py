"""The histograms of one reconstruction of one sample: their names, axes and units, in one place.

Distributions and fractions are drawn from these; they add up over blocks of events and over processes. Medians and widths are
taken of single values, see `bootstrap.Entries`. Momenta, energies and masses in GeV.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import hist
import numpy as np

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
