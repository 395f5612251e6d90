"""Metrics as rows of a table: which ones, how they are called and defined, and with how many digits they are written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ringflow.evaluate.plots.style import CLASS_NAMES, display_name

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


class MetricRow(NamedTuple):
    """One metric for all reconstructions; `group` is the class, bin or mass it belongs to."""

    group: str
    metric: Metric
    cells: list[Cell]


def metric_rows(
    reconstructions: Mapping[str, Mapping[str, Any]], comparisons: Sequence[Mapping[str, Any]]
) -> list[MetricRow]:
    """The rows of whole samples; metrics that no reconstruction has are left out."""
    return list(_rows("", METRICS, reconstructions, comparisons))


def class_rows(reconstructions: Mapping[str, Mapping[str, Any]]) -> list[MetricRow]:
    """Rates of every particle class."""
    parts = {key: metrics.get("classes") or {} for key, metrics in reconstructions.items()}
    return _grouped({name: name.replace(" ", "_") for name in CLASS_NAMES[1:]}, RATES, parts)


def jet_bin_rows(reconstructions: Mapping[str, Mapping[str, Any]]) -> list[MetricRow]:
    """Jets in bins of their true transverse momentum."""
    parts = {
        key: {f"{row['lo_pt']:g}–{row['hi_pt']:g} GeV": row for row in metrics.get("jet_bins") or []}
        for key, metrics in reconstructions.items()
    }
    return _grouped({name: name for bins in parts.values() for name in bins}, JET_BIN_METRICS, parts)


def mass_rows(reconstructions: Mapping[str, Mapping[str, Any]]) -> list[MetricRow]:
    """Median and width of every mass."""
    parts = {key: metrics.get("masses") or {} for key, metrics in reconstructions.items()}
    return _grouped({name: name for masses in parts.values() for name in masses}, MASS_METRICS, parts)


def _grouped(
    groups: Mapping[str, str], metrics: Sequence[Metric], parts: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> list[MetricRow]:
    """Rows of all groups; `groups` is how each is called, and its key in the parts."""
    return [
        row
        for name, group in groups.items()
        for row in _rows(name, metrics, {key: part.get(group) or {} for key, part in parts.items()})
    ]


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
) -> Iterator[MetricRow]:
    for metric in metrics:
        values = {name: part.get(metric.key) for name, part in parts.items()}
        if all(value is None or value.get("value") is None for value in values.values()):
            continue
        winner = best_of(values, metric.better, _won(comparisons, metric.key))
        yield MetricRow(group, metric, [Cell(written(value, metric), name == winner) for name, value in values.items()])


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
#: Jets of the truth targets must agree with those of the visible truth this well.
CLOSURE = 0.01

Tone = Literal["better", "worse", "open"]


class Finding(NamedTuple):
    """One reconstruction against another in one metric of one sample."""

    sample: str
    metric: Metric
    challenger: str
    reference: str
    challenger_text: str
    reference_text: str
    change: str
    tone: Tone
    gap: str  # share of the distance to the perfect reconstruction that is closed; empty if that means nothing


class Verdict(NamedTuple):
    """The first thing to read: who is better, by how much, what supports it, and every comparison behind it."""

    headline: str
    lead: str
    sentences: list[str]
    findings: list[Finding]


def verdict(samples: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Judge all samples; each has `reconstructions` (name -> metrics) and may have paired `comparisons`."""
    findings = [finding for name, sample in samples.items() for finding in _findings(name, sample)]
    sentences = [sentence for name, sample in samples.items() for sentence in _sentences(name, sample, findings)]
    return Verdict(_headline(samples, findings), _lead(findings), sentences, findings)


def pairs_to_compare(names: Sequence[str]) -> list[tuple[str, str]]:
    """Who is held against whom: everyone against the rules; the rules alone against the perfect reconstruction."""
    contenders = [name for name in names if name not in BOUNDS]
    if len(contenders) > 1:
        reference = "baseline" if "baseline" in contenders else contenders[0]
        return [(name, reference) for name in contenders if name != reference]
    return [(name, "perfect") for name in contenders if "perfect" in names]


def _findings(name: str, sample: Mapping[str, Any]) -> Iterator[Finding]:
    reconstructions, comparisons = sample["reconstructions"], sample.get("comparisons") or []
    by_key = {metric.key: metric for metric in METRICS}
    for challenger, reference in pairs_to_compare(list(reconstructions)):
        for metric in (by_key[key] for key in HEADLINES):
            ours, theirs = (reconstructions[who].get(metric.key) for who in (challenger, reference))
            quotient = _paired_ratio(comparisons, metric.key, challenger, reference) or _independent_ratio(ours, theirs)
            if quotient is None:
                continue
            bound = (reconstructions.get("perfect") or {}).get(metric.key)
            gap = "" if reference == "perfect" else _gap(ours, theirs, bound)
            our_text, their_text = (_unbroken(written(value, metric)) for value in (ours, theirs))
            change, tone = _change(quotient), _tone(quotient, metric)
            yield Finding(name, metric, challenger, reference, our_text, their_text, change, tone, gap)


def _headline(samples: Mapping[str, Mapping[str, Any]], findings: Sequence[Finding]) -> str:
    names = list(dict.fromkeys(name for sample in samples.values() for name in sample["reconstructions"]))
    if not names:
        return "Nothing was evaluated."
    if not findings:
        listed = " and ".join(display_name(name) for name in names)
        return f"Only {listed} {'was' if len(names) == 1 else 'were'} evaluated: there is nothing to compare."
    return " ".join(_score(*pair, findings) for pair in _compared(findings))


