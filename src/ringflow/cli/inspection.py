"""The commands that look at what was made: display, explain, uncertainty, trace, reproduce. Imports are late."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ringflow.base.errors import UsageError
from ringflow.base.log import interactive, say, table
from ringflow.base.options import (
    Count,
    DatasetFolder,
    Flag,
    Json,
    ModelName,
    Natural,
    NotNegative,
    Paths,
    Port,
    ProfileName,
    Split,
    about,
)
from ringflow.base.output import finish, print_json, print_line, show_or_print, show_rows
from ringflow.base.rundir import require_suffix

if TYPE_CHECKING:
    from ringflow.display.source import EventSource


#: Events that a page without a server holds unless told otherwise: a few megabytes.
STATIC_EVENTS = 20


def display(
    source: Annotated[
        Path,
        about(
            "Folder of a dataset or of a report, file of candidates (.parquet), EDM4hep file (.root) or "
            "Phoenix event file (.json)."
        ),
    ],
    /,
    *,
    candidates: Annotated[Paths, about("Candidate files to show beside.")] = (),
    model: Annotated[Path | None, about("Model file or folder of a run; the shipped one unless given.")] = None,
    events: Annotated[
        Count | None, about("Only so many events; all to look at, 20 for --static and 1 for --phoenix unless given.")
    ] = None,
    event: Annotated[
        Natural | None, about("Event to begin with, counted from 0; the first of --links, else 0, unless given.")
    ] = None,
    links: Annotated[
        Path | None, about("File of `ringflow explain --links`: lines from candidates to elements.")
    ] = None,
    static: Annotated[
        Path | None, about("Write a page that needs no server into this folder, or as this one file (.html).")
    ] = None,
    phoenix: Annotated[Path | None, about("Write the event into this file, for Phoenix.")] = None,
    profile: ProfileName | None = None,
    sample: Annotated[str | None, about("Sample of a report; its first unless given.")] = None,
    port: Port = 0,
    no_open: Annotated[Flag, about("Do not open a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Look at events: detector, tracks, hits, and truth, model and rules side by side, in the browser.

    The page is served on this machine only, until Ctrl-C. `--static` and `--phoenix` write files instead.
    """
    writes = static is not None or phoenix is not None
    if not writes:  # a shell that starts it in the background has it ignore Ctrl-C, and services send SIGTERM
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)

    from ringflow.display.source import open_source

    limit = None if writes else events  # what is written begins at --event, wherever that is
    shown = open_source(
        source, candidates=candidates, model=model, events=limit, profile=profile, sample=sample, links=links
    )
    start = next(iter(shown.explained), 0) if event is None else event
    if start >= shown.num_events:
        raise UsageError(f"--event {start}: {source} has {shown.num_events} events here, counted from 0")
    for note in shown.notes:
        say(note)
    if writes:
        _write(shown, range(start, shown.num_events), events, static, phoenix)
        if as_json:
            print_json({"static": static, "phoenix": phoenix})
        return

    from ringflow.display.server import serve

    serve(shown, start=start, port=port, ready=lambda url: _announce(url, as_json=as_json, no_open=no_open))


def _write(shown: EventSource, possible: range, events: int | None, static: Path | None, phoenix: Path | None) -> None:
    if phoenix is not None:
        from ringflow.display.phoenix import write_phoenix

        write_phoenix(phoenix, (shown.scene(index) for index in possible[: events or 1]))
        finish(phoenix, f"ringflow display {phoenix}")
    if static is not None:
        from ringflow.display.static import write_static

        page = write_static(shown, list(possible[: events or STATIC_EVENTS]), static)
        finish(page, f"open {page} in a browser")


def _announce(url: str, *, as_json: bool, no_open: bool) -> None:
    import webbrowser

    if as_json:
        print_line({"url": url})
    say(f"showing events at {url}; Ctrl-C stops")
    if not no_open and interactive():
        webbrowser.open(url)


#: Columns of the tables for people; the rest is in the JSON.
_DELETION = ("class", "candidates", "change", "change_of_control", "difference", "low", "high", "ok")


@Parameter(name="*")
@dataclass(frozen=True)
class How:
    """What is explained, and how."""

    target: Annotated[
        Literal["particle", "class", "charge", "energy", "pt", "eta"], about("What of a candidate is explained.")
    ] = "class"
    method: Annotated[
        Literal["integrated-gradients", "input-x-gradient"], about("How; the second is quick and rough.")
    ] = "integrated-gradients"
    baseline: Annotated[
        Literal["hidden", "mean"], about("Features at the start: hidden where they can be, or average.")
    ] = "hidden"
    steps: Annotated[Count, about("Points of the integral.")] = 8


_HOW = How()


