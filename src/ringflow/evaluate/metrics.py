"""The figures of a score sheet: what each means, its value with a bootstrap interval, and the ratio of two reconstructions.

A width is (75 % quantile - 25 % quantile) / median; of a Gaussian it is 1.349 sigma / mean. Tails, which it hardly sees, are in
the RMS (standard deviation / mean) and the RMS90 (the same of the narrowest window that holds 90 %; of a Gaussian 0.79 sigma).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ringflow.evaluate.bootstrap import Entries, estimate, ratio
from ringflow.evaluate.jets import CENTRAL_FRACTION, jet_energy_resolution, relative_rms
from ringflow.evaluate.momenta import Floats, Mask
from ringflow.evaluate.sheet import (
    ETA_EDGES,
    JET_PT_EDGES,
    LABELS,
    MISSING_PT_EDGES,
    RESPONSE_PT_EDGES,
    Sheet,
    mass_names,
    two_bins,
)
from ringflow.event.particles import PARTICLE_CLASSES


@dataclass(frozen=True)
class Metric:
    """One figure of merit: where it is found, how it is called, which direction is better, what it means, in which unit."""

    key: str
    label: str
    better: Literal["lower", "higher", "one", ""]
    definition: str
    unit: str = ""  # % of a share
    headline: bool = False  # the verdict is about it


_TABLES = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text("utf-8"))
METRICS, RATES, JET_BIN_METRICS, MASS_METRICS = (
    tuple(Metric(**row) for row in _TABLES[name]) for name in ("sample", "class", "jet_bin", "mass")
)
BY_KEY = {metric.key: metric for metric in METRICS}

#: Figures for which two reconstructions are compared.
COMPARED = (
    "jet_iqr_over_median",
    "met_iqr_over_median",
    "jet_rms90",
    "visible_energy_resolution",
    "visible_energy_rms90",
    "missing_momentum_error",
    "rms90_jer",
    "particle_efficiency",
    "particle_fake_rate",
    "particle_f1",
    "generated_efficiency",
    "generated_f1",
)
#: Entries below which a width is not a figure.
FEWEST_ENTRIES = 10

#: What a figure that nobody has is written as.
MISSING = "–"

Measured = Mapping[str, float | None]  # value, lo, hi
Figures = dict[str, Any]  # name -> values of the data and of every replicate, or a section of such


def metrics(sheet: Sheet, sample: str) -> dict[str, Any]:
    """Every figure of a sheet as `{value, lo, hi}` with the 68 % interval; those that need truth only if there was one."""
    has_truth, events, masses = "confusion" in sheet.tallies, sheet.tallies["events"], sheet.entries["mass"]
    general = {
        "particles_per_event": ratio(sheet.tallies["particles"], events),
        "jets_per_event": ratio(sheet.tallies["jets"], events),
        "masses": {
            name: dict(zip(("median", "iqr_over_median"), spread(masses, masses.row == row), strict=True))
            for row, name in enumerate(mass_names(sample, has_truth=has_truth))
        },
    }
    if not has_truth:
        return _estimates(general)
    jets, missing, particles = (sheet.entries[f"{name}_response"] for name in ("jet", "met", "particle"))
    jet_pt_bin, jet_eta_bin = two_bins(jets.row)
    label_of, pt_bin = two_bins(particles.row)
    figures = _estimates(_headline(sheet) | general)
    figures["classes"] = {
        PARTICLE_CLASSES[label]: {
            **_estimates(_rates(sheet, label) | _generated(sheet, label)),
            "pt_bins": _bins(particles, "pt", RESPONSE_PT_EDGES, np.where(label_of == label, pt_bin, 0)),
        }
        for label in LABELS
    }
    figures.setdefault("rms90_jer", None)  # only samples of two equal jets have one
    figures["jet_bins"] = [
        {**row, "matched_fraction": estimate(ratio(matched[1], matched.sum(axis=0)))}
        for row, matched in zip(
            _bins(jets, "pt", JET_PT_EDGES, jet_pt_bin), sheet.tallies["jet_matched"][:-1], strict=True
        )
    ]
    figures["jet_eta_bins"] = _bins(jets, "eta", ETA_EDGES, jet_eta_bin)
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
    for first, second in combinations(headlines, 2):
        for key in COMPARED:
            if key not in headlines[first]:
                continue
            found = estimate(ratio(headlines[second][key], headlines[first][key]))
            winner = None
            if found["lo"] is not None and found["hi"] is not None and not found["lo"] <= 1.0 <= found["hi"]:
                winner = second if (found["hi"] < 1.0) == (BY_KEY[key].better == "lower") else first
            rows.append({"metric": key, "first": first, "second": second, "ratio": found, "better": winner})
    return rows


def _headline(sheet: Sheet) -> Figures:
    entries = sheet.entries
    met_median, met_width = spread(entries["met_response"])
    energy_median, energy_width = spread(entries["visible_energy"])
    figures = {
        **_jets(sheet, "jet"),
        **_jets(sheet, "generated_jet"),
        "met_median": met_median,
        "met_iqr_over_median": met_width,
        "missing_momentum_error": entries["momentum_error"].quantiles((0.5,))[0],
        "visible_energy_median": energy_median,
        "visible_energy_resolution": energy_width,
        **_rms("visible_energy", entries["visible_energy"]),
    }
    if "total_energy" in entries:
        figures["rms90_jer"] = jet_energy_resolution(entries["total_energy"])
    return {**figures, **{f"particle_{name}": rate for name, rate in _rates(sheet).items()}, **_generated(sheet)}


def _jets(sheet: Sheet, name: str) -> Figures:
    """Of the jets of visible, or of all generated, particles."""
    responses, matched = sheet.entries[f"{name}_response"], sheet.tallies[f"{name}_matched"].sum(axis=0)
    median, width = spread(responses)
    return {
        f"{name}_median": median,
        f"{name}_iqr_over_median": width,
        **_rms(name, responses),
        f"{name}_matched_fraction": ratio(matched[1], matched.sum(axis=0)),
    }


def _rms(name: str, entries: Entries) -> Figures:
    """RMS and RMS90 over the mean; none where single entries would make them."""
    entries = entries if len(entries) >= FEWEST_ENTRIES else Entries(entries.replicates)
    return {f"{name}_rms": relative_rms(entries), f"{name}_rms90": relative_rms(entries, CENTRAL_FRACTION)}


def _generated(sheet: Sheet, label: int | None = None) -> Figures:
    """Against all generated particles."""
    rates = _rates_of(sheet.tallies["generated_confusion"], label)
    return {f"generated_{name}": rates[name] for name in ("efficiency", "f1")}


def _rates(sheet: Sheet, label: int | None = None) -> Figures:
    """Of one class, or of all together: see the page on metrics for what each rate is."""
    entries = sheet.entries["particle_response"]
    median, width = spread(entries, None if label is None else two_bins(entries.row)[0] == label)
    rates = _rates_of(sheet.tallies["confusion"], label)
    return {**rates, "response_median": median, "response_iqr_over_median": width}


def _rates_of(pairs: Floats, label: int | None) -> Figures:
    """Of a tally of pairs: (true label, reconstructed label, replicate)."""
    rows = slice(1, None) if label is None else slice(label, label + 1)
    true, made = pairs[rows].sum(axis=(0, 1)), pairs[:, rows].sum(axis=(0, 1))
    missed, fake = pairs[rows, 0].sum(axis=0), pairs[0, rows].sum(axis=0)
    diagonal = np.einsum("iir->ir", pairs)[rows].sum(axis=0)
    return {
        "efficiency": ratio(true - missed, true),
        "identified": ratio(diagonal, true),
        "purity": ratio(diagonal, made),
        "fake_rate": ratio(fake, made),
        "f1": ratio(2.0 * diagonal, true + made),
    }


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


def _estimates(figures: Figures) -> dict[str, Any]:
    return {name: _estimates(value) if isinstance(value, dict) else estimate(value) for name, value in figures.items()}


def written(measured: Measured | None, metric: Metric) -> str:
    """A value with its interval: `0.0621 ± 0.0012`, or `0.0621 +0.0015 −0.0009` where it is lopsided."""
    value, low, high = ((measured or {}).get(end) for end in ("value", "lo", "hi"))
    if value is None or not math.isfinite(value):
        return MISSING
    scale, unit = 100.0 if metric.unit == "%" else 1.0, f" {metric.unit}" if metric.unit else ""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return f"{scale * value:.4g}{unit}"
    # A bootstrap interval of a value at its limit can end beside the value itself.
    down, up = scale * max(value - low, 0.0), scale * max(high - value, 0.0)
    if down + up <= 1e-6:  # nothing varies, as where the truth is compared with itself
        return f"{round(scale * value, 6):.4g}{unit}"
    # Two significant digits of the uncertainty if they begin with 1 to 3.5, else one (PDG rule).
    uncertainty = (down + up) / 2
    exponent = math.floor(math.log10(uncertainty))
    decimals = max(int(uncertainty / 10.0**exponent < 3.55) - exponent, 0)
    lopsided = max(down, up) > 1.5 * min(down, up) and round(down, decimals) != round(up, decimals)
    error = f"+{up:.{decimals}f} −{down:.{decimals}f}" if lopsided else f"± {uncertainty:.{decimals}f}"
    return f"{scale * value:.{decimals}f} {error}{unit}"
