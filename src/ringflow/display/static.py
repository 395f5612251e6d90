"""The page with its events as files that need no server: open the page, send it, put it anywhere.

index.html       page, script and all events in one file; it loads nothing
phoenix/0.json   every event in the format of Phoenix; not beside a page that was asked for as a single file
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.log import progress
from ringflow.base.rundir import prepare, write_atomic, write_errors
from ringflow.display.errors import MEASURES
from ringflow.display.page import event_list, read_page
from ringflow.display.phoenix import phoenix_file
from ringflow.display.ranking import Errors
from ringflow.display.reconstruction import TRUTH
from ringflow.display.source import EventSource

INDEX = "index.html"
PHOENIX = "phoenix"
_STYLE = '<link rel="stylesheet" href="display.css">'
_SCRIPT = '<script src="display.js"></script>'


def write_static(source: EventSource, indices: Sequence[int], out: Path) -> Path:
    """Write a page with some events into a folder, or into a file whose name ends with .html; the page's file."""
    alone = out.suffix == ".html"
    folder = out.parent if alone else prepare(out, marks=(PHOENIX,))
    with write_errors(out):
        (folder if alone else folder / PHOENIX).mkdir(parents=True, exist_ok=True)
    scenes: list[str] = []
    errors: Errors = {}
    with progress(len(indices), "drawing") as advance:
        for index in indices:
            scene = source.scene(index)
            if not alone:
                write_atomic(folder / PHOENIX / f"{index}.json", _json(phoenix_file([scene])))
            scenes.append(f'<script type="text/plain" data-scene="{index}">{_packed(scene)}</script>')
            _add_errors(errors, scene)
            advance(1)
    ranking = {"done": len(indices), "of": len(indices), "failure": "", "errors": errors}
    events = event_list(source, indices[0], indices=list(indices))
    page = out if alone else folder / INDEX
    write_atomic(page, _page({**events, "phoenix": not alone, "ranking": ranking}, scenes))
    return page


def _add_errors(errors: Errors, scene: Mapping[str, Any]) -> None:
    """What the page orders events by; nothing where there is no truth."""
    for one in scene["reconstructions"]:
        if one["name"] != TRUTH and one["errors"]["jet"] is not None:
            columns = errors.setdefault(one["name"], {by: [] for by in MEASURES})
            for by, column in columns.items():
                column.append(one["errors"][by])


def _page(events: dict[str, Any], scenes: list[str]) -> str:
    page, style, script = (read_page(name).decode() for name in (INDEX, "display.css", "display.js"))
    # Text of a script element ends at the next </script, wherever that is.
    listed = _json(events).replace("<", "\\u003c")
    script = script.replace("</script", "<\\/script")
    embedded = f'<script type="application/json" id="events">{listed}</script>\n' + "\n".join(scenes)
    page = page.replace(_STYLE, f"<style>{style}</style>")
    return page.replace(_SCRIPT, f"{embedded}\n<script>{script}</script>")


def _packed(scene: Mapping[str, Any]) -> str:
    return base64.b64encode(gzip.compress(_json(scene).encode(), mtime=0)).decode()


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
