"""Events of a dataset or an EDM4hep file, and what every reconstruction makes of them, one event at a time and on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import pydantic

from ringflow.base.errors import DatasetError, InputFileError, UsageError
from ringflow.base.provenance import describe_input
from ringflow.data.candidates import CandidateFile
from ringflow.data.edm4hep import open_edm4hep
from ringflow.data.manifest import Manifest
from ringflow.data.read import Dataset, has_truth, read_shard
from ringflow.display.scene import MEASURED, TITLES, TRUTH, errors_of, event_scene, outline
from ringflow.evaluate.momenta import checked, visible
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.infer.reconstructions import Reconstruct, available, missing_reasons, open_model, open_reconstruction
from ringflow.infer.runtime import ROW
from ringflow.infer.shipped import model_file

#: The order of the views: the first three are shown.
_ORDER = (TRUTH, "model", "baseline", "candidate", "perfect")
#: Edges of a layer that are shown at most: more are one grey area.
MOST_EDGES = 3000

_Count = pydantic.NonNegativeInt


class _LinkPart(pydantic.BaseModel):
    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class _Link(_LinkPart):
    reconstruction: str
    candidate: _Count
    elements: tuple[tuple[_Count, float], ...]


class _Layer(_LinkPart):
    layer: _Count
    edges: tuple[tuple[_Count, _Count, float], ...]


class _Model(_LinkPart):
    file: str
    sha256: str


class EventLinks(_LinkPart):
    """What a file says about one event."""

    index: _Count
    event_number: int
    links: tuple[_Link, ...]
    graph: tuple[_Layer, ...] = ()

    def in_scene(self) -> dict[str, Any]:
        """As a scene has them; of every layer the strongest edges, the strongest first."""
        found = self.model_dump(mode="json", include={"links", "graph"})
        for layer in found["graph"]:
            layer["edges"] = sorted(layer["edges"], key=lambda edge: -edge[2])[:MOST_EDGES]
        return found

    def require(self, path: Path, candidates: Mapping[str, int], elements: int) -> None:
        """Refuse what points to nothing: `candidates` says how many every reconstruction made."""
        event = f"event {self.event_number}"
        for link in self.links:
            if link.reconstruction not in candidates:
                raise InputFileError(f"{path} is about {link.reconstruction!r:.60}, which is not shown; give --model")
            if link.candidate >= (there := candidates[link.reconstruction]):
                raise InputFileError(
                    f"{path} has candidate {link.candidate} of {event}, but {link.reconstruction!r} makes {there} "
                    "(counted from 0); show the same source and --model that `ringflow explain` was given"
                )
        named = [element for link in self.links for element, _ in link.elements]
        named += [element for layer in self.graph for edge in layer.edges for element in edge[:2]]
        if max(named, default=-1) >= elements:
            raise InputFileError(
                f"{path} has element {max(named)} of {event}, which has {elements} (counted from 0); "
                "make it anew of what is shown"
            )


class LinkFile(_LinkPart):
    """All of a file of `ringflow explain --links`.

        {"source": "data/ttbar", "model": {"file": "clic.safetensors", "sha256": ...}, "events": [
            {"index": 3, "event_number": 3,
             "links": [{"reconstruction": "model", "candidate": 0, "elements": [[137, 0.43], [12, -0.05]]}, ...],
             "graph": [{"layer": 0, "edges": [[5, 9, 0.31], ...]}, ...]}, ...]}

    Elements count the tracks of an event first, then its clusters (or hits, as the network takes them).
    """

    source: str
    model: _Model
    events: tuple[EventLinks, ...]

    @classmethod
    def read(cls, path: Path) -> LinkFile:
        """Read a file; whatever else it holds is not looked at."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise InputFileError(f"cannot read {path}: {error.strerror}; give a file of `ringflow explain`") from None
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            reason = f"{place}: {first['msg']}" if place else first["msg"]
            raise InputFileError(f"{path} is not a file of `ringflow explain --links`: {reason}") from None

    def notes(self, path: Path, shown: Path, model: Path) -> tuple[str, ...]:
        """What people should know if it was made of something else, or by another network."""
        notes = []
        if self.model.sha256 != describe_input(model)["sha256"]:
            notes.append(f"{path} was made with another model ({self.model.file}) than {model}; lines may be wrong")
        made_of = Path(self.source)
        same = made_of.resolve() == shown.resolve() if made_of.exists() else made_of.name == shown.name
        if not same:
            notes.append(f"{path} was made of {self.source}, not of {shown}; lines may be wrong")
        return tuple(notes)


