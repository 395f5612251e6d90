"""Trace: from any file we make back along what was recorded, to settings, code, data and seeds.

    node = trace(Path("particles.parquet"), "17:3")
    [step.name for step in walk(node)]

Every step is found by a hash and verified where the file is at hand; what was not recorded is said to be so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError, UsageError
from ringflow.data.manifest import MANIFEST_FILE, read_manifest
from ringflow.infer import shipped
from ringflow.provenance import particles
from ringflow.provenance.datasets import Datasets
from ringflow.provenance.headers import json_file
from ringflow.provenance.models import Models
from ringflow.provenance.node import Node
from ringflow.provenance.particles import Asked
from ringflow.provenance.places import Places, sha256_of
from ringflow.train.runs import RUN_FILE

STUDY_FILE, ORIGIN_FILE, TRIALS = "study.toml", "origin.json", "trials"
REPORT_FILE = "metrics.json"
_MARKS = {MANIFEST_FILE: "dataset", STUDY_FILE: "study", RUN_FILE: "run", REPORT_FILE: "report"}
_NOT_OURS = "give a file or folder that ringflow made: candidates, model, run, dataset, shard, report or study"


def trace(path: Path, particle: str | None = None, *, search: Sequence[Path] = (), thorough: bool = False) -> Node:
    """What a file or folder came from; `search` are further folders to look through for what it was made of."""
    if not path.exists():
        raise InputFileError(f"nothing at {path}; {_NOT_OURS}")
    asked = particles.parse(particle) if particle is not None else None
    home = path.absolute().parent
    places = Places([*search, home, Path.cwd(), shipped.MODEL.parent])
    return _Trace(places, thorough).of(path, asked)


def kind_of(folder: Path) -> str | None:
    """What a folder of ours is; None for any other."""
    return next((kind for mark, kind in _MARKS.items() if (folder / mark).is_file()), None)


class _Trace:
    def __init__(self, places: Places, thorough: bool) -> None:
        self._datasets = Datasets(places, thorough=thorough)
        self._models = Models(places, self._datasets)

    def of(self, path: Path, asked: Asked | None) -> Node:
        """The node of a path, or of a particle in it."""
        folder = path if path.is_dir() else path.parent
        if path.suffix == ".parquet" and kind_of(folder) == "dataset" and _is_shard(folder, path.name):
            return self._dataset(folder, asked, path.name)
        if path.is_file() and path.suffix in (".parquet", ".root"):
            return self._candidates(path, asked)
        if path.is_file() and path.suffix in (".onnx", ".safetensors"):
            return self._without_particles(self._models.at(path), asked)
        match kind_of(folder):
            case "dataset":
                return self._dataset(folder, asked, None)
            case "run":
                return self._without_particles(self._run(folder), asked)
            case "study":
                return self._without_particles(self._study(folder), asked)
            case "report":
                return self._without_particles(self._report(folder), asked)
        raise InputFileError(f"{path} is not known; {_NOT_OURS}")

    def _without_particles(self, node: Node, asked: Asked | None) -> Node:
        if asked is not None:
            raise UsageError(f"a {node.kind} holds no particles; leave --particle out, or give a file of candidates")
        return node

    def _dataset(self, folder: Path, asked: Asked | None, file: str | None) -> Node:
        if asked is None:
            return self._datasets.shard(folder, file=file) if file else self._datasets.at(folder)
        shard = self._datasets.shard(folder, event=asked.event)
        if asked.index is None:
            node = Node("event", f"event {asked.event}", "given", {"event": asked.event})
        else:
            node = Node("particle", _title(asked), "given", particles.of_dataset(folder, asked))
        node.came_from("part of", shard)
        return node

    def _candidates(self, path: Path, asked: Asked | None) -> Node:
        record = _root_record(path) if path.suffix == ".root" else _parquet_record(path)
        node = Node("candidates", path.name, "given", path=path, sha256=sha256_of(path))
        if record is None:
            node.note = "it was written when files said nothing of their origin; reconstruct again to have it"
            node.came_from("reconstructed with", Node("model", "model", "not recorded"))
            node.came_from("reconstructed from", Node("dataset", "dataset", "not recorded"))
        else:
            self._reconstructed(node, record, asked)
        return node if asked is None else self._particle(node, path, asked)

    def _reconstructed(self, node: Node, record: dict[str, Any], asked: Asked | None) -> None:
        made = dict(record.get("provenance") or {})
        model, card, given = made.pop("model", None), made.pop("card", None), made.pop("input", None)
        node.facts = _picked(record, "reconstruction", "sample", "detector") | made
        if model is not None:
            node.came_from("reconstructed with", self._models.recorded(model, card))
        else:
            node.came_from("reconstructed with", Node("model", "model", "not recorded"))
        if given is not None:
            node.came_from("reconstructed from", self._datasets.input_file(given))
            return
        event = asked.event if asked else None
        dataset = self._datasets.recorded(record, event=event)
        if event is not None and dataset.path is not None:
            dataset = self._datasets.shard(dataset.path, event=event)
        node.came_from("reconstructed from", dataset)

    def _particle(self, file: Node, path: Path, asked: Asked) -> Node:
        found = particles.of_root(path, asked) if path.suffix == ".root" else particles.of_candidates(path, asked)
        node = Node("event" if asked.index is None else "particle", _title(asked), "given", found)
        shard = next((source.node for source in file.sources if source.node.kind == "shard"), None)
        if asked.index is not None and shard is not None and shard.path is not None and shard.path.is_file():
            truth = particles.truth_of(shard.path.parent, asked.event, found)
            node.facts["truth"] = truth or "no true particle has its energy at this element"
        node.came_from("part of", file)
        return node

    def _run(self, folder: Path) -> Node:
        node = self._models.run_at(folder)
        study = folder.absolute().parent.parent
        if folder.absolute().parent.name == TRIALS and (study / STUDY_FILE).is_file():
            node.came_from("trial of", self._study(study))
        return node

    def _study(self, folder: Path) -> Node:
        origin = json_file(folder / ORIGIN_FILE)
        facts = _picked(origin, "ringflow", "code", "warm_start")
        facts["trials"] = len(list((folder / TRIALS).glob("[0-9]*/"))) if (folder / TRIALS).is_dir() else 0
        node = Node("study", folder.absolute().name, "given", facts, folder, sha256_of(folder / STUDY_FILE))
        data = origin.get("data")
        for told in data if isinstance(data, list) else ():
            if ":" in str(told):
                node.came_from("trained on", Node("generator", str(told), "recorded", note="simulated while training"))
            else:
                node.came_from("trained on", self._datasets.recorded({"manifest_sha256": told}))
        return node

    def _report(self, folder: Path) -> Node:
        found = json_file(folder / REPORT_FILE)
        made = found.get("provenance") or {}
        facts = _picked(made, "ringflow", "code", "python", "packages", "settings")
        node = Node("report", folder.absolute().name, "given", facts, folder, sha256_of(folder / REPORT_FILE))
        for name, sample in (found.get("samples") or {}).items():
            told = _picked(sample, "dataset", "detector", "events", "manifest_sha256")
            node.came_from("evaluated on", self._datasets.recorded({"sample": name, **told}))
        for described in made.get("inputs") or ():
            if described.get("file", "").endswith((".safetensors", ".onnx")):
                node.came_from("evaluated", self._models.recorded(described, None))
            elif described.get("file") != MANIFEST_FILE:
                node.came_from("evaluated", self._datasets.input_file(described))
        return node


def _picked(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: record[name] for name in names if name in record}


def _title(asked: Asked) -> str:
    return f"event {asked.event}" if asked.index is None else f"particle {asked.index} of event {asked.event}"


def _is_shard(folder: Path, name: str) -> bool:
    return any(shard.file == name for shard in read_manifest(folder).shards)


def _parquet_record(path: Path) -> dict[str, Any]:
    from ringflow.data.candidates import CandidateFile

    return CandidateFile(path).record


def _root_record(path: Path) -> dict[str, Any] | None:
    from ringflow.data.edm4hep.write import read_record

    return read_record(path)
