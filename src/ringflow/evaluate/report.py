"""The report of an evaluation: one HTML page that needs nothing else, and beside it the figures and their histograms.

- `index.html`: verdict, then per sample a table, three figures and the rest by topic, provenance
- `figures/<number>_<sample>/<figure>.png`, and `.svg` where that is small
- `figures/<number>_<sample>/<histogram>.json`: what distributions and fractions were drawn from, all reconstructions
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ringflow.base.page import PAGE_FILE, inline, render
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.evaluate.metrics import (
    JET_BIN_METRICS,
    MASS_METRICS,
    METRICS,
    RATES,
    Measured,
    Metric,
    written,
)
from ringflow.evaluate.page import FIGURES_FOLDER
from ringflow.evaluate.plots import CLASS_NAMES, display_name, file_name, looks, save_figure
from ringflow.evaluate.plots.figures import Book, event_display, pictures
from ringflow.evaluate.sheet import save_histogram
from ringflow.event.block import Collection, EventBlock

_TEMPLATE = Path(__file__).parent / "templates" / "report.html.j2"
#: Figures that are seen without opening anything, in order of preference; three of them.
_FIRST = ("jet_response", "jet_width_pt", "met_response", "visible_energy", "missing_error", "particles_per_event")
#: Jets of the truth targets must agree with those of the visible truth this well.
CLOSURE = 0.01

#: Made with the help of the truth: landmarks to compare with, not competitors, and none that cannot be passed but the target.
LANDMARKS = ("target", "perfect")

Metrics = Mapping[str, Mapping[str, Any]]  # of every reconstruction, or sections of them
#: Of one sample: a block of one event to be drawn, and its candidates by reconstruction.
EventDisplay = tuple[EventBlock, Mapping[str, Collection]]


def write_report(
    results: Mapping[str, Any],
    histograms: Mapping[str, Mapping[str, Book]],
    out: Path,
    events: Mapping[str, EventDisplay] | None = None,
) -> Path:
    """Write the page, the figures and their histograms into the folder `out`; returns the path of the page.

    `results["samples"]` has for every sample its `reconstructions` (name -> metrics), may have paired `comparisons`, and any
    plain facts such as `events` or `detector`; `results["provenance"]` is shown as it is. `histograms` goes sample ->
    reconstruction -> name, `events` sample -> what to draw of one event.
    """
    samples = results["samples"]
    sections = []
    for number, (name, sample) in enumerate(samples.items(), start=1):
        folder = out / FIGURES_FOLDER / f"{number}_{file_name(name)}"
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        section = _section(sample, histograms.get(name, {}), folder, (events or {}).get(name))
        sections.append({"anchor": f"sample-{number}", "name": name, "sample": sample, **section})
    duels: dict[tuple[str, str], list[Finding]] = {}
    for name, sample in samples.items():
        for finding in findings(name, sample):
            duels.setdefault((finding.challenger, finding.reference), []).append(finding)
    names = dict.fromkeys(name for sample in samples.values() for name in sample["reconstructions"])
    provenance = {key: list(_flat(value)) for key, value in (results.get("provenance") or {}).items()}
    text = render(
        _TEMPLATE,
        duels=duels,
        sections=sections,
        closure=CLOSURE,
        colors={name: look.color for name, look in looks(names).items()},
        provenance={key: rows for key, rows in provenance.items() if rows},
        display_name=display_name,
    )
    write_atomic(out / PAGE_FILE, text)
    return out / PAGE_FILE


def _section(
    sample: Mapping[str, Any], books: Mapping[str, Book], folder: Path, display: EventDisplay | None
) -> dict[str, Any]:
    """What is said of one sample: facts, what everybody wants to see, and the rest by topic, closed until it is opened."""
    metrics = sample["reconstructions"]
    for histogram in next(iter(books.values()), {}):
        save_histogram({key: book[histogram] for key, book in books.items()}, folder / f"{histogram}.json")
    found = list(pictures(books, metrics)) if books else []
    listed = ", ".join(map(display_name, books))
    images = {
        one.key: {
            "title": one.title,
            "caption": one.caption,
            "alt": f"{one.title}, for {listed}.",  # the numbers are in the tables
            "source": "" if one.lacks else inline(save_figure(one.draw(), folder / one.key)),
            "lacks": one.lacks,
        }
        for one in found
    }
    # The first three that could be drawn, else the first.
    wanted = [key for key in _FIRST if key in images]
    first = sorted(sorted(wanted, key=lambda key: bool(images[key]["lacks"]))[:3], key=wanted.index)
    rows, tables = sample_rows(metrics, sample.get("comparisons") or []), topic_tables(metrics)
    headlines = [row for row in rows if row.metric.headline]
    folds: list[tuple[str, Any, list[Any]]] = []
    if headlines:
        folds.append(("All metrics and what they are", ("All metrics", "", rows), []))
    for group in dict.fromkeys([*(one.group for one in found), *tables]):
        rest = [images[one.key] for one in found if one.group == group and one.key not in first]
        folds.append((group, tables.get(group), rest))
    if display is not None:
        folds.append(("One event", None, list(_display_images(*display, folder))))
    facts = {
        key.replace("_", " "): f"{value:,}" if isinstance(value, int) else value
        for key, value in sample.items()
        if isinstance(value, str | int) and not isinstance(value, bool) and not key.endswith("sha256")
    }
    return {
        "facts": facts,
        "empty": bool(books) and not found,
        "rows": headlines or rows,
        "images": [images[key] for key in first],
        "folds": folds,
    }


def _display_images(event: EventBlock, candidates: Mapping[str, Collection], folder: Path) -> Iterator[dict[str, str]]:
    number = int(event.event_number[0])
    for place, (name, found) in enumerate(candidates.items(), start=1):
        shown = display_name(name)
        content = save_figure(event_display(event, found, shown), folder / f"event_{place}")
        yield {
            "title": f"Event {number}: {shown}",
            "caption": "One event in pseudorapidity and azimuth. Grey squares: clusters; crosses: tracks; open circles: "
            "truth targets; filled marks: candidates by class. Areas grow with energy. A circle without a mark was missed, a "
            "mark without a circle is fake.",
            "alt": f"Event {number} in the eta-phi plane as reconstructed by {shown}: {int(found.counts[0])} candidates.",
            "source": inline(content),
        }


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as (dotted name, text); lists of plain values are one."""
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple) and any(isinstance(part, Mapping | list | tuple) for part in value):
        parts = enumerate(value, start=1)
    elif value is not None:
        yield name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    for key, part in parts:
        yield from _flat(part, f"{name}.{key}" if name else str(key))


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


