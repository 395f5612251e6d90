"""The figures of a score sheet, each with its bootstrap interval, and the ratio of those of two reconstructions.

A width is always (75 % quantile - 25 % quantile) / median; of a Gaussian it is 1.349 sigma / mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.evaluate.bootstrap import Entries, Tally, estimate, ratio
from ringflow.evaluate.jets import jet_energy_resolution
from ringflow.evaluate.momenta import Floats, Mask
from ringflow.evaluate.sheet import (
    CLASS_CELLS,
    ETA_EDGES,
    JET_CELLS,
    JET_PT_EDGES,
    LABELS,
    MISSING_PT_EDGES,
    RESPONSE_PT_EDGES,
    Sheet,
    mass_names,
)
from ringflow.event.particles import PARTICLE_CLASSES

#: Figures for which two reconstructions are compared, and whether less is better.
COMPARED = {
    "jet_iqr_over_median": True,
    "met_iqr_over_median": True,
    "visible_energy_resolution": True,
    "missing_momentum_error": True,
    "rms90_jer": True,
    "particle_efficiency": False,
    "particle_fake_rate": True,
    "particle_f1": False,
}

#: Entries below which a width is not a figure.
FEWEST_ENTRIES = 10

Figures = dict[str, Any]  # name -> values of the data and of every replicate, or a section of such


def metrics(sheet: Sheet, sample: str) -> dict[str, Any]:
    """Every figure of a sheet as `{value, lo, hi}` with the 68 % interval; those that need truth only if there was one."""
    has_truth = "confusion" in sheet.tallies
    figures: dict[str, Any] = _estimates(_general(sheet, sample, has_truth))
    if has_truth:
        figures = {**_estimates(_headline(sheet)), **figures}
        figures["classes"] = {PARTICLE_CLASSES[label]: _class(sheet, label) for label in LABELS}
        figures.setdefault("rms90_jer", None)  # only samples of two equal jets have one
        jets, missing = sheet.entries["jet_response"], sheet.entries["met_response"]
        pt_bin, eta_bin = JET_CELLS.split(jets.row)
        figures["jet_bins"] = [
            {**row, "matched_fraction": estimate(_matched_fraction(sheet.tallies["jet_matched"], place))}
            for place, row in enumerate(_bins(jets, "pt", JET_PT_EDGES, pt_bin))
        ]
        figures["jet_eta_bins"] = _bins(jets, "eta", ETA_EDGES, eta_bin)
        figures["met_bins"] = _bins(missing, "pt", MISSING_PT_EDGES, missing.row)
    return figures


def comparisons(sheets: Mapping[str, Sheet]) -> list[dict[str, Any]]:
    """For every two reconstructions and every compared figure the ratio of the second to the first, with its interval.

    Both fluctuate together, so a ratio is known much better than its parts; `better` names the reconstruction that is better
    if the interval leaves no doubt, else it is None.
    """
    headlines = {
        name: _headline(sheet)
        for name, sheet in sheets.items()
        if "confusion" in sheet.tallies and name != "target"  # the truth is no opponent
    }
    rows = []
    names = list(headlines)
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            for figure, less_is_better in COMPARED.items():
                if figure in headlines[first]:
                    quotient = estimate(ratio(headlines[second][figure], headlines[first][figure]))
                    winner = _winner(quotient, first, second, less_is_better)
                    rows.append(
                        {"metric": figure, "first": first, "second": second, "ratio": quotient, "better": winner}
                    )
    return rows


def _winner(quotient: Mapping[str, float | None], first: str, second: str, less_is_better: bool) -> str | None:
    lo, hi = quotient["lo"], quotient["hi"]
    if lo is None or hi is None or lo <= 1.0 <= hi:
        return None
    return second if (hi < 1.0) == less_is_better else first


def _headline(sheet: Sheet) -> Figures:
    entries = sheet.entries
    jet_median, jet_width = spread(entries["jet_response"])
    met_median, met_width = spread(entries["met_response"])
    energy_median, energy_width = spread(entries["visible_energy"])
    figures = {
        "jet_median": jet_median,
        "jet_iqr_over_median": jet_width,
        "jet_matched_fraction": _matched_fraction(sheet.tallies["jet_matched"]),
        "met_median": met_median,
        "met_iqr_over_median": met_width,
        "missing_momentum_error": entries["momentum_error"].quantiles((0.5,))[0],
        "visible_energy_median": energy_median,
        "visible_energy_resolution": energy_width,
    }
    if "total_energy" in entries:
        figures["rms90_jer"] = jet_energy_resolution(entries["total_energy"])
    return {**figures, **{f"particle_{name}": rate for name, rate in _rates(sheet).items()}}


def _general(sheet: Sheet, sample: str, has_truth: bool) -> Figures:
    events = sheet.tallies["events"].total()
    masses, entries = {}, sheet.entries["mass"]
    for row, name in enumerate(mass_names(sample, has_truth=has_truth)):
        median, width = spread(entries, entries.row == row)
        masses[name] = {"median": median, "iqr_over_median": width}
    return {
        "particles_per_event": ratio(sheet.tallies["particles"].total(), events),
        "jets_per_event": ratio(sheet.tallies["jets"].total(), events),
        "masses": masses,
    }


def _rates(sheet: Sheet, label: int | None = None) -> Figures:
    """Of one class, or of all together: see the page on metrics for what each rate is."""
    pairs = sheet.tallies["confusion"].counts  # (true label, reconstructed label, replicate)
    rows = slice(1, None) if label is None else slice(label, label + 1)
    true, made = pairs[rows].sum(axis=(0, 1)), pairs[:, rows].sum(axis=(0, 1))
    missed, fake = pairs[rows, 0].sum(axis=0), pairs[0, rows].sum(axis=0)
    diagonal = np.einsum("iir->ir", pairs)[rows].sum(axis=0)
    entries = sheet.entries["particle_response"]
    median, width = spread(entries, None if label is None else CLASS_CELLS.split(entries.row)[0] == label)
    return {
        "efficiency": ratio(true - missed, true),
        "identified": ratio(diagonal, true),
        "purity": ratio(diagonal, made),
        "fake_rate": ratio(fake, made),
        "f1": ratio(2.0 * diagonal, true + made),
        "response_median": median,
        "response_iqr_over_median": width,
    }


def _class(sheet: Sheet, label: int) -> dict[str, Any]:
    """Rates of one class, and how well its momenta are known in bins of them."""
    entries = sheet.entries["particle_response"]
    of, pt_bin = CLASS_CELLS.split(entries.row)
    bins = _bins(entries, "pt", RESPONSE_PT_EDGES, np.where(of == label, pt_bin, 0))
    return {**_estimates(_rates(sheet, label)), "pt_bins": bins}


def _bins(entries: Entries, of: str, edges: Sequence[float], place: npt.NDArray[Any]) -> list[dict[str, Any]]:
    """Median and width in bins of another quantity; `place` counts them from one."""
    rows = []
    for number, (low, high) in enumerate(pairwise(edges), start=1):
        median, width = spread(entries, place == number)
        rows.append({f"lo_{of}": low, f"hi_{of}": high, "median": estimate(median), "iqr_over_median": estimate(width)})
    return rows


def spread(entries: Entries, chosen: Mask | None = None) -> tuple[Floats, Floats]:
    """Median and IQR / median, per replicate; no width where quartiles would be single entries."""
    low, middle, high = entries.quantiles((0.25, 0.5, 0.75), chosen)
    width = ratio(high - low, middle)
    enough = (len(entries) if chosen is None else chosen.sum()) >= FEWEST_ENTRIES
    return middle, width if enough else np.full_like(width, np.nan)


def _matched_fraction(tally: Tally, row: int | None = None) -> Floats:
    counts = tally.counts.sum(axis=0) if row is None else tally.counts[row]
    return ratio(counts[1], counts.sum(axis=0))


def _estimates(figures: Figures) -> dict[str, Any]:
    return {name: _estimates(value) if isinstance(value, dict) else estimate(value) for name, value in figures.items()}
