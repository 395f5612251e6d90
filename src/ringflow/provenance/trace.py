"""Trace: from any file we make back along what was recorded, to settings, code, data and seeds.

    node = trace(Path("particles.parquet"), "17:3")
    [step.name for step in walk(node)]

Every step is found by a hash and verified where the file is at hand; what was not recorded is said to be so. The answer is a
graph: every node is a thing that was made, and points to what it was made of. States say how far a thing was verified, so that
nothing has to be believed:

    agrees         the file is at hand, and its sha256 is the recorded one
    size agrees    the file is at hand with the recorded size; its sha256 was not computed
    changed        there is a file where one was recorded, but another one
    missing        what was recorded is not at hand
    recorded       known by what another file says of it; it is not a file that could be verified
    not recorded   the file that should say so does not
    given          the file that was asked about, or a part of it

Files record names and hashes of what they were made of, not folders, which are different on every machine. So some folders are
looked through, to a depth and a number of files that keep it to a second or two. Nothing outside of them is opened because a
file names it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ringflow.base.errors import InputFileError, RingflowError, UsageError
from ringflow.base.log import say
from ringflow.base.provenance import describe_input
from ringflow.base.rundir import METRICS_FILE, ORIGIN_FILE, SETTINGS_FILE, STUDY_FILE, TRIALS_FOLDER
from ringflow.base.words import flat
from ringflow.data.candidates import CandidateFile
from ringflow.data.manifest import (
    MANIFEST_FILE,
    Manifest,
    Shard,
    inside,
    manifest_hash,
    read_json,
    read_manifest,
    reason_of,
)
from ringflow.data.read import read_shard, select_columns
from ringflow.data.write import file_hash
from ringflow.event.block import Collection
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.infer import shipped
from ringflow.infer.runtime import Description
from ringflow.infer.shipped import MODEL_FILE
from ringflow.models.settings import MODEL_KEY
from ringflow.train.runs import RUN_FILE

# The graph

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
    "generator": ("kind", "sample", "simulated", "detector", "seed", "event", "block", "block_seed", "pythia8mc"),
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
    if node.kind == "run" and isinstance(node.facts.get("settings"), Mapping):
        settings = dict(flat(node.facts["settings"]))
        picked = ", ".join(f"{name}={settings[name]}" for name in _SHOWN_SETTINGS if settings.get(name) is not None)
        say(f"{indent}    settings: {picked} (all: --json)")
    for made_how, source in node.sources:
        show(source, f"{indent}  ", f"{made_how}: ", told)


def _words(name: str, value: Any) -> str:
    if name == "code" and isinstance(value, Mapping):
        return f"commit {value.get('commit')}" + (", changed since" if value.get("dirty") else "")
    if name == "packages" and isinstance(value, Mapping):
        value = {package: value[package] for package in _SHOWN_PACKAGES if package in value}
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words('', inner)}" for key, inner in value.items() if inner is not None)
    if isinstance(value, list):
        return "; ".join(_words("code", inner) for inner in value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)


# Files, and what they say of themselves, read without torch

DEEPEST, MOST_FILES = 5, 50_000
#: Folders in which nothing lies that something was made of.
_SKIPPED = frozenset({"packed", "checkpoints", "tensorboard", "cache", "node_modules", "__pycache__"})


class SearchedFolders:
    """Folders to look through, once, when something is looked for."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(dict.fromkeys(folder.absolute() for folder in folders if folder.is_dir()))

    def holds(self, path: Path) -> bool:
        """Whether a path, which somebody wrote into a file, is in one of the folders."""
        return any(path.resolve().is_relative_to(folder.resolve()) for folder in self._folders)

    def dataset(self, sha256: str) -> Path | None:
        """The dataset with this manifest."""
        manifests = sorted(path for path in self._sizes if path.name == MANIFEST_FILE)
        return next((path.parent for path in manifests if sha256_of(path) == sha256), None)

    def file(self, sha256: str, *, size: int | None, name: str) -> Path | None:
        """The file with this hash; only files of the right size are read, or of the right name where it is not known."""
        sizes = self._sizes.items()
        possible = (path for path, found in sizes if (path.name == name if size is None else found == size))
        return next((path for path in possible if sha256_of(path) == sha256), None)

    def ending(self, suffix: str) -> list[Path]:
        """All files with this ending."""
        return sorted(path for path in self._sizes if path.suffix == suffix)

    @cached_property
    def _sizes(self) -> dict[Path, int]:
        """Files and their sizes, those near the top first; hidden ones and links are left out."""
        found: dict[Path, int] = {}
        waiting = [(folder, 0) for folder in self._folders]
        for folder, depth in waiting:  # grows meanwhile
            with suppress(OSError):  # gone, or not ours to read
                for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                    if entry.name.startswith(".") or entry.is_symlink():
                        continue
                    if entry.is_file():
                        found[Path(entry.path)] = entry.stat().st_size
                    elif depth < DEEPEST and entry.is_dir() and entry.name not in _SKIPPED:
                        waiting.append((Path(entry.path), depth + 1))
            if len(found) >= MOST_FILES:
                break
        return found