def best_of(parts: Mapping[str, Measured | None], better: str, won: Mapping[tuple[str, str], bool]) -> str | None:
    """The reconstruction that is better than every other one, where the intervals say so; None without a clear winner.

    `won[(a, b)]` is what a paired comparison of a with b found and takes precedence over their separate intervals.
    """
    known = {
        name: bounds for name, part in parts.items() if name not in LANDMARKS and (bounds := _bounds(part, better))
    }
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


def findings(name: str, sample: Mapping[str, Any]) -> Iterator[Finding]:
    """Everyone against the rules, or the rules alone against the perfect reconstruction, in every headline of a sample."""
    metrics = sample["reconstructions"]
    contenders = [one for one in metrics if one not in LANDMARKS]
    reference = "baseline" if "baseline" in contenders else next(iter(contenders), "")
    pairs = [(one, reference) for one in contenders if one != reference]
    if len(contenders) == 1 and "perfect" in metrics:
        pairs = [(reference, "perfect")]
    for challenger, reference in pairs:
        for metric in (one for one in METRICS if one.headline):
            quotient = paired_ratio(sample.get("comparisons") or [], metric.key, challenger, reference)
            if quotient is None:
                continue
            ours, theirs = ((metrics.get(who) or {}).get(metric.key) for who in (challenger, reference))
            _, low, high = quotient
            tone = "better" if (high < 1.0) == (metric.better == "lower") else "worse"
            tone = "open" if low <= 1.0 <= high or low == high else tone
            said = map(_unbroken, (written(ours, metric), written(theirs, metric), _change(*quotient), tone))
            yield Finding(name, metric, challenger, reference, *said)


def _interval(measured: Measured | None) -> tuple[float, float, float] | None:
    value, low, high = ((measured or {}).get(end) for end in ("value", "lo", "hi"))
    return None if value is None or low is None or high is None else (value, low, high)


def paired_ratio(
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
