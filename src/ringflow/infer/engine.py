"""Events in, candidates out, block by block: memory does not grow with the number of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ringflow.base.log import Advance
from ringflow.event.block import EventBlock
from ringflow.infer.made import Reconstructor
from ringflow.infer.parts import Parts

#: Events after which a part is complete: what a killed process has to do again.
EVENTS_PER_PART = 500


def reconstruct_into(
    parts: Parts, session: Reconstructor, blocks: Iterable[EventBlock], record: Mapping[str, Any], advance: Advance
) -> int:
    """Reconstruct blocks into parts, those that are there already left out; how many events were new."""
    done, new = parts.num_events, 0
    waiting: list[EventBlock] = []
    for block in blocks:
        if done:
            done -= len(block)
            assert done >= 0, "parts hold whole blocks"
        else:
            waiting.append(EventBlock(block.event_number, {"candidate": session.reconstruct(block)}))
            new += len(block)
        if sum(map(len, waiting)) >= EVENTS_PER_PART:
            parts.append(waiting, record)
            waiting = []
        advance(len(block))
    if waiting:
        parts.append(waiting, record)
    return new
