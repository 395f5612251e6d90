"""A trace for people: a tree of lines, the newest on top."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringflow.base.log import say
from ringflow.provenance.node import Node

_STATES = {"agrees": "sha256 agrees", "given": ""}
#: Facts on a line of their own, by kind, in this order; all others are in the JSON.
_SHOWN: dict[str, tuple[str, ...]] = {
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
_PACKAGES = ("torch", "numpy", "pythia8mc")


def show(node: Node) -> None:
    """Say what a thing came from."""
    _show(node, "", "", set())


def _show(node: Node, before: str, how: str, told: set[str]) -> None:
    state = _STATES.get(node.state, node.state)
    known = f" ({node.sha256[:12]})" if node.sha256 else ""
    again = node.id in told
    marks = ", ".join(filter(None, [state, node.note, "as above" if again else ""]))
    say(
        f"{before}{how + ': ' if how else ''}{f'{node.kind} {_named(node)}'.strip()}{known}"
        + (f"  [{marks}]" if marks else "")
    )
    if again:
        return
    told.add(node.id)
    inner = before + "  "
    for name in _SHOWN[node.kind]:
        if (value := node.facts.get(name)) not in (None, [], {}):
            say(f"{inner}  {name}: {_words(name, value)}")
    if node.kind == "run" and isinstance(settings := node.facts.get("settings"), Mapping):
        say(f"{inner}  settings: {_settings(settings)}")
    for source in node.sources:
        _show(source.node, inner, source.how, told)


def _named(node: Node) -> str:
    name = f"{node.name} ".removeprefix(f"{node.kind} ").strip()  # "particle 3 of event 17" says what it is
    return f"{name} at {node.path}" if node.path is not None and str(node.path) != name else name


def _words(name: str, value: Any) -> str:
    if name == "code" and isinstance(value, Mapping):
        return f"commit {value.get('commit')}" + (", changed since" if value.get("dirty") else "")
    if name == "packages" and isinstance(value, Mapping):
        value = {package: value[package] for package in _PACKAGES if package in value}
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words('', inner)}" for key, inner in value.items() if inner is not None)
    if isinstance(value, list):
        return "; ".join(_words("code" if isinstance(inner, Mapping) else "", inner) for inner in value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _settings(settings: Mapping[str, Any]) -> str:
    """The few that say most."""
    picked: dict[str, Any] = {name: settings.get(name) for name in ("data", "seed")}
    for section, field in (("model", "backbone"), ("model", "width"), ("model", "layers"), ("length", "events")):
        picked[f"{section}.{field}"] = (settings.get(section) or {}).get(field)
    return ", ".join(f"{name}={value}" for name, value in picked.items() if value is not None) + " (all: --json)"
