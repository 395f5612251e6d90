"""The report of an evaluation: one HTML page that needs nothing else, and beside it the figures and their histograms.

- `index.html`: verdict, tables and figures per sample, provenance
- `figures/<number>_<sample>/<figure>.png`, and `.svg` where that is small
- `figures/<number>_<sample>/<histogram>.json`: what the figures were drawn from, all reconstructions
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ringflow.base.errors import UsageError
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.evaluate.plots.display import event_display
from ringflow.evaluate.plots.files import file_name, save_figure, save_histogram
from ringflow.evaluate.plots.gallery import Book, Picture, alt_text, pictures
from ringflow.evaluate.plots.style import display_name, looks
from ringflow.evaluate.tables import Row, class_rows, jet_bin_rows, mass_rows, metric_rows
from ringflow.evaluate.template import render
from ringflow.evaluate.verdict import verdict
from ringflow.event.block import Collection, EventBlock

REPORT_FILE = "index.html"
FIGURES_FOLDER = "figures"
_TEMPLATE = Path(__file__).parent / "templates" / "report.html.j2"
_DISPLAY_CAPTION = (
    "One event in pseudorapidity and azimuth. Grey squares: clusters; crosses: tracks; open circles: truth targets; filled "
    "marks: candidates by class. Areas grow with energy. A circle without a mark was missed, a mark without a circle is fake."
)

#: Of one sample: a block whose first event is drawn, and the candidates of that block by reconstruction.
EventDisplay = tuple[EventBlock, Mapping[str, Collection]]


class Image(NamedTuple):
    """A figure in the page."""

    title: str
    caption: str
    alt: str
    source: str  # data: address


class Table(NamedTuple):
    """A table in the page; `head` names the column of groups, empty if there is none."""

    title: str
    head: str
    rows: list[Row]


class Section(NamedTuple):
    """One sample in the page."""

    anchor: str
    name: str
    facts: dict[str, str]
    notes: list[str]
    reconstructions: list[str]
    tables: list[Table]
    groups: list[tuple[str, list[Image]]]


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
    page = out / REPORT_FILE
    write_atomic(page, _render(results, sections))
    return page


def _render(results: Mapping[str, Any], sections: list[Section]) -> str:
    names = list(dict.fromkeys(name for section in sections for name in section.reconstructions))
    provenance = {key: list(_flat(value)) for key, value in (results.get("provenance") or {}).items()}
    return render(
        _TEMPLATE,
        verdict=verdict(results["samples"]),
        sections=sections,
        colors={name: look.color for name, look in looks(names).items()},
        provenance={key: rows for key, rows in provenance.items() if rows},
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
    tables = [
        Table("Metrics", "", metric_rows(reconstructions, comparisons)),
        Table("Jets by true pT", "jet pT", jet_bin_rows(reconstructions)),
        Table("Masses", "mass", mass_rows(reconstructions)),
        Table("Particles by class", "class", class_rows(reconstructions)),
    ]
    for histogram in next(iter(books.values()), {}):
        save_histogram({key: book[histogram] for key, book in books.items()}, folder / f"{histogram}.json")
    drawn = [picture for picture in (pictures(books) if books else ()) if picture.has_entries(books)]
    groups = [
        (group, [_image(picture, list(books), folder) for picture in members])
        for group, members in groupby(drawn, key=lambda picture: picture.group)
    ]
    if display is not None:
        shown = list(_display_images(display, folder))
        groups.append(("One event", shown))
    return Section(
        anchor,
        name,
        _facts(sample, name),
        _notes(sample, books, len(drawn)),
        list(reconstructions),
        [table for table in tables if table.rows],
        groups,
    )


def _image(picture: Picture, reconstructions: list[str], folder: Path) -> Image:
    content = save_figure(picture.draw(), folder / picture.key)
    return Image(picture.title, picture.caption, alt_text(picture, reconstructions), _inline(content))


def _display_images(display: EventDisplay, folder: Path) -> Iterator[Image]:
    block, candidates = display
    number = int(block.event_number[0])
    for place, (name, found) in enumerate(candidates.items(), start=1):
        shown = display_name(name)
        content = save_figure(event_display(block, found, shown), folder / f"event_{place}")
        alt = f"Event {number} in the eta-phi plane as reconstructed by {shown}: {int(found.counts[0])} candidates."
        yield Image(f"Event {number}: {shown}", _DISPLAY_CAPTION, alt, _inline(content))


def _facts(sample: Mapping[str, Any], name: str) -> dict[str, str]:
    """Plain facts of a sample, such as its detector and number of events."""
    plain = {
        key: value for key, value in sample.items() if isinstance(value, str | int) and not isinstance(value, bool)
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


def _inline(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"


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
