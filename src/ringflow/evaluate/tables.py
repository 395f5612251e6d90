"""Metrics as rows of a table: which ones, how they are called and defined, and with how many digits they are written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ringflow.evaluate.plots.style import CLASS_NAMES

#: Made with the help of the truth: bounds to compare with, not competitors.
BOUNDS = ("target", "perfect")
MISSING = "–"

Measured = Mapping[str, float | None]  # value, lo, hi


@dataclass(frozen=True)
class Metric:
    """One figure of merit: where it is found, how it is called, which direction is better, and what it means."""

    key: str
    label: str
    better: Literal["lower", "higher", "one", ""]
    definition: str
    percent: bool = False
    unit: str = ""


METRICS = (
    Metric("jet_iqr_over_median", "jet response width", "lower", "IQR / median of reconstructed / true jet pT"),
    Metric("jet_median", "jet response median", "one", "median of reconstructed / true jet pT"),
    Metric("jet_matched_fraction", "jets matched", "higher", "true jets with a jet within ΔR < 0.1", percent=True),
    Metric(
        "rms90_jer",
        "jet energy resolution (RMS90)",
        "lower",
        "√2 × RMS90 / mean90 of the total energy, barrel",
        percent=True,
    ),
    Metric("met_iqr_over_median", "missing pT width", "lower", "IQR / median of the missing pT response, true > 5 GeV"),
    Metric("met_median", "missing pT median", "one", "median of the missing pT response, true > 5 GeV"),
    Metric(
        "missing_momentum_error", "missing momentum error", "lower", "median length of the error vector", unit="GeV"
    ),
    Metric(
        "visible_energy_resolution",
        "visible energy width",
        "lower",
        "IQR / median of reconstructed / true visible energy",
    ),
    Metric("visible_energy_median", "visible energy median", "one", "median of reconstructed / true visible energy"),
    Metric("particle_efficiency", "particle efficiency", "higher", "true particles matched, any class", percent=True),
    Metric(
        "particle_purity", "particle purity", "higher", "candidates matched to a particle of their class", percent=True
    ),
    Metric("particle_fake_rate", "particle fake rate", "lower", "candidates matched to no true particle", percent=True),
    Metric("particle_f1", "particle F1", "higher", "2 × pairs of equal class / (true particles + candidates)"),
    Metric("particles_per_event", "particles per event", "", "candidates per event, mean"),
    Metric("jets_per_event", "jets per event", "", "reconstructed jets above 5 GeV per event, mean"),
)
RATES = (
    Metric("efficiency", "efficiency", "higher", "true particles matched, any class", percent=True),
    Metric("identified", "identified", "higher", "true particles matched and given their class", percent=True),
    Metric("purity", "purity", "higher", "candidates of the class matched to a particle of it", percent=True),
    Metric("fake_rate", "fake rate", "lower", "candidates of the class matched to no true particle", percent=True),
    Metric("f1", "F1", "higher", "2 × pairs of equal class / (true particles + candidates)"),
    Metric("response_iqr_over_median", "pT response width", "lower", "IQR / median of reconstructed / true pT"),
)
JET_BIN_METRICS = (
    Metric("median", "median", "one", "median response"),
    Metric("iqr_over_median", "width", "lower", "IQR / median of the response"),
    Metric("matched_fraction", "matched", "higher", "true jets matched", percent=True),
)
MASS_METRICS = (
    Metric("median", "median", "", "median mass", unit="GeV"),
    Metric("iqr_over_median", "width", "lower", "IQR / median of the mass"),
)


class Cell(NamedTuple):
    """One number as text, and whether it is the best of its row beyond doubt."""

    text: str
    best: bool = False


class Row(NamedTuple):
    """One metric for all reconstructions; `group` is the class, bin or mass it belongs to."""

    group: str
    metric: Metric
    cells: list[Cell]


def metric_rows(
    reconstructions: Mapping[str, Mapping[str, Any]], comparisons: Sequence[Mapping[str, Any]]
) -> list[Row]:
    """The rows of whole samples; metrics that no reconstruction has are left out."""
    return list(_rows("", METRICS, reconstructions, comparisons))


def class_rows(reconstructions: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Rates of every particle class."""
    rows: list[Row] = []
    for name in CLASS_NAMES[1:]:
        parts = {key: _part(metrics, "classes", name.replace(" ", "_")) for key, metrics in reconstructions.items()}
        rows.extend(_rows(name, RATES, parts))
    return rows