def sha256_of(path: Path) -> str | None:
    """The hash of a file; None if it cannot be read."""
    try:
        return str(describe_input(path)["sha256"])
    except InputFileError:
        return None


def model_header(path: Path) -> dict[str, Any]:
    """Settings, threshold and card of a model file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            found = json.loads((file.metadata() or {}).get(MODEL_KEY, "null"))
    except (SafetensorError, OSError, ValueError) as error:
        raise InputFileError(
            f"{path} cannot be read as a model file ({reason_of(error)}); copy or train it again"
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("card"), dict):
        raise InputFileError(f"{path} holds weights without a description; give a file that `ringflow train` wrote")
    return found


def weights(path: Path) -> dict[str, Any]:
    """The tensors of a model file by name, as numpy arrays."""
    from safetensors.numpy import load_file

    return dict(sorted(load_file(path).items()))


def weights_hash(path: Path) -> str:
    """Fingerprint of the weights of a model file, as exported files have it."""
    digest = hashlib.sha256()
    for name, value in weights(path).items():
        digest.update(name.encode() + value.tobytes())
    return digest.hexdigest()


def onnx_header(path: Path) -> Description:
    """What an exported file says of itself."""
    from ringflow.launch.frameworks import framework

    onnx = framework("onnx", "onnx")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own, and whatever a broken file makes onnx raise
        raise InputFileError(f"{path} cannot be read as an ONNX file ({reason_of(error)}); export it again") from None
    return Description.read({entry.key: entry.value for entry in proto.metadata_props}, path)


def json_file(path: Path) -> dict[str, Any]:
    """A JSON object in a file."""
    return read_json(inside(path.parent, path.name), InputFileError, "put a copy of it back")


@contextmanager
def records_of(path: Path) -> Iterator[None]:
    """One line for records, and records of records, that are not as ringflow writes them."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputFileError(
            f"{path} has a record that is not as ringflow writes it ({reason_of(error)}); put a copy of it back"
        ) from None


# The way back

_MARKS: dict[str, Kind] = {MANIFEST_FILE: "dataset", STUDY_FILE: "study", RUN_FILE: "run", METRICS_FILE: "report"}
_NOT_OURS = "give a file or folder that ringflow made: candidates, model, run, dataset, shard, report or study"
_NETWORKS = (".onnx", ".safetensors")
#: Before names of samples that are simulated while training.
_SIMULATED = "sim:"
#: What may be different when a training goes on, or leaves no trace in a network.
_FREE, _FREE_OF_SOURCE = ("length", "compute", "profile"), ("workers", "lanes")
#: What records tell that is a fact of the thing, as it is.
_MADE = ("ringflow", "code", "python", "platform", "packages", "seeds")
_OF_DATASET = (*_MADE, "settings", "geometry_sha256", "source")
_OF_RUN = (*_MADE, "machine", "earlier")
_OF_PARTICLE = ("pdg", "charge", "px", "py", "pz", "energy", "track", "cluster", "hit")
#: Our columns of a reconstructed particle, and the members of EDM4hep.
_IN_ROOT = {
    "energy": "energy",
    "px": "momentum.x",
    "py": "momentum.y",
    "pz": "momentum.z",
    "pdg": "PDG",
    "charge": "charge",
}


