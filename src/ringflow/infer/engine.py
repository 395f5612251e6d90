"""Events in, candidates out, block by block: memory does not grow with the number of events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ringflow.base.log import Advance
from ringflow.event.block import EventBlock
from ringflow.infer.made import Reconstructor
from ringflow.infer.parts import Parts

#: Events after which a part is complete: what a killed process has to do again.
EVENTS_PER_PART = 500


def keep(parts: Parts, made: Iterable[EventBlock], record: Mapping[str, Any], advance: Advance) -> int:
    """Put blocks of candidates behind those that are in parts; how many events were new."""
    new = 0
    waiting: list[EventBlock] = []
    advance(parts.num_events)
    for block in made:
        waiting.append(block)
        new += len(block)
        if sum(map(len, waiting)) >= EVENTS_PER_PART:
            parts.append(waiting, record)
            waiting = []
        advance(len(block))
    if waiting:
        parts.append(waiting, record)
    return new


def made_of(session: Reconstructor, blocks: Iterable[EventBlock]) -> Iterator[EventBlock]:
    """The candidates of blocks."""
    for block in blocks:
        yield EventBlock(block.event_number, {"candidate": session.reconstruct(block)})


def after(blocks: Iterable[EventBlock], done: int) -> Iterator[EventBlock]:
    """The blocks that follow the first `done` events."""
    for block in blocks:
        if done:
            done -= len(block)
            assert done >= 0, "parts hold whole blocks"
        else:
            yield block
