"""Candidates on their way into a file: whole parts in a folder beside it, from which an interrupted work goes on.

A part holds whole blocks, so that a work that was interrupted computes the same blocks, and so the same numbers, as one that
was not. Only a part that is complete has its name; what is killed while it writes loses that part and nothing else.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.log import say
from ringflow.base.rundir import prepare, write_atomic
from ringflow.data.candidates import CandidateFile, write_candidate_file
from ringflow.event.block import EventBlock

REQUEST_FILE = "request.json"


class Parts:
    """The parts of an output, with `num_events` events. Parts of another request than `request` are dropped."""

    def __init__(self, out: Path, request: Mapping[str, Any]) -> None:
        self._folder = out.with_name(f"{out.name}.parts")
        wanted = json.dumps(dict(request), indent=1, sort_keys=True, default=str) + "\n"
        asked_before = self._folder / REQUEST_FILE
        other = asked_before.is_file() and asked_before.read_text(encoding="utf-8") != wanted
        if other:
            say(f"{self._folder} is of another request: starting anew")
        prepare(self._folder, marks=(REQUEST_FILE,), overwrite=other)
        write_atomic(asked_before, wanted)
        # Names and counts only: there may be more parts than files that can be open.
        self._files = sorted(self._folder.glob("part-*.parquet"))
        self.num_events = sum(len(CandidateFile(path)) for path in self._files)

    def append(self, blocks: Sequence[EventBlock], record: Mapping[str, Any]) -> None:
        """Write one more part."""
        path = self._folder / f"part-{len(self._files):06d}.parquet"
        self.num_events += write_candidate_file(path, record, blocks)
        self._files.append(path)

    def blocks(self) -> Iterator[EventBlock]:
        """Everything so far, in order."""
        for path in self._files:
            yield from CandidateFile(path).blocks()

    def remove(self) -> None:
        """Drop the parts, when the output is there."""
        shutil.rmtree(self._folder)