class Edm4hepEvents(Dataset):
    """What a dataset offers, without a dataset on disk; a single event is read without those before it."""

    def __init__(self, path: Path, profile: str | None) -> None:
        self.path = path
        self.file = open_edm4hep(path, profile)
        # Of a dataset it has what follows, and nothing that a file of one must have.
        self.manifest = Manifest.model_construct(
            detector=self.file.profile.detector, sample=path.stem, columns=self.file.columns, shards=(), provenance={}
        )

    def __len__(self) -> int:
        return self.file.num_events

    def events(self, split: str | None = None, columns: Sequence[str] | None = None) -> Iterator[EventBlock]:
        """All events in order, with all their columns."""
        return self.file.events()


class ReconstructedEvents:
    """A source of events, see `source.py`. Safe to be asked by several threads; they wait for each other."""

    def __init__(
        self,
        dataset: Dataset,
        candidates: Sequence[Path] = (),
        model: Path | None = None,
        events: int | None = None,
        links: Path | None = None,
        constants: str | None = None,
    ) -> None:
        self.dataset = dataset
        self.num_events = len(dataset) if events is None else min(events, len(dataset))
        field = dataset.file.profile.field if isinstance(dataset, Edm4hepEvents) else None
        self._outline = outline(dataset.manifest.detector, field, dataset.manifest.provenance.get("geometry"))
        self._has_truth = has_truth(dataset)
        self._lock, self._kept = Lock(), self._read(0)
        network = None if model is None else model_file(model)
        reasons = missing_reasons(dataset, network, constants)
        if model is not None and "model" in reasons:
            raise DatasetError(f"{model} cannot reconstruct {dataset.path}: {reasons['model']}")
        self._makers = self._possible(network, constants, _candidate_files(dataset, candidates), reasons)
        self.notes = tuple(f"no {TITLES[name].lower()}: {why}" for name, why in reasons.items() if name in _ORDER[:3])
        self._link_path, self._links = links, dict[int, EventLinks]()
        if links is not None:
            file = LinkFile.read(links)
            self.notes += file.notes(links, dataset.path, model_file(model))
            self._calorimeter = open_model(network, dataset.manifest.detector).kinds[1]
            self._links = self._by_place(file, links)
        self.explained = tuple(sorted(place for place in self._links if place < self.num_events))

    @property
    def about(self) -> dict[str, Any]:
        """What all scenes have in common."""
        manifest = self.dataset.manifest
        return {
            "source": self.dataset.path.name,
            "sample": manifest.sample,
            "detector": manifest.detector,
            "truth": self._has_truth,
            "reconstructions": [{"name": name, "title": TITLES.get(name, name)} for name in self._makers],
        }

    def scene(self, index: int) -> dict[str, Any]:
        """The scene of an event."""
        with self._lock:
            event = self._event(index)
            made = {name: make(event) for name, make in self._makers.items()}
            about = {"index": index, **{key: self.about[key] for key in ("source", "sample", "detector")}}
            explained: dict[str, Any] = {}
            if self._link_path is not None and (found := self._links.get(index)) is not None:
                elements = sum(len(event[kind]) for kind in ("track", self._calorimeter) if kind in event)
                found.require(self._link_path, {name: len(part) for name, part in made.items()}, elements)
                explained = {**found.in_scene(), "calorimeter": self._calorimeter}
            return event_scene(event, made, self._outline, about=about, **explained)

    def errors(self, index: int) -> dict[str, dict[str, float | None]]:
        """How wrong every reconstruction of an event is, without what the scene takes; nothing where there is no truth."""
        if not self._has_truth:
            return {}
        with self._lock:
            event = self._event(index)
            return {
                name: errors_of(checked(make(event), event.event_number, name), visible(event))
                for name, make in self._makers.items()
                if name != TRUTH
            }

    def _by_place(self, file: LinkFile, path: Path) -> dict[int, EventLinks]:
        """Explained events by their place; the number decides, since those of a split are counted within it."""
        if isinstance(self.dataset, Edm4hepEvents):
            places = [event.index for event in file.events if event.index < len(self.dataset)]
            known = {int(self._event(place).event_number[0]): place for place in places}
        else:
            numbers = (number for block in self.dataset.events(columns=[]) for number in block.event_number.tolist())
            known = {number: place for place, number in enumerate(numbers)}
        for event in file.events:
            if event.event_number not in known:
                raise InputFileError(
                    f"{path} has event {event.event_number}, which {self.dataset.path} lacks; "
                    "make it anew of what is shown"
                )
        return {known[event.event_number]: event for event in file.events}

    def _possible(
        self, model: Path | None, constants: str | None, files: dict[str, CandidateFile], reasons: dict[str, str]
    ) -> dict[str, Reconstruct]:
        """Reconstructions by name; files stand right behind the truth, because they were asked for.

        What cannot be made of the first event is left out, and why is added to `reasons`: outside data may lack a column.
        """
        own: dict[str, Reconstruct] = {}
        for name in (name for name in _ORDER if name in available(self.dataset, model, constants)):
            make = open_reconstruction(name, self.dataset.manifest.detector, model, constants)
            try:
                make(self._event(0))
                own[name] = make
            except (KeyError, DatasetError) as error:
                missing = f"{name} needs the column {error}, which {self.dataset.path} lacks"
                reasons[name] = missing if isinstance(error, KeyError) else str(error)
        truth = {TRUTH: own.pop(TRUTH)} if TRUTH in own else {}
        given = {name: partial(_candidates, file) for name, file in files.items()}
        for make in given.values():
            make(self._event(0))  # a file of other events is refused at once
        return {**truth, **given, **own} or {MEASURED: _no_candidates}

    def _event(self, index: int) -> EventBlock:
        """One event; the block that holds it is kept."""
        first, block = self._kept
        if not 0 <= index - first < len(block):
            first, block = self._kept = self._read(index)
        return block.take(index - first, index - first + 1)

    def _read(self, index: int) -> tuple[int, EventBlock]:
        if isinstance(self.dataset, Edm4hepEvents):
            return index, next(self.dataset.file.events(index, index + 1))
        first = 0
        for shard in self.dataset.manifest.shards:
            if index >= first + shard.num_events:
                first += shard.num_events
                continue
            for block in read_shard(self.dataset.path, shard, self.dataset.columns):
                if index < first + len(block):
                    return first, block
                first += len(block)
        raise UsageError(f"no event {index} in {self.dataset.path}; its {len(self.dataset)} events count from 0")


def _no_candidates(block: EventBlock) -> Collection:
    return cast("candidate", 0 * block.event_number, {name: np.zeros(0) for name in ROW})


def _candidates(file: CandidateFile, block: EventBlock) -> Collection:
    return file.select(block.event_number)


def _candidate_files(dataset: Dataset, paths: Sequence[Path]) -> dict[str, CandidateFile]:
    files: dict[str, CandidateFile] = {}
    for path in paths:
        file = CandidateFile(path)
        if not isinstance(dataset, Edm4hepEvents):
            file.require(dataset)
        elif file.record["manifest_sha256"] or file.record["sample"] != dataset.manifest.sample:
            raise InputFileError(f"{path} was made of {file.record['sample']!r}, not of {dataset.path}; make it again")
        taken = {*_ORDER, *files}
        name = path.stem if file.reconstruction in taken else file.reconstruction
        if name in taken:
            raise UsageError(f"there are two reconstructions called {name!r}; rename {path}")
        files[name] = file
    return files