def _score(challenger: str, reference: str, findings: Sequence[Finding]) -> str:
    """How often one is better than the other."""
    tones = [f.tone for f in findings if (f.challenger, f.reference) == (challenger, reference)]
    better, worse, undecided = (tones.count(tone) for tone in ("better", "worse", "open"))
    who, whom, total = display_name(challenger), display_name(reference), f"{len(tones)} metrics"
    who = who[:1].upper() + who[1:]
    if reference == "perfect":
        return f"{who} falls short of {whom}, which knows the true associations, in {worse} of {total}."
    if len(tones) in (better, worse):
        return f"{who} is {'better' if better else 'worse'} than {whom} in all {total}."
    rest = f"; {undecided} cannot be told apart." if undecided else "."
    return f"{who} is better than {whom} in {better} of {total} and worse in {worse}{rest}"


def _lead(findings: Sequence[Finding]) -> str:
    """By how much: the change of the jet response width, sample by sample."""
    parts = []
    for pair in _compared(findings):
        widths = [f for f in findings if (f.challenger, f.reference) == pair and f.metric.key == HEADLINES[0]]
        if widths:
            changes = ", ".join(f"{finding.change} on {finding.sample}" for finding in widths)
            parts.append(f"{display_name(pair[0])} against {display_name(pair[1])} {changes}")
    return f"Jet response width: {'; '.join(parts)}." if parts else ""


def _compared(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((finding.challenger, finding.reference) for finding in findings))


def _sentences(name: str, sample: Mapping[str, Any], findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        if finding.sample != name or finding.metric.key not in ("jet_iqr_over_median", "rms90_jer"):
            continue
        who, whom = display_name(finding.challenger), display_name(finding.reference)
        verb = {"better": "is better than", "worse": "is worse than", "open": "cannot be told from"}[finding.tone]
        closes = f" It closes {finding.gap} of the distance to perfect PF." if finding.gap else ""
        yield (
            f"{name}: in {finding.metric.label}, {who} {verb} {whom}: {finding.challenger_text} against "
            f"{finding.reference_text}, {finding.change}.{closes}"
        )
    target = (sample["reconstructions"].get("target") or {}).get("jet_median") or {}
    if (median := target.get("value")) is not None:
        fine = abs(median - 1.0) <= CLOSURE
        outcome = "as it must be" if fine else "which it must be: the truth of this dataset is not to be trusted"
        yield (
            f"{name}: the jets of the truth targets have a median response of {median:.4f}, "
            f"{'within' if fine else 'not within'} {100 * CLOSURE:.0f} % of 1, {outcome}."
        )


class _Interval(NamedTuple):
    """A figure that has an interval."""

    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


def _interval(measured: Measured | None) -> _Interval | None:
    ends = [(measured or {}).get(end) for end in ("value", "lo", "hi")]
    return None if None in ends else _Interval(*map(float, ends))  # type: ignore[arg-type]


def _paired_ratio(comparisons: Sequence[Mapping[str, Any]], key: str, above: str, below: str) -> _Interval | None:
    """Ratio of the two from a bootstrap that redraws both together, turned if it was made the other way around."""
    for row in comparisons:
        found = _interval(row["ratio"])
        if row["metric"] != key or found is None:
            continue
        if (row["second"], row["first"]) == (above, below):
            return found
        if (row["first"], row["second"]) == (above, below) and all(found):
            return _Interval(1.0 / found.value, 1.0 / found.high, 1.0 / found.low)
    return None


def _independent_ratio(above: Measured | None, below: Measured | None) -> _Interval | None:
    """Ratio of two values with their relative uncertainties added in quadrature."""
    ours, theirs = _interval(above), _interval(below)
    if ours is None or theirs is None or theirs.value <= 0:
        return None
    value = ours.value / theirs.value
    error = math.hypot(ours.error, value * theirs.error) / theirs.value
    return _Interval(value, value - error, value + error)


def _gap(ours: Measured | None, theirs: Measured | None, bound: Measured | None) -> str:
    """Share of the way from the reference to the perfect reconstruction, with its interval."""
    here, there, end = _interval(ours), _interval(theirs), _interval(bound)
    if here is None or there is None or end is None:
        return ""
    distance = there.value - end.value
    if abs(distance) <= 2 * math.hypot(there.error, end.error):
        return ""  # nothing left to win
    share = (there.value - here.value) / distance
    slopes = ((1 / distance, here), ((1 - share) / distance, there), (share / distance, end))
    error = math.hypot(*(slope * part.error for slope, part in slopes))
    return _unbroken(
        f"{100 * share:.0f} % [{100 * (share - error):.0f}, {100 * (share + error):.0f}]".replace("-", "−")
    )


def _change(quotient: _Interval) -> str:
    """The ratio as a relative change with its interval."""
    value, low, high = (100 * (end - 1) for end in quotient)
    if low == high:
        return "too few entries"
    if value >= 100:
        return _unbroken(f"{value / 100 + 1:.2f} times [{low / 100 + 1:.2f}, {high / 100 + 1:.2f}]")
    decimals = 0 if (high - low) > 2 else 1
    return _unbroken(f"{value:+.{decimals}f} % [{low:+.{decimals}f}, {high:+.{decimals}f}]".replace("-", "−"))


def _tone(quotient: _Interval, metric: Metric) -> Tone:
    if quotient.low <= 1.0 <= quotient.high or quotient.low == quotient.high:
        return "open"
    return "better" if (quotient.high < 1.0) == (metric.better == "lower") else "worse"


def _unbroken(text: str) -> str:
    """Numbers that stay on one line."""
    return text.replace(" ", "\u00a0")
