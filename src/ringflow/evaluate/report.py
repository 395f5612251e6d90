"""The report of an evaluation: one HTML page that needs nothing else, and beside it the figures and their histograms.

- `index.html`: verdict, then per sample a table, three figures and the rest by topic, provenance
- `figures/<number>_<sample>/<figure>.png`, and `.svg` where that is small
- `figures/<number>_<sample>/<histogram>.json`: what distributions and fractions were drawn from, all reconstructions
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ringflow.base.errors import UsageError
from ringflow.base.page import PAGE_FILE, inline, render
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.evaluate.plots.figures import event_display
from ringflow.evaluate.plots.gallery import Book, Picture, pictures
from ringflow.evaluate.plots.style import display_name, file_name, looks, save_figure
from ringflow.evaluate.sheet import save_histogram
from ringflow.evaluate.tables import HEADLINES, MetricRow, class_rows, jet_bin_rows, mass_rows, metric_rows, verdict
from ringflow.event.block import Collection, EventBlock

FIGURES_FOLDER = "figures"
_TEMPLATE = Path(__file__).parent / "templates" / "report.html.j2"
#: Figures that are seen without opening anything, in order of preference; three of them.
_FIRST = ("jet_response", "jet_width_pt", "met_response", "visible_energy", "missing_error", "particles_per_event")
_DISPLAY_CAPTION = (
    "One event in pseudorapidity and azimuth. Grey squares: clusters; crosses: tracks; open circles: truth targets; filled "
    "marks: candidates by class. Areas grow with energy. A circle without a mark was missed, a mark without a circle is fake."
)

#: Of one sample: a block whose first event is drawn, and the candidates of that block by reconstruction.
EventDisplay = tuple[EventBlock, Mapping[str, Collection]]


class Image(NamedTuple):
    """A figure in the page; without a source it was not drawn, because of what it lacks."""

    title: str
    caption: str
    alt: str
    source: str  # data: address
    lacks: str = ""


class MetricTable(NamedTuple):
    """A table in the page; `head` names the column of groups, empty if there is none."""

    title: str
    head: str
    rows: list[MetricRow]


class Fold(NamedTuple):
    """One topic of a sample, closed until somebody opens it."""

    title: str
    table: MetricTable | None
    images: list[Image]


class Section(NamedTuple):
    """One sample in the page: what everybody wants to see, and the rest by topic."""

    anchor: str
    name: str
    facts: dict[str, str]
    notes: list[str]
    reconstructions: list[str]
    table: MetricTable
    images: list[Image]
    folds: list[Fold]


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
    if unknown := sorted(set(histograms) - set(samples)):
        raise UsageError(f"there are histograms but no metrics of the sample {unknown[0]!r}; evaluate it as well")
    sections = []
    for number, (name, sample) in enumerate(samples.items(), start=1):
        folder = out / FIGURES_FOLDER / f"{number}_{file_name(name)}"
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        display = (events or {}).get(name)
        sections.append(_section(f"sample-{number}", name, sample, histograms.get(name, {}), folder, display))
    page = out / PAGE_FILE
    write_atomic(page, _render(results, sections))
    return page


def _render(results: Mapping[str, Any], sections: list[Section]) -> str:
    names = list(dict.fromkeys(name for section in sections for name in section.reconstructions))
    found = verdict(results["samples"])
    provenance = {key: list(_flat(value)) for key, value in (results.get("provenance") or {}).items()}
    return render(
        _TEMPLATE,
        verdict=found,
        sections=sections,
        colors={name: look.color for name, look in looks(names).items()},
        provenance={key: rows for key, rows in provenance.items() if rows},
        pairs=list(
            dict.fromkeys((finding.sample, finding.challenger, finding.reference) for finding in found.findings)
        ),
        display_name=display_name,
    )


def _section(
    anchor: str,
    name: str,
    sample: Mapping[str, Any],
    books: Mapping[str, Book],
    folder: Path,
    display: EventDisplay | None,
) -> Section:
    reconstructions, comparisons = sample["reconstructions"], sample.get("comparisons") or []
    for histogram in next(iter(books.values()), {}):
        save_histogram({key: book[histogram] for key, book in books.items()}, folder / f"{histogram}.json")
    found = list(pictures(books, reconstructions)) if books else []
    images = {picture.key: _image(picture, list(books), folder) for picture in found}
    first = _first(images)
    metrics = metric_rows(reconstructions, comparisons)
    headlines = [row for row in metrics if row.metric.key in HEADLINES]
    folds = [Fold("All metrics and what they are", MetricTable("All metrics", "", metrics), [])] if headlines else []
    tables = _tables(reconstructions)
    for group in dict.fromkeys([*(picture.group for picture in found), *tables]):
        rest = [images[picture.key] for picture in found if picture.group == group and picture.key not in first]
        folds.append(Fold(group, tables.get(group), rest))
    if display is not None:
        folds.append(Fold("One event", None, list(_display_images(display, folder))))
    return Section(
        anchor,
        name,
        _facts(sample, name),
        _notes(sample, books, len(found)),
        list(reconstructions),
        MetricTable("Summary", "", headlines or metrics),
        [images[key] for key in first],
        folds,
    )


def _first(images: Mapping[str, Image]) -> list[str]:
    """The three figures that are seen without opening anything: the first that could be drawn, else the first."""
    wanted = [key for key in _FIRST if key in images]
    return sorted(sorted(wanted, key=lambda key: bool(images[key].lacks))[:3], key=wanted.index)


def _tables(reconstructions: Mapping[str, Mapping[str, Any]]) -> dict[str, MetricTable]:
    """The tables that belong to groups of figures."""
    tables = {
        "Jets": MetricTable("Jets by true pT", "jet pT", jet_bin_rows(reconstructions)),
        "Missing momentum, energy and masses": MetricTable("Masses", "mass", mass_rows(reconstructions)),
    }
    for name, rows in groupby(class_rows(reconstructions), key=lambda row: row.group):
        title = f"{name.capitalize()}s"
        tables[title] = MetricTable(title, "", list(rows))
    return {group: table for group, table in tables.items() if table.rows}


def _image(picture: Picture, reconstructions: list[str], folder: Path) -> Image:
    alt = picture.alt(reconstructions)
    if picture.lacks:
        return Image(picture.title, picture.caption, alt, "", picture.lacks)
    return Image(picture.title, picture.caption, alt, inline(save_figure(picture.draw(), folder / picture.key)))


def _display_images(display: EventDisplay, folder: Path) -> Iterator[Image]:
    block, candidates = display
    number = int(block.event_number[0])
    for place, (name, found) in enumerate(candidates.items(), start=1):
        shown = display_name(name)
        content = save_figure(event_display(block, found, shown), folder / f"event_{place}")
        alt = f"Event {number} in the eta-phi plane as reconstructed by {shown}: {int(found.counts[0])} candidates."
        yield Image(f"Event {number}: {shown}", _DISPLAY_CAPTION, alt, inline(content))


def _facts(sample: Mapping[str, Any], name: str) -> dict[str, str]:
    """Plain facts of a sample, such as its detector and number of events; hashes are told with the provenance."""
    plain = {
        key: value
        for key, value in sample.items()
        if isinstance(value, str | int) and not isinstance(value, bool) and not key.endswith("sha256")
    }
    shown = {key.replace("_", " "): f"{value:,}" if isinstance(value, int) else value for key, value in plain.items()}
    return {key: text for key, text in shown.items() if (key, text) != ("sample", name)}


def _notes(sample: Mapping[str, Any], books: Mapping[str, Book], drawn: int) -> list[str]:
    """What is missing, and why."""
    notes = [f"No {display_name(name)}: {why}." for name, why in (sample.get("not_available") or {}).items()]
    metrics = sample["reconstructions"].values()
    if metrics and not any("jet_median" in part for part in metrics):
        notes.append("This dataset has no truth: only what can be computed without it is shown.")
    elif books and not drawn:
        notes.append("There were no events: nothing could be drawn.")
    return notes


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as (dotted name, text)."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(part, Mapping | list | tuple) for part in value):
        for number, part in enumerate(value, start=1):
            yield from _flat(part, f"{name}.{number}" if name else str(number))
    elif isinstance(value, list | tuple):
        yield name, ", ".join(map(str, value))
    elif value is not None:
        yield name, str(value)
