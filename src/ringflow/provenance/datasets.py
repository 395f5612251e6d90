"""The way back from a dataset: its shards, and who made its events with which seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.errors import UsageError
from ringflow.data.manifest import MANIFEST_FILE, Manifest, Shard, manifest_hash, read_manifest
from ringflow.data.write import file_hash
from ringflow.provenance.node import Node, State
from ringflow.provenance.places import Places

#: What a manifest tells that is a fact of the dataset, as it is.
_TOLD = ("ringflow", "code", "python", "platform", "packages", "settings", "seeds", "geometry_sha256", "source")


class Datasets:
    """Nodes of datasets, each made once."""

    def __init__(self, places: Places, *, thorough: bool = False) -> None:
        self._places, self._thorough = places, thorough
        self._known: dict[tuple[Path, int | None], Node] = {}
        self._missed: list[Node] = []

    def recorded(self, described: Mapping[str, Any], at: Sequence[Path] = (), event: int | None = None) -> Node:
        """The dataset that a file says it was made of; `at` are folders where it was."""
        name = str(described.get("dataset") or described.get("sample") or "dataset")
        sha256 = described.get("manifest_sha256")
        there = [path for path in at if (path / MANIFEST_FILE).is_file()]
        if not sha256:
            note = "which version of it is not recorded" + (f"; one lies at {there[0]} now" if there else "")
            return Node("dataset", name, "not recorded", dict(described), note=note)
        here = next((path for path in there if manifest_hash(path) == sha256), None)
        seen = next((folder for (folder, _), node in self._known.items() if node.sha256 == sha256), None)
        found = here or seen or self._places.dataset(sha256)
        if found is not None:
            node = self.at(found, event)
            node.state = "changed" if node.state == "changed" else "agrees"
            self._found(node)
            return node
        known = Node("dataset", name, "missing", dict(described), sha256=sha256, note="not at hand")
        if there:
            known.state, known.note = "changed", f"{there[0]} has another manifest now"
        self._missed.append(known)
        return known

    def _found(self, node: Node) -> None:
        """What was missed before may be found on another way."""
        for missed in self._missed:
            if missed.sha256 == node.sha256:
                vars(missed).update(vars(node))

    def at(self, folder: Path, event: int | None = None) -> Node:
        """The dataset in a folder, with the generator of all its events, or of one."""
        key = (folder.absolute(), event)
        if key not in self._known:
            manifest = read_manifest(folder)
            node = Node("dataset", folder.absolute().name, "given", _facts(manifest), folder, manifest_hash(folder))
            self._verify(node, folder, manifest)
            self._generated(node, folder, manifest, event)
            self._known[key] = node
        return self._known[key]

    def shard(self, folder: Path, *, event: int | None = None, file: str | None = None) -> Node:
        """The shard that holds an event, or that has a name; its hash is verified."""
        manifest = read_manifest(folder)
        shard = next((s for s in manifest.shards if s.file == file or (file is None and _holds(s, event))), None)
        if shard is None:
            last = manifest.shards[-1].last_event
            raise UsageError(
                f"{folder} has no event {event}; its events are {manifest.shards[0].first_event} to {last}"
            )
        path = folder / shard.file
        facts = {"first_event": shard.first_event, "last_event": shard.last_event, "events": shard.num_events}
        node = Node("shard", shard.file, "agrees", facts, path, shard.sha256)
        if not path.is_file():
            node.state, node.note = "missing", f"{path} is gone"
        elif file_hash(path) != shard.sha256:
            node.state, node.note = "changed", "its sha256 is not the one in the manifest"
        node.came_from("part of", self.at(folder, event))
        return node

    def _verify(self, node: Node, folder: Path, manifest: Manifest) -> None:
        """Compare the shards with the manifest: all sizes, or all hashes if that was asked for."""
        wrong = [shard.file for shard in manifest.shards if not self._is_whole(folder / shard.file, shard)]
        if wrong:
            node.state = "changed"
            more = f" and {len(wrong) - 1} more are" if len(wrong) > 1 else " is"
            node.note = f"{wrong[0]}{more} not as in the manifest"
        elif self._thorough:
            node.state, node.note = "agrees", "the sha256 of every shard as well"
        else:
            node.state, node.note = "size agrees", "of every shard; --thorough computes sha256"

    def _is_whole(self, path: Path, shard: Shard) -> bool:
        if not path.is_file() or path.stat().st_size != shard.bytes:
            return False
        return not self._thorough or file_hash(path) == shard.sha256

    def _generated(self, node: Node, folder: Path, manifest: Manifest, event: int | None) -> None:
        """Who made the events."""
        record = manifest.provenance
        generator = record.get("generator")
        inputs = [*record.get("inputs", ()), *record.get("files", ())]
        if isinstance(generator, Mapping):
            facts = {**generator, **_seeds(manifest, event)}
            made = Node("generator", str(generator.get("sample") or generator.get("kind")), "recorded", facts)
            node.came_from("generated by", made)
        elif not inputs:
            node.came_from("generated by", Node("generator", "generator", "not recorded", note="the maker did not say"))
        for described in inputs:
            node.came_from("read from", self.input_file(described, [folder.parent]))

    def input_file(self, described: Mapping[str, Any], at: Sequence[Path] = ()) -> Node:
        """A file that something was made of."""
        name, sha256 = str(described.get("file") or described.get("name")), str(described.get("sha256", ""))
        size = described.get("bytes")
        found = self._places.file(sha256, size=size, name=name)
        state: State = "agrees" if found else "missing"
        node = Node("file", name, state, {"bytes": size} if size is not None else {}, found, sha256 or None)
        node.note = "" if found else "not at hand"
        if not found and (other := next((path / name for path in at if (path / name).is_file()), None)):
            node.state, node.note = "changed", f"{other} is another file now"
        return node


def _holds(shard: Shard, event: int | None) -> bool:
    return event is not None and shard.first_event <= event <= shard.last_event


def _facts(manifest: Manifest) -> dict[str, Any]:
    told = {name: manifest.provenance[name] for name in _TOLD if name in manifest.provenance}
    return {
        "sample": manifest.sample,
        "detector": manifest.detector,
        "events": manifest.num_events,
        "shards": len(manifest.shards),
        "bytes": manifest.bytes,
        "schema_version": manifest.schema_version,
        **told,
    }


def _seeds(manifest: Manifest, event: int | None) -> dict[str, Any]:
    """Which random numbers an event was made with: its collision by its number, the detector's by those of its block."""
    settings = manifest.provenance.get("settings", {})
    size = settings.get("production", {}).get("block_events")
    seed = manifest.provenance.get("seeds", {}).get("generator")
    if event is None or not size or seed is None:
        return {}
    from ringflow.sim.generator import block_seed

    return {"event": event, "block": event // size, "block_seed": block_seed(seed, event // size)}
