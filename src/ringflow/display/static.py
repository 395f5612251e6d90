"""The page with its events as a folder that needs no server: open index.html, send it, put it anywhere.

index.html       page, script and all events in one file; it loads nothing
phoenix/0.json   every event in the format of Phoenix
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

from ringflow.base.log import progress
from ringflow.base.rundir import prepare, write_atomic, write_errors
from ringflow.display.page import event_list, read_page
from ringflow.display.phoenix import phoenix_file
from ringflow.display.ranking import Ranking
from ringflow.display.source import EventSource

INDEX = "index.html"
PHOENIX = "phoenix"
_STYLE = '<link rel="stylesheet" href="display.css">'
_SCRIPT = '<script src="display.js"></script>'


def write_static(source: EventSource, indices: list[int], out: Path) -> Path:
    """Write a page with some events; the page's file."""
    prepare(out, marks=(PHOENIX,))
    with write_errors(out):
        (out / PHOENIX).mkdir(exist_ok=True)
    scenes = []
    with progress(len(indices), "drawing") as advance:
        for index in indices:
            scene = source.scene(index)
            write_atomic(out / PHOENIX / f"{index}.json", _json(phoenix_file([scene])))
            scenes.append(f'<script type="text/plain" data-scene="{index}">{_packed(scene)}</script>')
            advance(1)
    events = {**event_list(source, indices[0], indices=indices), "ranking": _ranking(source, indices)}
    write_atomic(out / INDEX, _page(events, scenes))
    return out / INDEX


def _ranking(source: EventSource, indices: list[int]) -> dict[str, Any]:
    """Errors of these events, in their order."""

    def errors(start: int, stop: int) -> Any:
        parts = [source.errors(index, index + 1) for index in indices[start:stop]]
        if not parts or parts[0] is None:
            return None
        known = [part for part in parts if part is not None]
        return {
            name: {by: [value for part in known for value in part[name][by]] for by in columns}
            for name, columns in known[0].items()
        }

    return Ranking(errors, len(indices)).complete()


def _page(events: dict[str, Any], scenes: list[str]) -> str:
    page, style, script = (read_page(name).decode() for name in (INDEX, "display.css", "display.js"))
    # Text of a script element ends at the next </script, wherever that is.
    listed = _json(events).replace("<", "\\u003c")
    script = script.replace("</script", "<\\/script")
    embedded = f'<script type="application/json" id="events">{listed}</script>\n' + "\n".join(scenes)
    page = page.replace(_STYLE, f"<style>{style}</style>")
    return page.replace(_SCRIPT, f"{embedded}\n<script>{script}</script>")


def _packed(scene: dict[str, Any]) -> str:
    return base64.b64encode(gzip.compress(_json(scene).encode(), mtime=0)).decode()


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
