"""All figures of one sample, in the order of the report, each with a title, a caption and the histograms behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import hist
from matplotlib.figure import Figure

from ringflow.evaluate.histograms import LABELS
from ringflow.evaluate.plots import event_sums, jets, particles
from ringflow.evaluate.plots.curves import MIN_ENTRIES
from ringflow.evaluate.plots.style import CLASS_NAMES, display_name, reference_of

Book = Mapping[str, hist.Hist[Any]]

_POINTS = f"Bars are 68 % intervals; bins with fewer than {MIN_ENTRIES} entries are left out."


class Picture(NamedTuple):
    """One figure to be drawn."""

    key: str
    group: str
    title: str
    caption: str
    draw: Callable[[], Figure]
    histograms: tuple[str, ...] = ()

    def has_entries(self, books: Mapping[str, Book]) -> bool:
        """Whether every histogram it needs has something in it, for any reconstruction."""
        return all(any(book[name].sum(flow=True) > 0 for book in books.values()) for name in self.histograms)


def pictures(books: Mapping[str, Book]) -> Iterator[Picture]:
    """The figures of one sample; `books` has the histograms of every reconstruction."""
    yield from _jets(books)
    yield from _events(books)
    yield from _particles(books)
    for label in LABELS:
        yield from _class(books, label)


def alt_text(picture: Picture, reconstructions: Sequence[str]) -> str:
    """What the figure is, for who cannot see it; the numbers are in the tables."""
    return f"{picture.title}, for {', '.join(display_name(name) for name in reconstructions)}."


def _by(books: Mapping[str, Book], name: str) -> dict[str, hist.Hist[Any]]:
    return {reconstruction: book[name] for reconstruction, book in books.items()}


def _ratio_note(books: Mapping[str, Book]) -> str:
    reference = reference_of(books)
    return f" The lower panel divides by {display_name(reference)}." if reference else ""


def _jets(books: Mapping[str, Book]) -> Iterator[Picture]:
    response, note = _by(books, "jet_response"), _ratio_note(books)
    matched = "Jets (e+e− generalised kT, p = −1, R = 0.4, pT > 5 GeV) are matched one to one within ΔR < 0.1."
    group, source = "Jets", ("jet_response",)
    yield Picture(
        "jet_response", group, "Jet response",
        f"Reconstructed over true transverse momentum of matched jets. {matched} IQR is the distance of the quartiles.{note}",
        partial(jets.jet_response, response), source,
    )  # fmt: skip
    yield Picture(
        "jet_width_pt", group, "Jet resolution against pT",
        f"IQR / median of the jet response in bins of true jet pT: lower is better. {_POINTS}{note}",
        partial(jets.jet_width, response), source,
    )  # fmt: skip
    yield Picture(
        "jet_median_pt", group, "Jet scale against pT",
        f"Median of the jet response in bins of true jet pT; 1 is right, to half a bin of 0.005. {_POINTS}{note}",
        partial(jets.jet_median, response), source,
    )  # fmt: skip
    yield Picture(
        "jet_width_eta", group, "Jet resolution against η",
        f"IQR / median of the jet response in bins of true jet pseudorapidity. {_POINTS}{note}",
        partial(jets.jet_width_eta, _by(books, "jet_eta_response")), ("jet_eta_response",),
    )  # fmt: skip
    yield Picture(
        "jet_matched_pt", group, "Jets found against pT",
        f"Share of true jets matched to a reconstructed one. {_POINTS}{note}",
        partial(jets.jet_matched, _by(books, "jet_truth_pt")), ("jet_truth_pt",),
    )  # fmt: skip
    yield Picture(
        "jet_fakes_pt", group, "Jets without a true one, against pT",
        f"Share of reconstructed jets that match no true jet. {_POINTS}{note}",
        partial(jets.jet_fakes, _by(books, "jet_reco_pt")), ("jet_reco_pt", "jet_truth_pt"),
    )  # fmt: skip


def _events(books: Mapping[str, Book]) -> Iterator[Picture]:
    missing, note = _by(books, "met_response"), _ratio_note(books)
    group, chosen = "Missing momentum, energy and masses", "Events with true missing pT above 5 GeV."
    yield Picture(
        "met_response", group, "Missing pT response",
        f"Reconstructed over true missing transverse momentum. {chosen}{note}",
        partial(event_sums.missing_response, missing), ("met_response",),
    )  # fmt: skip
    yield Picture(
        "met_width", group, "Missing pT resolution",
        f"IQR / median of the response against the true missing pT. {_POINTS}{note}",
        partial(event_sums.missing_width, missing), ("met_response",),
    )  # fmt: skip
    yield Picture(
        "met_median", group, "Missing pT scale",
        f"Median of the response against the true missing pT; 1 is right, to half a bin of 0.01. {_POINTS}{note}",
        partial(event_sums.missing_median, missing), ("met_response",),
    )  # fmt: skip
    yield Picture(
        "missing_error", group, "Missing momentum error",
        "Reconstructed minus true missing momentum along x, y and z. Bands are statistical.",
        partial(event_sums.missing_error, _by(books, "met_error")), ("met_error",),
    )  # fmt: skip
    yield Picture(
        "visible_energy", group, "Visible energy",
        f"Summed energy of the candidates over that of the visible true particles, per event.{note}",
        partial(event_sums.visible_energy, _by(books, "visible_energy")), ("visible_energy",),
    )  # fmt: skip
    masses = _by(books, "mass")
    for number, name in enumerate(event_sums.mass_names(masses), start=1):
        yield Picture(
            f"mass_{number}", group, f"Mass: {name}", f"Reconstructed mass of the {name}.{note}",
            partial(event_sums.mass, masses, name), ("mass",),
        )  # fmt: skip


def _particles(books: Mapping[str, Book]) -> Iterator[Picture]:
    group = "All particles"
    for number, (name, book) in enumerate(books.items(), start=1):
        yield Picture(
            f"confusion_{number}", group, f"Confusion matrix: {display_name(name)}",
            "Row: true class, with its number of entries; column: what it was reconstructed as, in percent of the row. "
            "Missed particles are in the first column, fakes in the first row. Pairs are assigned one to one in direction and "
            "momentum (ΔR < 0.1, pT within 50 %), whatever their class.",
            partial(particles.confusion, book["confusion"]), ("confusion",),
        )  # fmt: skip
    yield Picture(
        "multiplicity", group, "Particles too many or too few",
        "Candidates minus true particles per event and class: markers are means, bars hold the central 68 % of events.",
        partial(particles.multiplicity, _by(books, "multiplicity")), ("multiplicity",),
    )  # fmt: skip
    yield Picture(
        "particles_per_event", group, "Particles per event",
        f"Number of candidates in an event.{_ratio_note(books)}",
        partial(particles.particles_per_event, _by(books, "particles_per_event")), ("particles_per_event",),
    )  # fmt: skip


def _class(books: Mapping[str, Book], label: int) -> Iterator[Picture]:
    name, note = CLASS_NAMES[label], _ratio_note(books).replace("lower panel divides", "narrow panels divide")
    truth, reco = _by(books, "particle_truth"), _by(books, "particle_reco")
    slug, group = name.replace(" ", "_"), f"{name.capitalize()}s"
    for axis, shown in (("pt", "pT"), ("eta", "η")):
        yield Picture(
            f"{slug}_{axis}", group, f"{group}: efficiency and fake rate against {shown}",
            f"Efficiency: true {name}s matched to a candidate of any class, against their {shown}. Fake rate: {name} "
            f"candidates matched to no true particle, against theirs. {_POINTS}{note}",
            partial(particles.particle_rates, truth, reco, label, axis), ("particle_truth", "particle_reco"),
        )  # fmt: skip
    yield Picture(
        f"{slug}_width", group, f"{group}: momentum resolution",
        f"IQR / median of reconstructed over true pT of matched {name}s. {_POINTS}{_ratio_note(books)}",
        partial(particles.particle_width, _by(books, "particle_response"), label), ("particle_response",),
    )  # fmt: skip
