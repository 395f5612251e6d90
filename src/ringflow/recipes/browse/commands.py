"""`ringflow browse`: the runs and studies under a folder. Its work is imported late."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.log import say
from ringflow.base.options import Json
from ringflow.base.output import finish, print_json

browse = App(name="browse")


@browse.default
def browse_command(
    folder: Annotated[Path, Parameter(help="Folder that holds runs and studies, at any depth.")] = Path("runs"),
    /,
    *,
    static: Annotated[
        Path | None, Parameter(help="Write the page into this folder, as one file that opens offline, and end.")
    ] = None,
    port: Annotated[
        int | None, Parameter(validator=Number(gte=0, lte=65535), help="Port of the live page; 0, or none: any.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the runs and studies under a folder: curves, best figures, states, and in which settings they differ.

    Without `--static` the page is live: it is served to this machine, and reads the folder again every few seconds.
    """
    if static is not None and port is not None:
        raise UsageError(f"--port {port} is for a live page; leave it or --static {static} out")

    from ringflow.recipes.browse.page import beside, collect, render
    from ringflow.recipes.browse.scan import scan

    if static is not None:
        from ringflow.base.rundir import prepare, write_atomic

        data = collect(folder, beside(static))
        prepare(static, marks=("index.html",))
        page = static / "index.html"
        write_atomic(page, render(data, live=False))
        if as_json:
            print_json({"page": str(page), "runs": data["runs"], "studies": data["studies"], "common": data["common"]})
        finish(page, f"ringflow browse {folder}")
        return
    scan(folder)  # a wrong folder is told before anything is served
    _serve(folder, port or 0, as_json)


def _serve(folder: Path, port: int, as_json: bool) -> None:
    from json import dumps

    from ringflow.recipes.browse.server import BrowseServer

    try:
        server = BrowseServer(folder, port)
    except OSError as error:
        raise FailureError(f"cannot listen on port {port}: {error.strerror}; give another --port, or none") from None
    for number in (signal.SIGINT, signal.SIGTERM):  # ignored in the background of a shell; sent by services
        signal.signal(number, signal.default_int_handler)
    with server:
        if as_json:  # one line, which a program can read while the server runs
            sys.stdout.write(dumps({"url": server.url}) + "\n")
            sys.stdout.flush()
        say(f"showing {folder} at {server.url}; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")