def explain(
    source: Annotated[Path, about("Folder of a dataset, or EDM4hep ROOT file.")],
    /,
    *,
    model: Annotated[Path | None, about("Model file, folder of a run, or `shipped`, which it is unless given.")] = None,
    event: Annotated[Natural | None, about("One event in full, counted from 0.")] = None,
    events: Annotated[Count | None, about("Averages over so many events; 20 unless given.")] = None,
    how: How = _HOW,
    split: Split | None = None,
    profile: ProfileName | None = None,
    links: Annotated[Path | None, about("JSON file for the lines from candidates to elements, by event.")] = None,
    graph: Annotated[Flag, about("With --links: also the learned graph of a network of the backbone `graph`.")] = False,
    out: Annotated[Path | None, about("Folder for a page with figures.")] = None,
    as_json: Json = False,
) -> int:
    """Say which elements and which features made a candidate, and test that by leaving elements out."""
    if event is not None and events is not None:
        raise UsageError(f"--event {event} is one event and --events {events} are many; give one of them")
    if graph and links is None:
        raise UsageError("--graph is written into the file of --links; give that too")
    from ringflow.data.manifest import read_manifest
    from ringflow.infer.inputs import require_file
    from ringflow.infer.shipped import model_file

    # Torch takes seconds to load: a wrong name is told before.
    model_file(model)
    if source.is_dir():
        read_manifest(source)
    else:
        require_file(source)

    from ringflow.explain.run import ExplainRequest
    from ringflow.explain.run import explain as work

    asked = ExplainRequest(
        source, model, event, events or 20, split, profile, how.target, how.method, how.baseline, how.steps
    )
    result = work(replace(asked, with_links=links is not None, with_graph=graph))
    made = None if links is None else _write_links(links, result)
    if out is not None:
        from ringflow.explain.page import write_page

        made = write_page(result, out)
    if as_json:
        print_json(result)
    else:
        _show(result, one_event=event is not None)
    which = ("--model", model) if model else ()
    if links:
        finish(made, "ringflow", "display", source, "--links", links, *which)
    else:
        more = ("--event", 0) if event is None else ("--out", "why")
        finish(made, "ringflow", "explain", source, *which, *more)
    return int(not result["ok"])


def _write_links(path: Path, result: dict[str, Any]) -> Path:
    from json import dumps

    from ringflow.base.rundir import write_atomic, write_errors

    named = ("index", "event_number", "links", "graph")
    events = [{name: single[name] for name in named if name in single} for single in result["single"]]
    origin = {name: result[name] for name in ("source", "model", "output", "method", "baseline")}
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, dumps({**origin, "events": events}) + "\n")
    return path


