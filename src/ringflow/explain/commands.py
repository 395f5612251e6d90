"""`ringflow explain`: why candidates are what they are. It imports its work late."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base.errors import UsageError
from ringflow.base.log import say, table
from ringflow.base.options import Count, Json, ProfileName, Switch
from ringflow.base.output import finish, print_json, show_rows

explain = App(name="explain")

#: Columns of the tables for people; the rest is in the JSON.
_DELETION = ("class", "candidates", "change", "change_of_control", "difference", "low", "high", "ok")


@Parameter(name="*")
@dataclass(frozen=True)
class How:
    """What is explained, and how."""

    target: Annotated[
        Literal["particle", "class", "charge", "energy", "pt", "eta"],
        Parameter(help="What of a candidate is explained."),
    ] = "class"
    method: Annotated[
        Literal["integrated-gradients", "input-x-gradient"], Parameter(help="How; the second is quick and rough.")
    ] = "integrated-gradients"
    baseline: Annotated[
        Literal["hidden", "mean"], Parameter(help="Features at the start: hidden where they can be, or average.")
    ] = "hidden"
    steps: Annotated[Count, Parameter(help="Points of the integral.")] = 8


_HOW = How()


@explain.default
def explain_command(
    source: Annotated[Path, Parameter(help="Folder of a dataset, or EDM4hep ROOT file.")],
    /,
    *,
    model: Annotated[
        Path | None, Parameter(help="Model file, folder of a run, or `shipped`, which it is unless given.")
    ] = None,
    event: Annotated[int | None, Parameter(validator=Number(gte=0), help="One event in full, counted from 0.")] = None,
    events: Annotated[Count | None, Parameter(help="Averages over so many events; 20 unless given.")] = None,
    how: How = _HOW,
    split: Annotated[Literal["train", "valid", "test"] | None, Parameter(help="Only the events of one split.")] = None,
    profile: ProfileName | None = None,
    links: Annotated[
        Path | None, Parameter(help="JSON file for the lines from candidates to elements, by event.")
    ] = None,
    graph: Annotated[
        bool, Switch, Parameter(help="With --links: also the learned graph of a network of the backbone `graph`.")
    ] = False,
    out: Annotated[Path | None, Parameter(help="Folder for a page with figures.")] = None,
    as_json: Json = False,
) -> int:
    """Say which elements and which features made a candidate, and test that by leaving elements out."""
    if event is not None and events is not None:
        raise UsageError(f"--event {event} is one event and --events {events} are many; give one of them")
    if graph and links is None:
        raise UsageError("--graph is written into the file of --links; give that too")
    from ringflow.data.manifest import read_manifest
    from ringflow.infer.shipped import model_file
    from ringflow.recipes.inputs import require_file

    # Torch takes seconds to load: a wrong name is told before.
    model_file(model)
    if source.is_dir():
        read_manifest(source)
    else:
        require_file(source)

    from ringflow.explain.run import Request
    from ringflow.explain.run import explain as work

    asked = Request(source, model, event, events or 20, split, profile, how.target, how.method, how.baseline, how.steps)
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