def trace(path: Path, particle: str | None = None, *, search: Sequence[Path] = (), thorough: bool = False) -> Node:
    """What a file or folder came from; `search` are further folders to look through for what it was made of."""
    if not path.exists():
        raise InputFileError(f"nothing at {path}; {_NOT_OURS}")
    asked = AskedParticle.parse(particle) if particle is not None else None
    places = SearchedFolders([*search, path.absolute().parent, Path.cwd(), shipped.MODEL.parent])
    with records_of(path):
        return _Trace(places, thorough).of(path, asked)


def kind_of(folder: Path) -> Kind | None:
    """What a folder of ours is; None for any other."""
    return next((kind for mark, kind in _MARKS.items() if (folder / mark).is_file()), None)


class AskedParticle(NamedTuple):
    """An event, or one of its particles."""

    event: int
    place: int | None

    @classmethod
    def parse(cls, text: str) -> AskedParticle:
        """`EVENT` or `EVENT:INDEX`."""
        event, colon, place = text.partition(":")
        try:
            asked = cls(int(event), int(place) if colon else None)
        except ValueError:
            raise UsageError(f"--particle {text} cannot be read; write EVENT or EVENT:INDEX, as in 17:3") from None
        if min(asked.event, asked.place or 0) < 0:
            raise UsageError(f"--particle {text} is negative; events and particles count from 0")
        if max(asked.event, asked.place or 0) >= 2**63:
            raise UsageError(f"--particle {text} is more than a file counts; give one that is there")
        return asked

    def node(self, facts: dict[str, Any], part: Collection, path: Path) -> Node:
        """What a file says of it; `facts` are those of an event."""
        event, place = self
        if place is None:
            return Node("event", f"event {event}", "given", {"event": event, **facts})
        if place >= len(part):
            held = f"has {len(part)}, 0 to {len(part) - 1}" if len(part) else "has none"
            raise UsageError(f"event {event} of {path} has no particle {place}; it {held}")
        told = {"event": event, "index": place, **_row(part, place)}
        return Node("particle", f"particle {place} of event {event}", "given", told)


