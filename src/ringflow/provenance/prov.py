"""A trace as W3C PROV, in the JSON form (https://www.w3.org/submissions/prov-json/): entities, activities, software agents.

Files are entities, runs and studies are activities, and every other making (a production, a reconstruction, an export, an
evaluation) is an activity between what was made and what it was made of. There are no times: files do not record them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from ringflow.provenance.node import Node, walk

PREFIX, NAMESPACE = "rf", "urn:x-ringflow:"
_ACTIVITIES = ("run", "study")
_MAKINGS = {
    "candidates": "reconstruction",
    "dataset": "production",
    "model": "conversion of a model",
    "report": "evaluation",
}
_PLAIN = re.compile(r"[^A-Za-z0-9_.-]")

Document = dict[str, dict[str, Any]]


def prov_document(node: Node) -> Document:
    """The document of everything a thing came from; what was not recorded is not in it."""
    document: Document = defaultdict(dict)
    document["prefix"] = {PREFIX: NAMESPACE}
    for step in walk(node):
        if step.state != "not recorded":
            _describe(document, step)
    for step in walk(node):
        if step.state != "not recorded":
            _relate(document, step)
    return dict(document)


def _describe(document: Document, step: Node) -> None:
    section = "activity" if step.kind in _ACTIVITIES else "entity"
    attributes: dict[str, Any] = {"prov:label": f"{step.kind} {step.name}", f"{PREFIX}:kind": step.kind}
    if section == "entity" and step.kind in ("dataset", "candidates", "shard"):
        attributes["prov:type"] = {"$": "prov:Collection", "type": "prov:QUALIFIED_NAME"}
    if step.sha256:
        attributes[f"{PREFIX}:sha256"] = step.sha256
    attributes |= {f"{PREFIX}:{_PLAIN.sub('_', name)}": value for name, value in _flat(step.facts)}
    document[section][_name(step.id)] = attributes
    if section == "activity":
        _associate(document, _name(step.id), step)


def _relate(document: Document, step: Node) -> None:
    made = f"{_name(step.id)}-made"
    for source in step.sources:
        other = source.node
        if other.state == "not recorded":
            continue
        here, there = _name(step.id), _name(other.id)
        if source.how == "part of":
            _add(document, "hadMember", {"prov:collection": there, "prov:entity": here})
        elif step.kind in _ACTIVITIES and other.kind in _ACTIVITIES:
            _add(document, "wasInformedBy", {"prov:informed": here, "prov:informant": there})
        elif step.kind in _ACTIVITIES:
            _add(document, "used", {"prov:activity": here, "prov:entity": there})
        elif other.kind in _ACTIVITIES:
            _add(document, "wasGeneratedBy", {"prov:entity": here, "prov:activity": there})
        else:
            if made not in document["activity"]:
                label = f"{_MAKINGS.get(step.kind, 'making')} of {step.name}"
                document["activity"][made] = {"prov:label": label}
                _add(document, "wasGeneratedBy", {"prov:entity": here, "prov:activity": made})
                _associate(document, made, step)
            _add(document, "used", {"prov:activity": made, "prov:entity": there})
            _add(document, "wasDerivedFrom", {"prov:generatedEntity": here, "prov:usedEntity": there})


def _associate(document: Document, activity: str, step: Node) -> None:
    """The version of the software that did it, as far as it is recorded."""
    version, code = step.facts.get("ringflow"), step.facts.get("code") or {}
    if version is None and not code:
        return
    commit = str(code.get("commit", ""))
    agent = f"{PREFIX}:software-{version or 'unknown'}" + (f"-{commit[:12]}" if commit else "")
    told: dict[str, Any] = {"prov:type": {"$": "prov:SoftwareAgent", "type": "prov:QUALIFIED_NAME"}}
    told["prov:label"] = f"ringflow {version or ''}".strip()
    told |= {f"{PREFIX}:{name}": value for name, value in (("commit", commit), ("changed", code.get("dirty"))) if value}
    document["agent"][agent] = told
    _add(document, "wasAssociatedWith", {"prov:activity": activity, "prov:agent": agent})


def _add(document: Document, relation: str, ends: dict[str, str]) -> None:
    if ends not in document[relation].values():
        document[relation][f"_:{relation}{len(document[relation])}"] = ends


def _name(identity: str) -> str:
    return f"{PREFIX}:{identity}"


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Nested facts as (dotted name, plain value)."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        if value:
            yield name, ", ".join(map(str, value))
    elif value is not None:
        yield name, value
