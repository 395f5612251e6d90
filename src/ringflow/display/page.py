"""The files of the page, as they were built from `web/display` by `npm run build`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringflow.base.errors import FailureError
from ringflow.display.source import EventSource

PAGE = Path(__file__).parent / "page"
#: What the page consists of, with its type.
FILES = {
    "index.html": "text/html; charset=utf-8",
    "display.js": "text/javascript; charset=utf-8",
    "display.css": "text/css; charset=utf-8",
}


def read_page(name: str) -> bytes:
    """One of the files."""
    try:
        return (PAGE / name).read_bytes()
    except OSError as error:
        raise FailureError(f"the page of the display is incomplete ({name}: {error.strerror}); install again") from None


def event_list(source: EventSource, start: int, *, indices: list[int] | None = None) -> dict[str, Any]:
    """What the page reads first: which events there are, `indices` if not all of them, and where to begin."""
    about: Mapping[str, Any] = source.about
    explained = [index for index in source.explained if indices is None or index in indices]
    return {**about, "count": source.num_events, "indices": indices, "start": start, "explained": explained}