class _Trace:
    """Makes nodes; a dataset is looked at once."""

    def __init__(self, places: SearchedFolders, thorough: bool) -> None:
        self._places, self._thorough = places, thorough
        self._datasets: dict[tuple[Path, int | None], Node] = {}
        self._missed: list[Node] = []

    def of(self, path: Path, asked: AskedParticle | None) -> Node:
        """The node of a path, or of a particle in it."""
        folder = path if path.is_dir() else path.parent
        kind, is_file = kind_of(folder), path.is_file()
        if kind == "dataset" and path.suffix == ".parquet" and _find_shard(read_manifest(folder), file=path.name):
            return self._in_dataset(folder, asked, path.name)
        if is_file and path.suffix in (".parquet", ".root"):
            return self._candidates(path, asked)
        is_network = is_file and path.suffix in _NETWORKS
        if kind == "dataset" and not is_network:
            return self._in_dataset(folder, asked, None)
        make = {"run": self._trial_or_run, "study": self._study, "report": self._report}.get(kind or "")
        if not is_network and make is None:
            raise InputFileError(f"{path} is not known; {_NOT_OURS}")
        node = self._model(path) if is_network or make is None else make(folder)
        if asked is not None:
            raise UsageError(f"a {node.kind} holds no particles; leave --particle out, or give a file of candidates")
        return node

    # Candidates and particles

    def _candidates(self, path: Path, asked: AskedParticle | None) -> Node:
        in_root, event = path.suffix == ".root", asked.event if asked else None
        record = _root_record(path) if in_root else CandidateFile(path).record
        node = Node("candidates", path.name, "given", path=path, sha256=sha256_of(path))
        model, source = _unknown("model"), _unknown("dataset")
        if record is None:
            node.note = "it was written when files said nothing of their origin; reconstruct again to have it"
        else:
            made = dict(record.get("provenance") or {})
            described, card, given = (made.pop(name, None) for name in ("model", "card", "input"))
            node.facts = _picked(record, "reconstruction", "sample", "detector") | made
            model = self._recorded_file(described, card) if described else model
            source = self._recorded_file(given) if given else self._recorded_dataset(record, event=event)
            if event is not None and source.kind == "dataset" and source.path is not None:
                source = self._shard(source.path, event=event)
        node.sources += [("reconstructed with", model), ("reconstructed from", source)]
        if asked is None:
            return node
        held = _root_particles(path, asked) if in_root else CandidateFile(path).select(np.array([asked.event]))
        particle = asked.node({"particles": len(held)}, held, path)
        if particle.kind == "particle" and source.kind == "shard" and source.path and source.path.is_file():
            truth = _truth_of(source.path.parent, asked.event, particle.facts)
            particle.facts["truth"] = truth or "no true particle has its energy at this element"
        particle.sources.append(("part of", node))
        return particle

    def _in_dataset(self, folder: Path, asked: AskedParticle | None, file: str | None) -> Node:
        if asked is None:
            return self._shard(folder, file=file) if file else self._dataset(folder)
        shard = self._shard(folder, event=asked.event)
        particles = None if asked.place is None else _event(folder, asked.event, "particle")
        if particles is None and asked.place is not None:
            raise UsageError(f"{folder} has no true particles; give --particle {asked.event} without an index")
        node = asked.node({}, particles or Collection(np.zeros(1, np.int64), {}), folder)
        node.sources.append(("part of", shard))
        return node

    # Datasets: their shards, and who made their events with which seed

    def _recorded_dataset(
        self, described: Mapping[str, Any], at: Sequence[Path] = (), event: int | None = None
    ) -> Node:
        """The dataset that a file says it was made of; `at` are folders where it was."""
        name = str(described.get("dataset") or described.get("sample") or "dataset")
        sha256 = str(described.get("manifest_sha256") or "")
        told = next((path for path in at if not self._places.holds(path)), None)
        there = [path for path in at if self._places.holds(path) and (path / MANIFEST_FILE).is_file()]
        if not sha256:
            note = "which version of it is not recorded" + (f"; one lies at {there[0]} now" if there else "")
            return Node("dataset", name, "not recorded", dict(described), note=note)
        here = next((path for path in there if manifest_hash(path) == sha256), None)
        seen = next((folder for (folder, _), node in self._datasets.items() if node.sha256 == sha256), None)
        if found := here or seen or self._places.dataset(sha256):
            node = self._dataset(found, event)
            node.state = "changed" if node.state == "changed" else "agrees"
            for missed in self._missed:  # what was missed before may be found on another way
                if missed.sha256 == sha256:
                    vars(missed).update(vars(node))
            return node
        note = "not at hand" if told is None else f"not at hand; it was in {told}: give that with --search"
        known = next((missed.note for missed in self._missed if missed.sha256 == sha256), note)
        node = Node("dataset", name, "missing", dict(described), sha256=sha256, note=known)
        if there:
            node.state, node.note = "changed", f"{there[0]} has another manifest now"
        self._missed.append(node)
        return node

    def _dataset(self, folder: Path, event: int | None = None) -> Node:
        """The dataset in a folder, with the generator of all its events, or of one."""
        key = (folder.absolute(), event)
        if key in self._datasets:
            return self._datasets[key]
        manifest, record = read_manifest(folder), read_manifest(folder).provenance
        facts = {
            "sample": manifest.sample,
            "detector": manifest.detector,
            "events": manifest.num_events,
            "shards": len(manifest.shards),
            "bytes": manifest.bytes,
            "schema_version": manifest.schema_version,
            **_picked(record, *_OF_DATASET),
        }
        state, note = self._verified(folder, manifest)
        node = Node("dataset", key[0].name, state, facts, folder, manifest_hash(folder), note)
        generator = record.get("generator")
        inputs = [*record.get("inputs", ()), *record.get("files", ())]
        if isinstance(generator, Mapping):
            told = {**generator, **_seeds(manifest, event)}
            made = Node("generator", str(generator.get("sample") or generator.get("kind")), "recorded", told)
            node.sources.append(("generated by", made))
        elif not inputs:
            node.sources.append(("generated by", _unknown("generator", "the maker did not say")))
        node.sources += [("read from", self._recorded_file(one, at=folder.parent)) for one in inputs]
        self._datasets[key] = node
        return node

    def _verified(self, folder: Path, manifest: Manifest) -> tuple[State, str]:
        """Compare the shards with the manifest: all sizes, or all hashes if that was asked for."""

        def is_whole(path: Path, shard: Shard) -> bool:
            same_size = path.is_file() and path.stat().st_size == shard.bytes
            return same_size and (not self._thorough or file_hash(path) == shard.sha256)

        wrong = [shard.file for shard in manifest.shards if not is_whole(folder / shard.file, shard)]
        if wrong:
            more = f" and {len(wrong) - 1} more are" if len(wrong) > 1 else " is"
            return "changed", f"{wrong[0]}{more} not as in the manifest"
        if self._thorough:
            return "agrees", "the sha256 of every shard as well"
        return "size agrees", "of every shard; --thorough computes sha256"

    def _shard(self, folder: Path, *, event: int | None = None, file: str | None = None) -> Node:
        """The shard that holds an event, or that has a name; its hash is verified."""
        manifest = read_manifest(folder)
        shard = _find_shard(manifest, event=event, file=file)
        if shard is None:
            first, last = manifest.shards[0].first_event, manifest.shards[-1].last_event
            raise UsageError(f"{folder} has no event {event}; its events are {first} to {last}")
        path = folder / shard.file
        facts = {"first_event": shard.first_event, "last_event": shard.last_event, "events": shard.num_events}
        node = Node("shard", shard.file, "agrees", facts, path, shard.sha256)
        if not path.is_file():
            node.state, node.note = "missing", f"{path} is gone"
        elif file_hash(path) != shard.sha256:
            node.state, node.note = "changed", "its sha256 is not the one in the manifest"
        node.sources.append(("part of", self._dataset(folder, event)))
        return node

    # Networks: the file they were exported from, the run that trained them, its settings, code and data

    def _recorded_file(
        self, described: Mapping[str, Any], card: Mapping[str, Any] | None = None, at: Path | None = None
    ) -> Node:
        """A file that something was made of; `at` is the folder where it was.

        A network that is not at hand is known by its card, if that was kept.
        """
        name, sha256 = Path(str(described.get("file") or described.get("name"))).name, str(described.get("sha256", ""))
        size = described.get("bytes")
        found = self._places.file(sha256, size=size, name=name)
        if name.endswith(_NETWORKS):
            if found is not None:
                return self._model(found, "agrees")
            node = Node("model", name, "missing", dict(described), sha256=sha256, note="not at hand")
            self._trained(node, card, None)
            return node
        node = Node("file", name, "agrees", {} if size is None else {"bytes": size}, found, sha256 or None)
        if found is None:
            node.state, node.note = "missing", "not at hand"
            if at is not None and (at / name).is_file():
                node.state, node.note = "changed", f"{at / name} is another file now"
        return node

    def _model(self, path: Path, state: State = "given") -> Node:
        """The network in a file."""
        node = Node("model", path.name, state, path=path, sha256=sha256_of(path))
        if path.suffix == ".onnx":
            told = onnx_header(path)
            names = ("precision", "threshold", "detector", "ringflow", "weights_sha256")
            node.facts = {"format": "ONNX"} | {name: getattr(told, name) for name in names}
            node.sources.append(("exported from", self._with_weights(told.weights_sha256, told.card)))
            return node
        header = model_header(path)
        card = header["card"]
        node.facts = {name: header.get("settings", {}).get(name) for name in ("backbone", "calorimeter")}
        node.facts |= {"threshold": header.get("threshold")}
        node.facts |= _picked(card, "detector", "parameters", "training", "pruned", "metrics")
        if "pruned_from" in card:
            node.sources.append(("pruned from", self._recorded_file(card["pruned_from"], card)))
        elif "adapted" in card:
            node.sources.append(("adapted from", self._recorded_file(card["adapted"]["model"], card)))
        else:
            self._trained(node, card, path.parent)
        return node

    def _with_weights(self, sha256: str, card: Mapping[str, Any]) -> Node:
        """The model file with these weights; only those with the same card are read."""
        for path in self._places.ending(".safetensors"):
            try:
                if model_header(path)["card"] == card and weights_hash(path) == sha256:
                    return self._model(path, "agrees")
            except RingflowError:
                continue  # weights of others
        node = Node("model", MODEL_FILE, "missing", {"weights_sha256": sha256}, note="not at hand")
        self._trained(node, card, None)
        return node

    def _trained(self, node: Node, card: Mapping[str, Any] | None, folder: Path | None) -> None:
        """Add the run: the folder beside the model if it has the settings that are in the model, else what the model says."""
        settings = (card or {}).get("settings")
        if card is None or not isinstance(settings, Mapping):
            node.sources.append(("trained by", _unknown("run", "the model says nothing of its training")))
            return
        if folder is not None and (folder / RUN_FILE).is_file():
            run = self._run(folder, card)
            if _same_training(run.facts.get("settings"), settings):
                run.state, run.note = "agrees", "the settings in the folder are those in the model"
                node.sources.append(("trained by", run))
                return
            node.note = f"{folder / RUN_FILE} is of another training"
        facts = _picked(card.get("provenance") or {}, *_OF_RUN)
        facts |= {"settings": dict(settings), "training": card.get("training")}
        run = Node("run", "run", "recorded", facts, note="known by what the model says; its folder is not at hand")
        self._fed(run, card.get("data"), settings)
        node.sources.append(("trained by", run))

    def _run(self, folder: Path, card: Mapping[str, Any] | None = None) -> Node:
        """The run in a folder; what the run itself does not record, its network does."""
        record = json_file(folder / RUN_FILE)
        if card is None and (folder / MODEL_FILE).is_file():
            card = model_header(folder / MODEL_FILE)["card"]
        facts = _picked(record, *_OF_RUN) | {"settings": record.get("settings")}
        if card is not None:
            facts["training"] = card.get("training")
        node = Node("run", folder.absolute().name, "given", facts, folder, sha256_of(folder / RUN_FILE))
        if not (folder / SETTINGS_FILE).is_file():
            node.note = f"its {SETTINGS_FILE} is gone"
        data = record.get("data") or (card or {}).get("data")
        self._fed(node, data, record.get("settings") or {}, record.get("inputs") or ())
        return node

    def _fed(self, run: Node, data: Any, settings: Mapping[str, Any], inputs: Sequence[Any] = ()) -> None:
        """Add what a run was fed with, and what it started from."""
        named = str(settings.get("data", ""))
        folders = [Path(name.strip()) for name in named.split(",") if name.strip()]
        folders = [] if named.startswith(_SIMULATED) else folders
        for number, entry in enumerate(data if isinstance(data, list) else [{"dataset": at.name} for at in folders]):
            if "simulated" in entry:
                source = _simulated(entry["simulated"], entry)
            else:
                source = self._recorded_dataset(entry, folders[number : number + 1])
            run.sources.append(("trained on", source))
        if start := settings.get("start"):
            name = Path(start).name
            known = next((entry for entry in inputs if entry.get("file") == name), None)
            unknown = Node("model", name, "not recorded", note="which version of it is not recorded")
            run.sources.append(("started from", self._recorded_file(known) if known else unknown))

    # Studies and reports

    def _trial_or_run(self, folder: Path) -> Node:
        node, trials = self._run(folder), folder.absolute().parent
        if trials.name == TRIALS_FOLDER and (trials.parent / STUDY_FILE).is_file():
            node.sources.append(("trial of", self._study(trials.parent)))
        return node

    def _study(self, folder: Path) -> Node:
        origin = json_file(folder / ORIGIN_FILE)
        facts = _picked(origin, "ringflow", "code", "warm_start")
        facts["trials"] = len(list((folder / TRIALS_FOLDER).glob("[0-9]*/")))
        node = Node("study", folder.absolute().name, "given", facts, folder, sha256_of(folder / STUDY_FILE))
        data = origin.get("data")
        for told in data if isinstance(data, list) else ():
            is_simulated = ":" in str(told)
            made = _simulated(told, {}) if is_simulated else self._recorded_dataset({"manifest_sha256": told})
            node.sources.append(("trained on", made))
        return node

    def _report(self, folder: Path) -> Node:
        found = json_file(folder / METRICS_FILE)
        made = found.get("provenance") or {}
        facts = _picked(made, "ringflow", "code", "python", "packages", "settings")
        node = Node("report", folder.absolute().name, "given", facts, folder, sha256_of(folder / METRICS_FILE))
        for name, sample in (found.get("samples") or {}).items():
            told = _picked(sample, "dataset", "detector", "events", "manifest_sha256")
            node.sources.append(("evaluated on", self._recorded_dataset({"sample": name, **told})))
        for described in made.get("inputs") or ():
            if described.get("file") != MANIFEST_FILE:
                node.sources.append(("evaluated", self._recorded_file(described)))
        return node