def jet_bin_rows(reconstructions: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Jets in bins of their true transverse momentum."""
    rows: list[Row] = []
    by_range = {
        key: {(bin_["lo_pt"], bin_["hi_pt"]): bin_ for bin_ in metrics.get("jet_bins") or []}
        for key, metrics in reconstructions.items()
    }
    for low, high in dict.fromkeys(place for bins in by_range.values() for place in bins):
        parts = {key: bins.get((low, high), {}) for key, bins in by_range.items()}
        rows.extend(_rows(f"{low:g}–{high:g} GeV", JET_BIN_METRICS, parts))
    return rows


def mass_rows(reconstructions: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Median and width of every mass."""
    rows: list[Row] = []
    for name in dict.fromkeys(name for metrics in reconstructions.values() for name in metrics.get("masses") or {}):
        parts = {key: _part(metrics, "masses", name) for key, metrics in reconstructions.items()}
        rows.extend(_rows(name, MASS_METRICS, parts))
    return rows


def written(measured: Measured | None, metric: Metric) -> str:
    """A value with its interval: `0.0621 ± 0.0012`, or `0.0621 +0.0015 −0.0009` where it is lopsided."""
    value = (measured or {}).get("value")
    if measured is None or value is None or not math.isfinite(value):
        return MISSING
    scale, unit = (100.0, " %") if metric.percent else (1.0, f" {metric.unit}" if metric.unit else "")
    low, high = measured.get("lo"), measured.get("hi")
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return f"{scale * value:.4g}{unit}"
    # A bootstrap interval of a value at its limit can end beside the value itself.
    down, up = scale * max(value - low, 0.0), scale * max(high - value, 0.0)
    if down + up <= 1e-6:  # nothing varies, as where the truth is compared with itself
        return f"{round(scale * value, 6):.4g}{unit}"
    decimals = digits((down + up) / 2)
    lopsided = max(down, up) > 1.5 * min(down, up) and round(down, decimals) != round(up, decimals)
    spread = f"+{up:.{decimals}f} −{down:.{decimals}f}" if lopsided else f"± {(down + up) / 2:.{decimals}f}"
    return f"{scale * value:.{decimals}f} {spread}{unit}"


def digits(uncertainty: float) -> int:
    """Decimals to write: two significant digits of the uncertainty if they begin with 1 to 3.5, else one (PDG rule)."""
    exponent = math.floor(math.log10(uncertainty))
    leading = uncertainty / 10.0**exponent
    return max((1 if leading < 3.55 else 0) - exponent, 0)


def best_of(parts: Mapping[str, Measured | None], better: str, won: Mapping[tuple[str, str], bool]) -> str | None:
    """The reconstruction that is better than every other one, where the intervals say so; None without a clear winner.

    `won[(a, b)]` is what a paired comparison of a with b found and takes precedence over their separate intervals.
    """
    known = {name: bounds for name, part in parts.items() if name not in BOUNDS and (bounds := _bounds(part, better))}
    if len(known) < 2 or not better:
        return None
    for name in known:
        others = [other for other in known if other != name]
        if all(won.get((name, other), known[name][1] < known[other][0]) for other in others):
            return name
    return None


def _rows(
    group: str,
    metrics: Sequence[Metric],
    parts: Mapping[str, Mapping[str, Any]],
    comparisons: Sequence[Mapping[str, Any]] = (),
) -> Iterator[Row]:
    for metric in metrics:
        values = {name: part.get(metric.key) for name, part in parts.items()}
        if all(value is None or value.get("value") is None for value in values.values()):
            continue
        winner = best_of(values, metric.better, _won(comparisons, metric.key))
        yield Row(group, metric, [Cell(written(value, metric), name == winner) for name, value in values.items()])


def _won(comparisons: Sequence[Mapping[str, Any]], key: str) -> dict[tuple[str, str], bool]:
    won: dict[tuple[str, str], bool] = {}
    for row in comparisons:
        if row["metric"] == key and row["ratio"]["lo"] != row["ratio"]["hi"]:
            for name, other in ((row["first"], row["second"]), (row["second"], row["first"])):
                won[name, other] = row["better"] == name
    return won


def _bounds(measured: Measured | None, better: str) -> tuple[float, float] | None:
    """The interval turned such that less is better."""
    low, high = (measured or {}).get("lo"), (measured or {}).get("hi")
    if low is None or high is None or low == high:  # replicates that do not vary are no evidence
        return None
    if better == "higher":
        return -high, -low
    if better == "one":
        inside = low <= 1.0 <= high
        return (0.0 if inside else min(abs(low - 1), abs(high - 1))), max(abs(low - 1), abs(high - 1))
    return low, high


def _part(metrics: Mapping[str, Any], section: str, name: str) -> Mapping[str, Any]:
    part: Mapping[str, Any] = (metrics.get(section) or {}).get(name) or {}
    return part
