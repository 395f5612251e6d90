"""Metrics as rows of tables, and the verdict: digits that mean something, and winners only where the intervals say so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ringflow.evaluate.metrics import BY_KEY, JET_BIN_METRICS, MASS_METRICS, METRICS, RATES, Metric
from ringflow.evaluate.plots.style import CLASS_NAMES

#: Made with the help of the truth: bounds to compare with, not competitors.
BOUNDS = ("target", "perfect")
MISSING = "–"
#: What the verdict is about, in order of weight.
HEADLINES = (
    "jet_iqr_over_median",
    "rms90_jer",
    "met_iqr_over_median",
    "visible_energy_resolution",
    "particle_efficiency",
    "particle_fake_rate",
    "particle_f1",
)

Measured = Mapping[str, float | None]  # value, lo, hi
Metrics = Mapping[str, Mapping[str, Any]]  # of every reconstruction, or sections of them


class MetricRow(NamedTuple):
    """One metric of all reconstructions; `group` is the bin or mass it belongs to, `best` who wins beyond doubt."""

    group: str
    metric: Metric
    cells: dict[str, str]
    best: str | None


def rows(
    metrics: Sequence[Metric], parts: Metrics, comparisons: Sequence[Mapping[str, Any]] = (), group: str = ""
) -> Iterator[MetricRow]:
    """The rows of some metrics; those that no reconstruction has are left out."""
    for metric in metrics:
        values = {name: part.get(metric.key) for name, part in parts.items()}
        if any(value is not None and value.get("value") is not None for value in values.values()):
            won = {
                (name, other): row["better"] == name
                for row in comparisons
                if row["metric"] == metric.key and row["ratio"]["lo"] != row["ratio"]["hi"]
                for name, other in ((row["first"], row["second"]), (row["second"], row["first"]))
            }
            cells = {name: written(value, metric) for name, value in values.items()}
            yield MetricRow(group, metric, cells, best_of(values, metric.better, won))


def sample_rows(reconstructions: Metrics, comparisons: Sequence[Mapping[str, Any]]) -> list[MetricRow]:
    """The rows of a whole sample."""
    return list(rows(METRICS, reconstructions, comparisons))


def topic_tables(reconstructions: Metrics) -> dict[str, tuple[str, str, list[MetricRow]]]:
    """By group of figures a table: its title, what its groups of rows are (nothing if there are none), and its rows."""
    jets = {
        name: {f"{row['lo_pt']:g}–{row['hi_pt']:g} GeV": row for row in metrics.get("jet_bins") or []}
        for name, metrics in reconstructions.items()
    }
    masses, classes = (
        {name: metrics.get(section) or {} for name, metrics in reconstructions.items()}
        for section in ("masses", "classes")
    )
    tables = {
        "Jets": ("Jets by true pT", "jet pT", _grouped(JET_BIN_METRICS, jets)),
        "Missing momentum, energy and masses": ("Masses", "mass", _grouped(MASS_METRICS, masses)),
    }
    for name in CLASS_NAMES[1:]:
        parts = {key: part.get(name.replace(" ", "_")) or {} for key, part in classes.items()}
        tables[f"{name.capitalize()}s"] = (f"{name.capitalize()}s", "", list(rows(RATES, parts)))
    return {topic: table for topic, table in tables.items() if table[2]}


def _grouped(metrics: Sequence[Metric], parts: Mapping[str, Metrics]) -> list[MetricRow]:
    groups = dict.fromkeys(group for part in parts.values() for group in part)
    return [
        row
        for group in groups
        for row in rows(metrics, {key: part.get(group) or {} for key, part in parts.items()}, group=group)
    ]


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


def _bounds(measured: Measured | None, better: str) -> tuple[float, float] | None:
    """The interval turned such that less is better."""
    low, high = (measured or {}).get("lo"), (measured or {}).get("hi")
    if low is None or high is None or low == high:  # replicates that do not vary are no evidence
        return None
    if better == "higher":
        return -high, -low
    if better == "one":
        far, near = max(abs(low - 1), abs(high - 1)), min(abs(low - 1), abs(high - 1))
        return (0.0 if low <= 1.0 <= high else near), far
    return low, high


class Finding(NamedTuple):
    """One reconstruction against another in one metric of one sample."""

    sample: str
    metric: Metric
    challenger: str
    reference: str
    ours: str
    theirs: str
    change: str
    tone: str  # better, worse or open
    gap: str  # share of the distance to the perfect reconstruction that is closed; empty if that means nothing


def findings(name: str, sample: Mapping[str, Any]) -> Iterator[Finding]:
    """Everyone against the rules, or the rules alone against the perfect reconstruction, in every headline of a sample."""
    metrics = sample["reconstructions"]
    contenders = [one for one in metrics if one not in BOUNDS]
    reference = "baseline" if "baseline" in contenders else next(iter(contenders), "")
    pairs = [(one, reference) for one in contenders if one != reference]
    if len(contenders) == 1 and "perfect" in metrics:
        pairs = [(reference, "perfect")]
    for challenger, reference in pairs:
        for metric in (BY_KEY[key] for key in HEADLINES):
            quotient = _ratio(sample.get("comparisons") or [], metric.key, challenger, reference)
            if quotient is None:
                continue
            ours, theirs, bound = (
                (metrics.get(who) or {}).get(metric.key) for who in (challenger, reference, "perfect")
            )
            gap = "" if reference == "perfect" else _gap(ours, theirs, bound)
            _, low, high = quotient
            tone = "better" if (high < 1.0) == (metric.better == "lower") else "worse"
            tone = "open" if low <= 1.0 <= high or low == high else tone
            said = map(_unbroken, (written(ours, metric), written(theirs, metric), _change(*quotient), tone, gap))
            yield Finding(name, metric, challenger, reference, *said)


def _interval(measured: Measured | None) -> tuple[float, float, float] | None:
    value, low, high = ((measured or {}).get(end) for end in ("value", "lo", "hi"))
    return None if value is None or low is None or high is None else (value, low, high)


def _ratio(
    comparisons: Sequence[Mapping[str, Any]], key: str, above: str, below: str
) -> tuple[float, float, float] | None:
    """Ratio of the two from a bootstrap that redraws both together, turned if it was made the other way around."""
    for row in comparisons:
        if row["metric"] == key and {row["first"], row["second"]} == {above, below}:
            found = _interval(row["ratio"])
            if found is None or row["second"] == above:
                return found
            value, low, high = found
            return (1.0 / value, 1.0 / high, 1.0 / low) if all(found) else None
    return None


def _gap(ours: Measured | None, theirs: Measured | None, bound: Measured | None) -> str:
    """Share of the way from the reference to the perfect reconstruction, with its interval."""
    known = [(value, (high - low) / 2) for value, low, high in filter(None, map(_interval, (ours, theirs, bound)))]
    if len(known) < 3:
        return ""
    (here, here_error), (there, there_error), (end, end_error) = known
    distance = there - end
    if abs(distance) <= 2 * math.hypot(there_error, end_error):
        return ""  # nothing left to win
    share = (there - here) / distance
    error = math.hypot(here_error, (1 - share) * there_error, share * end_error) / abs(distance)
    percent = f"{100 * share:.0f} % [{100 * (share - error):.0f}, {100 * (share + error):.0f}]"
    return percent.replace("-", "−")


def _change(value: float, low: float, high: float) -> str:
    """A ratio as a relative change with its interval."""
    if low == high:
        return "too few entries"
    if value >= 2:
        return f"{value:.2f} times [{low:.2f}, {high:.2f}]"
    value, low, high = (100 * (end - 1) for end in (value, low, high))
    decimals = 0 if (high - low) > 2 else 1
    return f"{value:+.{decimals}f} % [{low:+.{decimals}f}, {high:+.{decimals}f}]".replace("-", "−")


def _unbroken(text: str) -> str:
    """Numbers that stay on one line."""
    return text.replace(" ", "\u00a0")
