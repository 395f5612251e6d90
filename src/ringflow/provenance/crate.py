"""A run or a dataset as an RO-Crate 1.1 (https://w3id.org/ro/crate/1.1): files with hashes, and the action that made them.

The action follows the profile Process Run Crate: the software is its instrument, datasets, networks and settings are its
objects, the files are its results. What is not recorded, such as times and persons, is not made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ringflow.base.rundir import SETTINGS_FILE
from ringflow.data.manifest import CARD_FILE, MANIFEST_FILE, read_manifest
from ringflow.provenance.node import Node, Source
from ringflow.provenance.places import sha256_of
from ringflow.train.runs import RUN_FILE

SPECIFICATION, PROFILE = "https://w3id.org/ro/crate/1.1", "https://w3id.org/ro/wfrun/process/0.5"
_CONTEXT = (f"{SPECIFICATION}/context", {"sha256": "https://schema.org/sha256"})
_LICENSES = "https://spdx.org/licenses/"
_FORMATS = {
    ".parquet": "application/vnd.apache.parquet",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".toml": "application/toml",
    ".md": "text/markdown",
    ".html": "text/html",
    ".safetensors": "application/octet-stream",
}
_ABOUT = {
    SETTINGS_FILE: "resolved settings",
    RUN_FILE: "code, versions, seeds and data of the run",
    "history.jsonl": "figures of the training and of every validation",
    "model.safetensors": "the best network, by its validation",
    "last.safetensors": "the newest network",
    "pruned.safetensors": "the network before it was trained again",
    MANIFEST_FILE: "what the dataset holds, with the hash of every shard, and where it came from",
    CARD_FILE: "card",
}

Entity = dict[str, Any]


def crate(node: Node, *, base: str = "", license: str | None = None) -> dict[str, Any]:
    """The metadata of a run or a dataset; `base` goes before the names of files that do not lie beside it."""
    assert node.path is not None, "runs and datasets lie in folders"
    files = list(_files(node, node.path, base))
    action = _action(node, files)
    software = _software(node)
    settings = list(_settings(node))
    used = [_used(source) for source in node.sources if source.node.state != "not recorded"]
    action["object"] = [_reference(entity) for entity in (*used, *settings)]
    action["instrument"] = _reference(software)
    root: Entity = {
        "@id": "./",
        "@type": "Dataset",
        "name": _title(node),
        "description": _description(node),
        "datePublished": f"{datetime.now(UTC):%Y-%m-%d}",
        "conformsTo": {"@id": PROFILE},
        "hasPart": [_reference(entity) for entity in files],
        "mentions": _reference(action),
    }
    profile = {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"}
    graph = [_descriptor(), root, profile, software, action, *files, *used, *settings]
    if license is not None:
        root["license"] = {"@id": _LICENSES + license}
        about = f"The licence {license} of the SPDX list"
        graph.append({"@id": _LICENSES + license, "@type": "CreativeWork", "name": license, "description": about})
    return {"@context": list(_CONTEXT), "@graph": graph}


def _descriptor() -> Entity:
    return {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": {"@id": SPECIFICATION},
    }


def _files(node: Node, folder: Path, base: str) -> Iterator[Entity]:
    """What lies in the folder and belongs to it. Hashes of shards are those of the manifest."""
    for name, about in _ABOUT.items():
        if (path := folder / name).is_file():
            yield _file(path, base, about, sha256_of(path))
    if node.kind == "dataset":
        for shard in read_manifest(folder).shards:
            about = f"events {shard.first_event} to {shard.last_event}"
            yield {**_file(folder / shard.file, base, about, shard.sha256), "contentSize": str(shard.bytes)}


def _file(path: Path, base: str, about: str, sha256: str | None) -> Entity:
    return {
        "@id": base + path.name,
        "@type": "File",
        "name": path.name,
        "description": about,
        "encodingFormat": _FORMATS.get(path.suffix, "application/octet-stream"),
        "contentSize": str(path.stat().st_size if path.is_file() else 0),
        **({"sha256": sha256} if sha256 else {}),
    }


def _action(node: Node, files: list[Entity]) -> Entity:
    what = "Training" if node.kind == "run" else "Production"
    return {
        "@id": f"#{node.id}",
        "@type": "CreateAction",
        "name": f"{what} of {node.name}",
        "description": _description(node),
        "result": [_reference(entity) for entity in files],
    }


def _software(node: Node) -> Entity:
    code = node.facts.get("code") or {}
    version = str(node.facts.get("ringflow") or "unknown")
    changed = ", source changed since" if code.get("dirty") else ""
    commit = f", commit {code['commit']}{changed}" if code.get("commit") else ""
    packages = node.facts.get("packages") or {}
    return {
        "@id": "#ringflow",
        "@type": "SoftwareApplication",
        "name": "ringflow",
        "softwareVersion": f"{version}{commit}",
        "softwareRequirements": [f"{name}=={package}" for name, package in packages.items()],
    }


def _used(source: Source) -> Entity:
    """What it was made of, which lies elsewhere."""
    other = source.node
    seed = {"identifier": f"seed {other.facts['seed']}"} if "seed" in other.facts else {}
    return {
        "@id": f"#{other.id}",
        "@type": "CreativeWork",
        "name": other.name,
        "description": f"{other.kind}: {source.how}" + (f"; {other.note}" if other.note else ""),
        **({"sha256": other.sha256} if other.sha256 else seed),
    }


def _settings(node: Node) -> Iterator[Entity]:
    def flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from flat(inner, f"{name}.{key}" if name else str(key))
        elif value is not None:
            yield name, value

    for name, value in flat(node.facts.get("settings") or {}, ""):
        text = value if isinstance(value, bool | int | float | str) else str(value)
        yield {"@id": f"#setting-{name}", "@type": "PropertyValue", "name": name, "value": text}


def _title(node: Node) -> str:
    if node.kind == "run":
        return f"Run {node.name}: a particle-flow network"
    return f"Dataset {node.name}: {node.facts['sample']} in the {node.facts['detector']} detector"


def _description(node: Node) -> str:
    if node.kind == "dataset":
        facts = node.facts
        return f"{facts['events']} events of {facts['sample']} in the {facts['detector']} detector, {facts['shards']} shards."
    settings, training = node.facts.get("settings") or {}, node.facts.get("training") or {}
    told = f"A network trained on {settings.get('data', 'data that are not recorded')}"
    return told + (f", {training['events']} events in {training['steps']} steps." if training.get("steps") else ".")


def _reference(entity: Entity) -> dict[str, str]:
    return {"@id": entity["@id"]}
