"""Events of a dataset or an EDM4hep file, and what every reconstruction makes of them, one event at a time and on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ringflow.base.errors import DatasetError, InputFileError, UsageError
from ringflow.data.candidates import CandidateFile
from ringflow.data.edm4hep import open_edm4hep
from ringflow.data.manifest import make_manifest
from ringflow.data.read import Dataset, has_truth, read_shard
from ringflow.display.geometry import outline
from ringflow.display.links import EventLinks, LinkFile
from ringflow.display.scene import MEASURED, MEASURES, TITLES, TRUTH, errors_by_event, event_scene
from ringflow.display.source import Errors
from ringflow.evaluate.momenta import checked, visible
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.infer.reconstructions import Reconstruct, available, missing_reasons, open_model, open_reconstruction
from ringflow.infer.runtime import ROW
from ringflow.infer.shipped import model_file

#: The order of the views: the first three are shown.
_ORDER = (TRUTH, "model", "baseline", "candidate", "perfect")


class Edm4hepEvents(Dataset):
    """What a dataset offers, without a dataset on disk; a single event is read without those before it."""

    def __init__(self, path: Path, profile: str | None) -> None:
        self.path = path
        self.file = open_edm4hep(path, profile)
        self.manifest = make_manifest(
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
    ) -> None:
        self.dataset = dataset
        self.num_events = len(dataset) if events is None else min(events, len(dataset))
        field = dataset.file.profile.field if isinstance(dataset, Edm4hepEvents) else None
        self._outline = outline(dataset.manifest.detector, field)
        self._has_truth = has_truth(dataset)
        self._lock = Lock()
        self._kept: tuple[int, EventBlock] | None = None
        network = None if model is None else model_file(model)
        self._makers = _makers(dataset, network, _candidate_files(dataset, candidates))
        reasons = missing_reasons(dataset, network)
        if model is not None and "model" in reasons:
            raise DatasetError(f"{model} cannot reconstruct {dataset.path}: {reasons['model']}")
        reasons |= self._leave_out_impossible()
        self.notes = tuple(f"no {TITLES[name].lower()}: {why}" for name, why in reasons.items() if name in _ORDER[:3])
        self._link_path, self._links = links, dict[int, EventLinks]()
        if links is not None:
            file = LinkFile.read(links)
            self.notes += file.notes(links, dataset.path, model_file(model))
            self._calorimeter = open_model(network).kinds[1]
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
            first, block = self._block(index)
            event = block.take(index - first, index - first + 1)
            made = {name: self._make(name, event) for name in self._makers}
            about = {"index": index, **{key: self.about[key] for key in ("source", "sample", "detector")}}
            explained: dict[str, Any] = {}
            if self._link_path is not None and (found := self._links.get(index)) is not None:
                elements = sum(len(event[kind]) for kind in ("track", self._calorimeter) if kind in event)
                found.require(self._link_path, {name: len(part) for name, part in made.items()}, elements)
                explained = {**found.in_scene(), "calorimeter": self._calorimeter}
            return event_scene(event, made, self._outline, about=about, **explained)

    def errors(self, start: int, stop: int) -> Errors | None:
        """How wrong every reconstruction is; the truth itself is left out."""
        if not self._has_truth:
            return None
        errors: Errors = {name: {by: [] for by in MEASURES} for name in self._makers if name != TRUTH}
        with self._lock:
            while start < stop:
                first, block = self._block(start)
                part = block.take(start - first, min(stop - first, len(block)))
                true = visible(part)
                for name, columns in errors.items():
                    found = errors_by_event(checked(self._make(name, part), part.event_number, name), true)
                    for by, values in zip(MEASURES, found, strict=True):
                        columns[by] += values.tolist()
                start += len(part)
        return errors

    def _by_place(self, file: LinkFile, path: Path) -> dict[int, EventLinks]:
        """Explained events by their place; the number decides, since those of a split are counted within it."""
        if isinstance(self.dataset, Edm4hepEvents):
            places = [event.index for event in file.events if event.index < len(self.dataset)]
            known = {int(self._block(place)[1].event_number[0]): place for place in places}
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

    def _leave_out_impossible(self) -> dict[str, str]:
        """Drop reconstructions that cannot be made of the first event, and say why: outside data may lack a column."""
        event = self._block(0)[1].take(0, 1)
        reasons = {}
        for name, maker in list(self._makers.items()):
            try:
                self._make(name, event)
            except DatasetError as error:
                if isinstance(maker, CandidateFile):
                    raise  # it was asked for
                reasons[name] = str(error)
                del self._makers[name]
        if not self._makers:
            self._makers[MEASURED] = _no_candidates
        return reasons

    def _make(self, name: str, block: EventBlock) -> Collection:
        maker = self._makers[name]
        if isinstance(maker, CandidateFile):
            return maker.select(block.event_number)
        try:
            return maker(block)
        except KeyError as missing:  # outside data need not have every column
            raise DatasetError(f"{name} needs the column {missing}, which {self.dataset.path} lacks") from None

    def _block(self, index: int) -> tuple[int, EventBlock]:
        """A block that holds an event, and the index of its first one; the last block is kept."""
        if self._kept is None or not 0 <= index - self._kept[0] < len(self._kept[1]):
            self._kept = self._read(index)
        return self._kept

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


def _makers(
    dataset: Dataset, model: Path | None, files: dict[str, CandidateFile]
) -> dict[str, Reconstruct | CandidateFile]:
    """Reconstructions by name; files stand right behind the truth, because they were asked for."""
    possible = available(dataset, model)
    detector = dataset.manifest.detector
    own = {name: open_reconstruction(name, detector, model) for name in _ORDER if name in possible}
    truth = {TRUTH: own.pop(TRUTH)} if TRUTH in own else {}
    return {**truth, **files, **own}
