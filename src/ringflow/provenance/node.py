"""What a file came from, as a graph: every node is a thing that was made, and points to what it was made of.

States say how far a thing was verified, so that nothing has to be believed:

    agrees         the file is at hand, and its sha256 is the recorded one
    size agrees    the file is at hand with the recorded size; its sha256 was not computed
    changed        there is a file where one was recorded, but another one
    missing        what was recorded is not at hand
    recorded       known by what another file says of it; it is not a file that could be verified
    not recorded   the file that should say so does not
    given          the file that was asked about, or a part of it
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

State = Literal["agrees", "size agrees", "changed", "missing", "recorded", "not recorded", "given"]
Kind = Literal[
    "particle", "event", "candidates", "model", "run", "study", "report", "dataset", "shard", "generator", "file"
]


class Source(NamedTuple):
    """What something was made of, and how: `reconstructed with`, `trained on`, `part of` ..."""

    how: str
    node: Node


@dataclass
class Node:
    """A thing on the way back."""

    kind: Kind
    name: str
    state: State
    #: What is recorded of it, ready for JSON.
    facts: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    sha256: str | None = None
    #: What people should know about its state.
    note: str = ""
    sources: list[Source] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The same thing has the same one, wherever it lies."""
        known = (
            self.sha256 or hashlib.sha256(f"{self.name} {sorted(map(str, self.facts.items()))}".encode()).hexdigest()
        )
        return f"{self.kind}-{known[:16]}"

    def came_from(self, how: str, node: Node | None) -> None:
        """Add what it was made of, if there is something to add."""
        if node is not None:
            self.sources.append(Source(how, node))


def walk(node: Node) -> Iterator[Node]:
    """A node and all that it came from, each once."""
    seen: set[str] = set()
    waiting = [node]
    while waiting:
        found = waiting.pop(0)
        if found.id not in seen:
            seen.add(found.id)
            yield found
            waiting += [source.node for source in found.sources]


def to_json(node: Node) -> dict[str, Any]:
    """All steps, with what each came from by id."""
    steps = [
        {
            "id": step.id,
            "kind": step.kind,
            "name": step.name,
            "state": step.state,
            "note": step.note,
            "path": str(step.path) if step.path else None,
            "sha256": step.sha256,
            "facts": step.facts,
            "from": [{"how": source.how, "id": source.node.id} for source in step.sources],
        }
        for step in walk(node)
    ]
    return {"steps": steps, "changed": [step["id"] for step in steps if step["state"] == "changed"]}