def _picked(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: record[name] for name in names if name in record}


def _unknown(kind: Kind, note: str = "") -> Node:
    return Node(kind, kind, "not recorded", note=note)


def _simulated(name: object, facts: Mapping[str, Any]) -> Node:
    return Node("generator", str(name), "recorded", dict(facts), note="simulated while training")


def _same_training(one: Any, other: Any) -> bool:
    """Whether two settings are those of one training."""

    def compared(settings: Mapping[str, Any]) -> dict[str, Any]:
        source = {name: value for name, value in settings.get("source", {}).items() if name not in _FREE_OF_SOURCE}
        return {**{name: value for name, value in settings.items() if name not in _FREE}, "source": source}

    return isinstance(one, Mapping) and isinstance(other, Mapping) and compared(one) == compared(other)


def _find_shard(manifest: Manifest, *, event: int | None = None, file: str | None = None) -> Shard | None:
    """The shard with a name, or the one that holds an event."""
    for shard in manifest.shards:
        if shard.file == file or (event is not None and shard.first_event <= event <= shard.last_event):
            return shard
    return None


def _seeds(manifest: Manifest, event: int | None) -> dict[str, Any]:
    """Which random numbers an event was made with: its collision by its number, the detector's by those of its block."""
    size = manifest.provenance.get("settings", {}).get("production", {}).get("block_events")
    seed = manifest.provenance.get("seeds", {}).get("generator")
    if event is None or not size or seed is None:
        return {}
    from ringflow.sim.generator import block_seed

    return {"event": event, "block": event // size, "block_seed": block_seed(seed, event // size)}


def _root_record(path: Path) -> dict[str, Any] | None:
    from ringflow.data.edm4hep.write import read_record

    return read_record(path)


def _root_particles(path: Path, asked: AskedParticle) -> Collection:
    """The reconstructed particles of an event in an EDM4hep file of ours."""
    from ringflow.data.edm4hep.convert import first_of
    from ringflow.data.edm4hep.podio import PodioBlock, PodioFile
    from ringflow.data.edm4hep.write import CANDIDATES, CLUSTERS, TRACKS

    file = PodioFile(path)
    header = file.read(range(file.num_events), "EventHeader.eventNumber")
    if header is None or asked.event not in header.values:
        raise UsageError(f"{path} has no event {asked.event}; it holds {file.num_events} events")
    row = int(np.argmax(header.values == asked.event))
    block = PodioBlock(file, range(row, row + 1), file.ids)
    particles = block.objects([CANDIDATES], "energy")
    assert particles is not None, "a file of ours has candidates"
    columns = particles.table(_IN_ROOT)
    for kind, name, member in (("track", TRACKS, "chi2"), ("cluster", CLUSTERS, "energy")):
        objects = block.objects([name], member)
        if objects is not None:
            columns[kind] = first_of(particles.relation(f"{kind}s"), objects, len(particles))
    return Collection(np.array([len(particles)]), columns)


def _truth_of(folder: Path, event: int, candidate: Mapping[str, Any]) -> dict[str, Any] | None:
    """The target of the element that a candidate was made from; None where the dataset does not say, or there is none."""
    targets = _event(folder, event, "target")
    kind = next((kind for kind in ("track", "cluster") if candidate.get(kind, -1) >= 0), None)
    if targets is None or kind is None or kind not in targets.columns:
        return None
    rows = np.flatnonzero(targets[kind] == candidate[kind])
    return _row(targets, int(rows[0])) if len(rows) else None


def _event(folder: Path, event: int, collection: str) -> Collection | None:
    """A collection of one event; None if the dataset has none, or the shard cannot be read."""
    manifest = read_manifest(folder)
    shard = _find_shard(manifest, event=event)
    if shard is None or collection not in manifest.columns:
        return None
    try:
        for block in read_shard(folder, shard, select_columns(manifest.columns, [collection])):
            for row in np.flatnonzero(block.event_number == event):
                return block.take(int(row), int(row) + 1)[collection]
    except RingflowError:
        pass  # a shard that is damaged is told where it is verified
    return None


def _row(part: Collection, index: int) -> dict[str, Any]:
    row = {name: values[index].item() for name, values in part.columns.items()}
    named = {"class": PARTICLE_CLASSES[int(row["label"])]} if "label" in row else {}
    return {**named, **_picked(row, *_OF_PARTICLE)}
