"""The page, as it was built from `web/display` by `npm run build`, and the page with its events as files that need no server.

index.html       page, script and all events in one file; it loads nothing: open it, send it, put it anywhere
phoenix/0.json   every event in the format of Phoenix; not beside a page that was asked for as a single file
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ringflow.base.errors import FailureError
from ringflow.base.log import progress
from ringflow.base.rundir import prepared, write_atomic, write_errors
from ringflow.display.phoenix import phoenix_file
from ringflow.display.scene import MEASURES, TRUTH
from ringflow.display.source import EventSource

PAGE = Path(__file__).parent / "page"
#: What the page consists of, with its type.
FILES = {
    "index.html": "text/html; charset=utf-8",
    "display.js": "text/javascript; charset=utf-8",
    "display.css": "text/css; charset=utf-8",
}
PHOENIX = "phoenix"

#: Reconstruction -> measure (`jet`, `energy`) -> error of every event, in GeV.
Errors = dict[str, dict[str, list[float | None]]]


def read_page(name: str) -> bytes:
    """One of the files."""
    try:
        return (PAGE / name).read_bytes()
    except OSError as error:
        raise FailureError(f"the page of the display is incomplete ({name}: {error.strerror}); install again") from None


def event_list(source: EventSource, start: int, *, indices: list[int] | None = None) -> dict[str, Any]:
    """What the page reads first: which events there are, `indices` if not all of them, and where to begin."""
    explained = [index for index in source.explained if indices is None or index in indices]
    return {**source.about, "count": source.num_events, "indices": indices, "start": start, "explained": explained}


def add_errors(errors: Errors, event: Mapping[str, Mapping[str, float | None]]) -> None:
    """Add those of one more event."""
    for name, found in event.items():
        for by in MEASURES:
            errors.setdefault(name, {}).setdefault(by, []).append(found[by])


def as_json(value: object) -> str:
    """Short, and without what JSON has no word for."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def write_static(source: EventSource, indices: Sequence[int], out: Path) -> Path:
    """Write a page with some events into a folder, or into a file whose name ends with .html; the page's file."""
    alone = out.suffix == ".html"
    with write_errors(out), nullcontext(out.parent) if alone else prepared(out, marks=(PHOENIX,)) as folder:
        (folder if alone else folder / PHOENIX).mkdir(parents=True, exist_ok=True)
        return _write(source, indices, out if alone else folder / "index.html", None if alone else folder / PHOENIX)


def _write(source: EventSource, indices: Sequence[int], page: Path, phoenix: Path | None) -> Path:
    scenes: list[str] = []
    errors: Errors = {}
    with progress(len(indices), "drawing") as advance:
        for index in indices:
            scene = source.scene(index)
            if phoenix is not None:
                write_atomic(phoenix / f"{index}.json", as_json(phoenix_file([scene])))
            packed = base64.b64encode(gzip.compress(as_json(scene).encode(), mtime=0)).decode()
            scenes.append(f'<script type="text/plain" data-scene="{index}">{packed}</script>')
            if source.about["truth"]:  # what the page orders events by
                add_errors(
                    errors, {one["name"]: one["errors"] for one in scene["reconstructions"] if one["name"] != TRUTH}
                )
            advance(1)
    ranking = {"done": len(indices), "of": len(indices), "failure": "", "errors": errors}
    events = {
        **event_list(source, indices[0], indices=list(indices)),
        "phoenix": phoenix is not None,
        "ranking": ranking,
    }
    write_atomic(page, _page(events, scenes))
    return page


def _page(events: dict[str, Any], scenes: list[str]) -> str:
    page, script, style = (read_page(name).decode() for name in FILES)
    # Text of a script element ends at the next </script, wherever that is.
    listed = as_json(events).replace("<", "\\u003c")
    script = script.replace("</script", "<\\/script")
    embedded = f'<script type="application/json" id="events">{listed}</script>\n' + "\n".join(scenes)
    page = page.replace('<link rel="stylesheet" href="display.css">', f"<style>{style}</style>")
    return page.replace('<script src="display.js"></script>', f"{embedded}\n<script>{script}</script>")
