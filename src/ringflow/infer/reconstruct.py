"""Events in, candidates out, block by block: memory does not grow with the number of events.

Candidates wait in a folder beside their file, in parts, from which interrupted work goes on. A part holds whole blocks, so that
work that was interrupted computes the same blocks, and so the same numbers, as work that was not. Only a part that is complete
has its name; what is killed while it writes loses that part and nothing else.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from ringflow.base.errors import UsageError
from ringflow.base.log import Advance, say
from ringflow.base.rundir import MARK_FILE, prepared, write_atomic
from ringflow.data.candidates import CandidateFile, write_candidate_file
from ringflow.event.block import Collection, EventBlock

#: Events after which a part is complete: what a killed process has to do again.
EVENTS_PER_PART = 500
_REQUEST_FILE = "request.json"


def made_of(reconstruct: Callable[[EventBlock], Collection], blocks: Iterable[EventBlock]) -> Iterator[EventBlock]:
    """The candidates of blocks."""
    for block in blocks:
        yield EventBlock(block.event_number, {"candidate": reconstruct(block)})


def after(blocks: Iterable[EventBlock], done: int) -> Iterator[EventBlock]:
    """The blocks that follow the first `done` events."""
    for block in blocks:
        if done:
            done -= len(block)
            assert done >= 0, "parts hold whole blocks"
        else:
            yield block


class Parts:
    """The parts of an output, with `num_events` events, within `with`, where no other process has them.

    Parts of another request than `request`, or of none, are dropped.
    """

    def __init__(self, out: Path, request: Mapping[str, Any]) -> None:
        self._folder = parts_folder(out)
        self._wanted = json.dumps(dict(request), indent=1, sort_keys=True, default=str) + "\n"
        self._held = ExitStack()
        self._files: list[Path] = []
        self.num_events = 0

    def __enter__(self) -> Self:
        asked = self._folder / _REQUEST_FILE
        before = asked.read_text(encoding="utf-8") if asked.is_file() else None
        if before not in (None, self._wanted):
            say(f"{self._folder} is of another request: starting anew")
        self._held.enter_context(prepared(self._folder, marks=(_REQUEST_FILE,), overwrite=before != self._wanted))
        write_atomic(asked, self._wanted)
        # Names and counts only: there may be more parts than files that can be open.
        self._files = sorted(self._folder.glob("part-*.parquet"))
        self.num_events = sum(len(CandidateFile(path)) for path in self._files)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def keep(self, made: Iterable[EventBlock], record: Mapping[str, Any], advance: Advance) -> int:
        """Put blocks of candidates behind those that are there; how many events were new."""
        before = self.num_events
        waiting: list[EventBlock] = []
        advance(before)
        for block in made:
            waiting.append(block)
            if sum(map(len, waiting)) >= EVENTS_PER_PART:
                self._append(waiting, record)
                waiting = []
            advance(len(block))
        if waiting:
            self._append(waiting, record)
        return self.num_events - before

    def _append(self, blocks: Sequence[EventBlock], record: Mapping[str, Any]) -> None:
        path = self._folder / f"part-{len(self._files):06d}.parquet"
        self.num_events += write_candidate_file(path, record, blocks)
        self._files.append(path)

    def blocks(self) -> Iterator[EventBlock]:
        """Everything so far, in order."""
        for path in self._files:
            yield from CandidateFile(path).blocks()

    def remove(self) -> None:
        """Drop the parts, when the output is there."""
        _remove(self._folder)


def parts_folder(out: Path) -> Path:
    """Where the parts of an output wait."""
    return out.with_name(f"{out.name}.parts")


def drop(folder: Path) -> None:
    """Remove parts of an output that is there, unless another command is at work on them, or they are none of ours."""
    if folder.is_dir():
        with suppress(UsageError), prepared(folder, marks=(_REQUEST_FILE,)):
            _remove(folder)


def _remove(folder: Path) -> None:
    """The request first, without which some of the parts are not taken for all, and the mark last."""
    for path in (folder / _REQUEST_FILE, *folder.iterdir()):
        if path.name != MARK_FILE:
            path.unlink(missing_ok=True)
    shutil.rmtree(folder)
