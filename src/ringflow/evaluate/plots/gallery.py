"""All figures of one sample, in the order of the report, each with a title, a caption and the numbers behind it.

Distributions and fractions are drawn from histograms; medians and widths are those of the metrics, which the tables show too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import hist
import numpy as np
from matplotlib.figure import Figure

from ringflow.evaluate.momenta import Floats
from ringflow.evaluate.plots.figures import (
    MIN_ENTRIES,
    Curve,
    at,
    confusion,
    draw_against,
    draw_distribution,
    matched_fraction,
    measured,
    missing_error,
    multiplicity,
    particle_rates,
)
from ringflow.evaluate.plots.style import CLASS_NAMES, display_name, plain, reference_of
from ringflow.evaluate.sheet import ETA_EDGES, JET_PT_EDGES, LABELS, MISSING_PT_EDGES, RESPONSE_PT_EDGES
from ringflow.evaluate.tables import MASS_METRICS, METRICS, Metric, written

Book = Mapping[str, hist.Hist[Any]]
Figures = Mapping[str, Any]  # the metrics of one reconstruction

#: Fewer entries make no distribution, fewer events no spread over events, and fewer points no curve.
FEWEST_ENTRIES, FEWEST_EVENTS, FEWEST_POINTS = 50, 20, 3
_POINTS = f"Bars are 68 % intervals; bins with fewer than {MIN_ENTRIES} entries are left out."
#: The bins of 2 GeV are too fine for a fraction.
_JET_PT_EDGES = np.array([0.0, 10, 20, 30, 40, 50, 60, 70, 80, 100, 120, 150, 200])
_METRICS = {metric.key: metric for metric in METRICS}


class Picture(NamedTuple):
    """One figure to be drawn, unless there is too little: `lacks` says of what, if so."""

    key: str
    group: str
    title: str
    caption: str
    draw: Callable[[], Figure]
    lacks: str = ""

    def alt(self, reconstructions: Sequence[str]) -> str:
        """What the figure is, for who cannot see it; the numbers are in the tables."""
        return f"{self.title}, for {', '.join(display_name(name) for name in reconstructions)}."


class Source(NamedTuple):
    """What the figures of a sample are drawn from, by reconstruction."""

    books: Mapping[str, Book]
    figures: Mapping[str, Figures]

    def histograms(self, name: str) -> dict[str, hist.Hist[Any]]:
        """One histogram of all reconstructions."""
        return {reconstruction: book[name] for reconstruction, book in self.books.items()}

    def filled(self, *names: str) -> bool:
        """Whether every one of these histograms has something in it, for any reconstruction."""
        return all(any(part.sum(flow=True) > 0 for part in self.histograms(name).values()) for name in names)

    def measured(self, figure: str, bins: str, *section: str) -> dict[str, Curve]:
        """A figure in bins of all reconstructions that have it, in a section if one is named."""
        rows = {name: self._part(name, section).get(bins) for name in self.books}
        return {name: measured(found, figure) for name, found in rows.items() if found}

    def fractions(self, name: str, axis: str, *, matched: bool) -> dict[str, Curve]:
        """Share of (un)matched jets in bins of their momentum."""
        return {
            reconstruction: matched_fraction(part, axis, matched=matched, edges=_JET_PT_EDGES)
            for reconstruction, part in self.histograms(name).items()
        }

    def notes(self, *wanted: tuple[str, Metric], section: tuple[str, ...] = ()) -> dict[str, str]:
        """Numbers of all reconstructions for a legend, written as in the tables: what is said, and which metric it is."""
        return {
            reconstruction: "\n".join(
                f"{said} {written(self._part(reconstruction, section).get(metric.key), metric)}"
                for said, metric in wanted
            )
            for reconstruction in self.books
        }

    def _part(self, reconstruction: str, section: tuple[str, ...]) -> Any:
        part: Any = self.figures.get(reconstruction) or {}
        for key in section:
            part = part.get(key) or {}
        return part


def pictures(books: Mapping[str, Book], figures: Mapping[str, Figures]) -> Iterator[Picture]:
    """The figures of one sample, of what was counted and measured for every reconstruction; none of what is empty."""
    source = Source(books, figures)
    yield from _jets(source)
    yield from _events(source)
    yield from _particles(source)
    for label in LABELS:
        yield from _class(source, label)


def _ratio_note(source: Source) -> str:
    reference = reference_of(source.books)
    return f" The lower panel divides by {display_name(reference)}." if reference else ""


def _few(count: float, what: str, needed: int = FEWEST_ENTRIES) -> str:
    return f"{count:,.0f} {what}, and {needed} are needed" if count < needed else ""


def _few_points(*groups: Mapping[str, Curve]) -> str:
    points = max((int(np.isfinite(curve.value).sum()) for curves in groups for curve in curves.values()), default=0)
    return _few(points, f"of its bins hold {MIN_ENTRIES} entries", FEWEST_POINTS)


def _entries(histograms: Mapping[str, hist.Hist[Any]]) -> float:
    return max((float(part.sum(flow=True)) for part in histograms.values()), default=0.0)


class _Drawer(NamedTuple):
    """Makes the pictures of one group."""

    group: str

    def curve(
        self, key: str, title: str, caption: str, edges: Sequence[float] | Floats, curves: Mapping[str, Curve],
        xlabel: str, ylabel: str, **looks: Any,
    ) -> Picture:  # fmt: skip
        """One quantity against another."""
        drawn = partial(draw_against, np.asarray(edges), curves, xlabel, ylabel, **looks)
        return Picture(key, self.group, title, caption, drawn, _few_points(curves))

    def distribution(
        self, key: str, title: str, caption: str, histograms: Mapping[str, hist.Hist[Any]], label: str,
        notes: Mapping[str, str], **looks: Any,
    ) -> Picture:  # fmt: skip
        """One quantity."""
        drawn = partial(draw_distribution, histograms, label, notes, **looks)
        return Picture(key, self.group, title, caption, drawn, _few(_entries(histograms), "entries"))


def _spread_notes(source: Source, median: str, width: str) -> dict[str, str]:
    return source.notes(("median", _METRICS[median]), ("IQR/median", _METRICS[width]))


def _jets(source: Source) -> Iterator[Picture]:
    note, make = _ratio_note(source), _Drawer("Jets")
    matched = "Jets (e+e− generalised kT, p = −1, R = 0.4, pT > 5 GeV) are matched one to one within ΔR < 0.1."
    true_pt, width = "true jet $p_T$ [GeV]", "IQR / median of jet response"
    if source.filled("jet_response"):
        yield make.distribution(
            "jet_response", "Jet response",
            f"Reconstructed over true transverse momentum of matched jets. {matched} IQR: distance of the quartiles.{note}",
            {name: part.project("response") for name, part in source.histograms("jet_response").items()},
            "jet $p_T$, reconstructed / true", _spread_notes(source, "jet_median", "jet_iqr_over_median"), around=1.0,
        )  # fmt: skip
        yield make.curve(
            "jet_width_pt", "Jet resolution against pT",
            f"IQR / median of the jet response in bins of true jet pT: lower is better. {_POINTS}{note}",
            JET_PT_EDGES, source.measured("iqr_over_median", "jet_bins"), true_pt, width,
        )  # fmt: skip
        yield make.curve(
            "jet_median_pt", "Jet scale against pT",
            f"Median of the jet response in bins of true jet pT; 1 is right. {_POINTS}{note}",
            JET_PT_EDGES, source.measured("median", "jet_bins"), true_pt, "median jet response", around=1.0,
        )  # fmt: skip
        yield make.curve(
            "jet_width_eta", "Jet resolution against η",
            f"IQR / median of the jet response in bins of true jet pseudorapidity. {_POINTS}{note}",
            ETA_EDGES, source.measured("iqr_over_median", "jet_eta_bins"), r"true jet $\eta$", width,
        )  # fmt: skip
    if source.filled("jet_truth_pt"):
        yield make.curve(
            "jet_matched_pt", "Jets found against pT", f"Share of true jets matched to a reconstructed one. {_POINTS}{note}",
            _JET_PT_EDGES, source.fractions("jet_truth_pt", "truth_pt", matched=True), true_pt, "true jets matched",
            fraction=True,
        )  # fmt: skip
    if source.filled("jet_truth_pt", "jet_reco_pt"):
        yield make.curve(
            "jet_fakes_pt", "Jets without a true one, against pT",
            f"Share of reconstructed jets that match no true jet. {_POINTS}{note}",
            _JET_PT_EDGES, source.fractions("jet_reco_pt", "pt", matched=False), "reconstructed jet $p_T$ [GeV]",
            "jets without a true jet", fraction=True,
        )  # fmt: skip


def _events(source: Source) -> Iterator[Picture]:
    note, make = _ratio_note(source), _Drawer("Missing momentum, energy and masses")
    if source.filled("met_response"):
        true_pt = "true missing $p_T$ [GeV]"
        yield make.distribution(
            "met_response", "Missing pT response",
            f"Reconstructed over true missing transverse momentum. Events with true missing pT above 5 GeV.{note}",
            {name: part.project("response") for name, part in source.histograms("met_response").items()},
            "missing $p_T$, reconstructed / true", _spread_notes(source, "met_median", "met_iqr_over_median"), around=1.0,
        )  # fmt: skip
        yield make.curve(
            "met_width", "Missing pT resolution",
            f"IQR / median of the response against the true missing pT. {_POINTS}{note}",
            MISSING_PT_EDGES, source.measured("iqr_over_median", "met_bins"), true_pt, "IQR / median, missing $p_T$",
        )  # fmt: skip
        yield make.curve(
            "met_median", "Missing pT scale",
            f"Median of the response against the true missing pT; 1 is right. {_POINTS}{note}",
            MISSING_PT_EDGES, source.measured("median", "met_bins"), true_pt, "median missing $p_T$ response", around=1.0,
        )  # fmt: skip
    if source.filled("met_error"):
        errors = source.histograms("met_error")
        yield Picture(
            "missing_error", make.group, "Missing momentum error",
            "Reconstructed minus true missing momentum along x, y and z. Bands are statistical.",
            partial(missing_error, errors), _few(_entries(errors) / 3, "events"),
        )  # fmt: skip
    if source.filled("visible_energy"):
        yield make.distribution(
            "visible_energy", "Visible energy",
            f"Summed energy of the candidates over that of the visible true particles, per event.{note}",
            source.histograms("visible_energy"), "visible energy, reconstructed / true",
            _spread_notes(source, "visible_energy_median", "visible_energy_resolution"), around=1.0,
        )  # fmt: skip
    masses = source.histograms("mass")
    for number, name in enumerate(dict.fromkeys(name for part in masses.values() for name in part.axes["name"]), 1):
        median, width = MASS_METRICS
        chosen = {key: at(part, "name", name) for key, part in masses.items() if name in list(part.axes["name"])}
        notes = source.notes(("median", median), ("IQR/median", width), section=("masses", name))
        yield make.distribution(
            f"mass_{number}", f"Mass: {name}", f"Reconstructed mass of the {name}.{note}", chosen,
            f"{plain(name)} mass [GeV]", notes, unit="GeV",
        )  # fmt: skip


def _particles(source: Source) -> Iterator[Picture]:
    make = _Drawer("All particles")
    for number, (name, book) in enumerate(source.books.items(), start=1):
        if source.filled("confusion"):
            yield Picture(
                f"confusion_{number}", make.group, f"Confusion matrix: {display_name(name)}",
                "Row: true class, with its number of entries; column: what it was reconstructed as, in percent of the row. "
                "Missed particles are in the first column, fakes in the first row. Pairs are assigned one to one in direction "
                "and momentum (ΔR < 0.1, pT within 50 %), whatever their class.",
                partial(confusion, book["confusion"]), _few(book["confusion"].sum(flow=True), "particles"),
            )  # fmt: skip
    if source.filled("multiplicity"):
        counted = source.histograms("multiplicity")
        yield Picture(
            "multiplicity", make.group, "Particles too many or too few",
            "Candidates minus true particles per event and class: markers are means, bars hold the central 68 % of events.",
            partial(multiplicity, counted), _few(_entries(counted) / len(LABELS), "events", FEWEST_EVENTS),
        )  # fmt: skip
    if source.filled("particles_per_event"):
        yield make.distribution(
            "particles_per_event", "Particles per event", f"Number of candidates in an event.{_ratio_note(source)}",
            source.histograms("particles_per_event"), "particles per event",
            source.notes(("mean", _METRICS["particles_per_event"])),
        )  # fmt: skip


def _class(source: Source, label: int) -> Iterator[Picture]:
    name, note = CLASS_NAMES[label], _ratio_note(source)
    slug, make = name.replace(" ", "_"), _Drawer(f"{name.capitalize()}s")
    if not source.filled("particle_truth", "particle_reco"):
        return
    truth, reco = (
        {key: at(part, "label", label) for key, part in source.histograms(side).items()}
        for side in ("particle_truth", "particle_reco")
    )
    for axis, shown, symbol in (("pt", "pT", "$p_T$ [GeV]"), ("eta", "η", r"$\eta$")):
        found = {key: matched_fraction(part, axis) for key, part in truth.items()}
        fakes = {key: matched_fraction(part, axis, matched=False) for key, part in reco.items()}
        edges = next(iter(truth.values())).axes[axis].edges
        yield Picture(
            f"{slug}_{axis}", make.group, f"{make.group}: efficiency and fake rate against {shown}",
            f"Efficiency: true {name}s matched to a candidate of any class, against their {shown}. Fake rate: {name} "
            f"candidates matched to no true particle, against theirs. {_POINTS}"
            f"{note.replace('lower panel divides', 'narrow panels divide')}",
            partial(particle_rates, edges, found, fakes, f"{name} {symbol}", log=axis == "pt"),
            _few_points(found, fakes),
        )  # fmt: skip
    yield make.curve(
        f"{slug}_width", f"{make.group}: momentum resolution",
        f"IQR / median of reconstructed over true pT of matched {name}s. {_POINTS}{note}",
        RESPONSE_PT_EDGES, source.measured("iqr_over_median", "pt_bins", "classes", slug),
        f"true {name} $p_T$ [GeV]", "IQR / median of $p_T$ response", log=True,
    )  # fmt: skip