def _show(result: dict[str, Any], *, one_event: bool) -> None:
    say(f"explained: {result['meaning']}")
    if one_event:
        _show_event(result["single"][0])
    else:
        rows = result["classes"]
        if rows:
            cells = [[f"{cell:.3f}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
            table(
                "What a candidate listens to (shares; those of tracks and clusters are of other elements)",
                list(rows[0]),
                cells,
            )
        judged = [{name: row[name] for name in _DELETION} for row in result["deletion"] if row["judged"]]
        show_rows("Change without the elements it listens to, and without random ones", judged, as_json=False)
    missed = result["incomplete"]
    if missed is not None:
        say(
            f"{result['candidates']} candidates; the integral misses or invents {100 * missed:.1f} % of what is explained"
        )


def _show_event(single: dict[str, Any]) -> None:
    elements = single["elements"]

    def words(heard: dict[str, Any]) -> str:
        element = elements[heard["element"]]
        return f"{element['kind']} {element['number']} {100 * heard['share']:.0f} %"

    rows = [
        [
            one["candidate"],
            one["class"],
            f"{one['energy']:.2f}",
            f"{100 * one['own']:.0f} %",
            ", ".join(words(heard) for heard in one["listens_to"] if heard["element"] != one["element"])[:90],
            ", ".join(list(one["features"])[:3]),
        ]
        for one in single["candidates"]
    ]
    columns = ("candidate", "class", "GeV", "own element", "other elements", "features")
    table(f"Event {single['event_number']}", columns, rows)


def uncertainty(
    model: ModelName,
    /,
    *datasets: DatasetFolder,
    out: Annotated[
        Path | None, Parameter(name=("--out", "-o"), help="File to write; MODEL.uncertainty.safetensors unless given.")
    ] = None,
    test: Annotated[Paths, about("Other datasets to test on; a quarter of the events unless given.")] = (),
    events: Annotated[Count | None, about("Only so many events of each dataset.")] = None,
    page: Annotated[Path | None, about("Folder for a page with the calibration plot.")] = None,
    seed: Annotated[Natural, about("Of the fit.")] = 1,
    as_json: Json = False,
) -> int:
    """Fit uncertainties of energy and momentum for the candidates of a network, which stays as it is, and test them."""
    if not datasets:
        raise UsageError("no dataset to fit on; give one or more: ringflow uncertainty MODEL DATASET")
    from ringflow.data.manifest import read_manifest
    from ringflow.infer.shipped import model_file

    # Torch takes seconds to load: a wrong name is told before.
    model_file(model)
    for dataset in (*datasets, *test):
        read_manifest(dataset)
    if out is not None:
        require_suffix(out, ".safetensors")

    from ringflow.explain import uncertainty as recipe

    result = recipe.uncertainty(model, datasets, out, test=test, events=events, seed=seed)
    if page is not None:
        from ringflow.explain.uncertainty_page import write_page

        write_page(result, page)
    show_or_print(result, _show_pulls, as_json=as_json)
    words = ("--model", model, "--uncertainty", result["path"], "--out", "candidates.parquet")
    finish(Path(result["path"]), "ringflow", "reconstruct", (*test, *datasets)[0], *words)
    return int(not result["ok"])


def _show_pulls(result: dict[str, Any]) -> None:
    columns = ("class", "quantity", "candidates", "width", "bias", "within 1 σ", "within 1.96 σ", "verdict", "wrong")
    rows = [
        (
            row["class"],
            row["quantity"],
            f"{row['candidates']:,}",
            f"{row['width']:.3f} ± {row['error']:.3f}",
            f"{row['median']:+.3f} ± {row['median_error']:.3f}",
            f"{100 * row['within_1']:.1f} ± {100 * row['within_1_error']:.1f} %",
            f"{100 * row['within_1.96']:.1f} %",
            row["verdict"],
            ", ".join(row["fails"]),
        )
        for row in result["classes"]
    ]
    table("Pulls on events that were not fitted", columns, rows)
    say(result["verdict"])


def trace(
    path: Annotated[Path, about("Candidates, EDM4hep file, model, run, dataset, shard, report or study.")],
    /,
    *,
    particle: Annotated[
        str | None, about("One particle, as EVENT:INDEX, or one event, as EVENT; both count from 0.")
    ] = None,
    search: Annotated[Paths, about("Further folders to look through for what it was made of.")] = (),
    thorough: Annotated[Flag, about("Compute the sha256 of every shard, not only the sizes.")] = False,
    prov: Annotated[Path | None, about("Write the trace as W3C PROV (PROV-JSON) into this file.")] = None,
    crate: Annotated[Flag, about("Describe a run or a dataset as an RO-Crate.")] = False,
    croissant: Annotated[Flag, about("Describe a dataset for machine learning (Croissant).")] = False,
    card: Annotated[Flag, about("Write a card (README.md) of a run or a dataset.")] = False,
    out: Annotated[Path | None, about("Folder for what is written; the folder itself unless given.")] = None,
    license: Annotated[str | None, about("SPDX name of the licence to state, e.g. CC-BY-4.0.")] = None,
    as_json: Json = False,
) -> int:
    """Say where a file came from: model, run, settings, code, data, seed, each verified where it is at hand.

    Exit code 1 if something on the way is not what was recorded.
    """
    from ringflow.provenance.formats import Wanted
    from ringflow.provenance.graph import show, to_json
    from ringflow.provenance.trace import trace as work

    wanted = Wanted(prov, crate=crate, croissant=croissant, card=card, out=out, license=license)
    wanted.require(path)
    node = work(path, particle, search=search, thorough=thorough)
    result = to_json(node)
    result["written"] = [str(written) for written in wanted.write(node)]
    if as_json:
        print_json(result)
    else:
        show(node)
    for written in result["written"]:
        say(f"made: {written}")
    if result["changed"]:
        say(f"{len(result['changed'])} of {len(result['steps'])} steps are not what was recorded")
    finish(None, f"ringflow trace {path} --json" if not as_json else f"ringflow trace {path} --prov prov.json")
    return int(bool(result["changed"]))


def reproduce(
    path: Annotated[Path, about("Folder of a run, or of a dataset that was simulated.")],
    /,
    *,
    out: Annotated[Path | None, about("Folder for what is made again; it is removed unless given.")] = None,
    events: Annotated[
        Count | None, about("Only the beginning: so many events of a run; shards with so many of a dataset.")
    ] = None,
    tolerance: Annotated[NotNegative, about("What losses may differ by where bits cannot be the same.")] = 0.05,
    as_json: Json = False,
) -> int:
    """Train a run again, or simulate shards of a dataset again, from what was recorded, and compare.

    Exit code 0 if it is the same, 1 if it is not.
    """
    from ringflow.provenance.trace import kind_of

    kind = kind_of(path) if path.is_dir() else None
    if kind not in ("run", "dataset"):
        raise UsageError(f"{path} is neither a run nor a dataset; give the folder of one")
    from ringflow.provenance.reproduce import reproduce_dataset, reproduce_run

    if kind == "run":
        result = reproduce_run(path, out, events=events, tolerance=tolerance)
    else:
        result = reproduce_dataset(path, out, events=events)
    show_or_print(result, lambda made: show_rows(f"{path} again", made["rows"], as_json=False), as_json=as_json)
    finish(out, f"ringflow trace {path}")
    return int(not result["same"])
