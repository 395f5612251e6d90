"""The report of an evaluation: one HTML page that needs nothing else, and beside it the figures and their histograms.

- `index.html`: verdict, then per sample a table, three figures and the rest by topic, provenance
- `figures/<number>_<sample>/<figure>.png`, and `.svg` where that is small
- `figures/<number>_<sample>/<histogram>.json`: what distributions and fractions were drawn from, all reconstructions
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ringflow.base.page import PAGE_FILE, inline, render
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.evaluate.page import FIGURES_FOLDER
from ringflow.evaluate.plots.figures import Book, event_display, pictures
from ringflow.evaluate.plots.style import display_name, file_name, looks, save_figure
from ringflow.evaluate.sheet import save_histogram
from ringflow.evaluate.tables import HEADLINES, Finding, findings, sample_rows, topic_tables
from ringflow.event.block import Collection, EventBlock

_TEMPLATE = Path(__file__).parent / "templates" / "report.html.j2"
#: Figures that are seen without opening anything, in order of preference; three of them.
_FIRST = ("jet_response", "jet_width_pt", "met_response", "visible_energy", "missing_error", "particles_per_event")
#: Jets of the truth targets must agree with those of the visible truth this well.
CLOSURE = 0.01

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
    headlines = [row for row in rows if row.metric.key in HEADLINES]
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
