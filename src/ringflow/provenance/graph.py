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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ringflow.base.log import say
from ringflow.base.words import flat

State = Literal["agrees", "size agrees", "changed", "missing", "recorded", "not recorded", "given"]
Kind = Literal[
    "particle", "event", "candidates", "model", "run", "study", "report", "dataset", "shard", "generator", "file"
]
#: Facts that people are shown, in this order; all others are in the JSON.
_SHOWN: dict[Kind, tuple[str, ...]] = {
    "particle": ("class", "pdg", "charge", "px", "py", "pz", "energy", "track", "cluster", "truth"),
    "event": ("particles",),
    "candidates": ("reconstruction", "engine", "threshold", "split", "events", "code"),
    "model": ("detector", "backbone", "format", "precision", "parameters", "pruned", "weights_sha256"),
    "run": ("training", "code", "earlier", "seeds", "machine", "packages"),
    "study": ("trials", "code", "warm_start"),
    "report": ("code", "settings"),
    "dataset": ("sample", "detector", "events", "shards", "code", "seeds", "packages"),
    "shard": ("first_event", "last_event"),
    "generator": ("kind", "sample", "simulated", "seed", "event", "block", "block_seed", "pythia8mc"),
    "file": ("bytes",),
}
_SHOWN_PACKAGES = ("torch", "numpy", "pythia8mc")
_SHOWN_SETTINGS = ("data", "seed", "model.backbone", "model.width", "model.layers", "length.events")


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
    #: What it was made of, and how: `reconstructed with`, `trained on`, `part of` ...
    sources: list[tuple[str, Node]] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The same thing has the same one, wherever it lies."""
        told = f"{self.name} {sorted(map(str, self.facts.items()))}"
        return f"{self.kind}-{(self.sha256 or hashlib.sha256(told.encode()).hexdigest())[:16]}"


def walk(node: Node) -> Iterator[Node]:
    """A node and all that it came from, each once."""
    seen: set[str] = set()
    waiting = [node]
    while waiting:
        found = waiting.pop(0)
        if found.id not in seen:
            seen.add(found.id)
            yield found
            waiting += [source for _, source in found.sources]


def to_json(node: Node) -> dict[str, Any]:
    """All steps, with what each came from by id."""
    steps = []
    for step in walk(node):
        told = {name: getattr(step, name) for name in ("id", "kind", "name", "state", "note", "sha256", "facts")}
        sources = [{"how": how, "id": source.id} for how, source in step.sources]
        steps.append({**told, "path": str(step.path) if step.path else None, "from": sources})
    return {"steps": steps, "changed": [step["id"] for step in steps if step["state"] == "changed"]}


def show(node: Node, indent: str = "", how: str = "", told: set[str] | None = None) -> None:
    """Say what a thing came from: a tree of lines, the newest on top."""
    told = set() if told is None else told
    again = node.id in told
    state = {"agrees": "sha256 agrees", "given": ""}.get(node.state, node.state)
    marks = ", ".join(filter(None, (state, node.note, "as above" if again else "")))
    name = f"{node.name} ".removeprefix(f"{node.kind} ").strip()  # "particle 3 of event 17" says what it is
    at = f"at {node.path}" if node.path is not None and str(node.path) != name else ""
    line = " ".join(filter(None, (node.kind, name, at, f"({node.sha256[:12]})" if node.sha256 else "")))
    say(f"{indent}{how}{line}{f'  [{marks}]' if marks else ''}")
    if again:
        return
    told.add(node.id)
    for name in _SHOWN[node.kind]:
        if (value := node.facts.get(name)) not in (None, [], {}):
            say(f"{indent}    {name}: {_words(name, value)}")
    if node.kind == "run" and node.facts.get("settings") is not None:
        settings = dict(flat(node.facts["settings"]))
        picked = ", ".join(f"{name}={settings[name]}" for name in _SHOWN_SETTINGS if settings.get(name) is not None)
        say(f"{indent}    settings: {picked} (all: --json)")
    for made_how, source in node.sources:
        show(source, f"{indent}  ", f"{made_how}: ", told)


def _words(name: str, value: Any) -> str:
    if name == "code" and isinstance(value, Mapping):
        return f"commit {value.get('commit')}" + (", changed since" if value.get("dirty") else "")
    if name == "packages":
        value = {package: value[package] for package in _SHOWN_PACKAGES if package in value}
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words('', inner)}" for key, inner in value.items() if inner is not None)
    if isinstance(value, list):
        return "; ".join(_words("code", inner) for inner in value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)
