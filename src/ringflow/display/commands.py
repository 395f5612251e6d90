"""The command that shows events. It imports its work late."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base.errors import UsageError
from ringflow.base.log import interactive, say
from ringflow.base.options import Count, Json, ProfileName, Several, Switch
from ringflow.base.output import finish, print_json

if TYPE_CHECKING:
    from ringflow.display.source import EventSource

display = App(name="display")

#: Events that a page without a server holds unless told otherwise: a few megabytes.
STATIC_EVENTS = 20


@display.default
def display_command(
    source: Annotated[
        Path,
        Parameter(
            help="Folder of a dataset or of a report, file of candidates (.parquet), EDM4hep file (.root) or "
            "Phoenix event file (.json)."
        ),
    ],
    /,
    *,
    candidates: Annotated[tuple[Path, ...], Several, Parameter(help="Candidate files to show beside.")] = (),
    model: Annotated[
        Path | None, Parameter(help="Model file or folder of a run; the shipped one unless given.")
    ] = None,
    events: Annotated[
        Count | None,
        Parameter(help="Only so many events; all to look at, 20 for --static and 1 for --phoenix unless given."),
    ] = None,
    event: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=0),
            help="Event to begin with, counted from 0; the first of --links, else 0, unless given.",
        ),
    ] = None,
    links: Annotated[
        Path | None, Parameter(help="File of `ringflow explain --links`: lines from candidates to elements.")
    ] = None,
    static: Annotated[
        Path | None,
        Parameter(help="Write a page that needs no server into this folder, or as this one file (.html)."),
    ] = None,
    phoenix: Annotated[Path | None, Parameter(help="Write the event into this file, for Phoenix.")] = None,
    profile: ProfileName | None = None,
    sample: Annotated[str | None, Parameter(help="Sample of a report; its first unless given.")] = None,
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535), help="Port; 0 is any that is free.")] = 0,
    no_open: Annotated[bool, Switch, Parameter(help="Do not open a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Look at events: detector, tracks, hits, and truth, model and rules side by side, in the browser.

    The page is served on this machine only, until Ctrl-C. `--static` and `--phoenix` write files instead.
    """
    writes = static is not None or phoenix is not None
    if not writes:  # a shell that starts it in the background has it ignore Ctrl-C, and services send SIGTERM
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
    say(f"opening {source}")

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
    import json
    import sys
    import webbrowser

    if as_json:  # one line, which a program can read while the server runs
        sys.stdout.write(json.dumps({"url": url}) + "\n")
        sys.stdout.flush()
    say(f"showing events at {url}; Ctrl-C stops")
    if not no_open and interactive():
        webbrowser.open(url)
