"""Events of a dataset or a file, and what every reconstruction makes of them, one event at a time and on demand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ringflow.base.errors import DatasetError, InputFileError, UsageError
from ringflow.data.candidates import CandidateFile
from ringflow.data.read import Dataset, has_truth, read_shard
from ringflow.display.edm4hep import Edm4hepEvents
from ringflow.display.errors import errors_by_event
from ringflow.display.links import EventLinks, LinkFile
from ringflow.display.outline import outline
from ringflow.display.ranking import Errors
from ringflow.display.reconstruction import MEASURED, TITLES, TRUTH, Made
from ringflow.display.scene import event_scene
from ringflow.evaluate.momenta import checked, visible
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.infer.reconstructions import (
    Reconstruct,
    available,
    missing_reasons,
    open_model,
    open_reconstruction,
)
from ringflow.infer.runtime import ROW
from ringflow.infer.shipped import model_file

#: The order of the views: the first three are shown.
_ORDER = (TRUTH, "model", "baseline", "candidate", "perfect")


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
        field = dataset.field if isinstance(dataset, Edm4hepEvents) else None
        self._outline = outline(dataset.manifest.detector, field)
        self._files = _candidate_files(dataset, candidates)
        self._makers = _makers(dataset, model, self._files)
        self._has_truth = has_truth(dataset)
        self._lock = Lock()
        self._kept: tuple[int, EventBlock] | None = None
        reasons = missing_reasons(dataset, None if model is None else model_file(model))
        if model is not None and "model" in reasons:
            raise DatasetError(f"{model} cannot reconstruct {dataset.path}: {reasons['model']}")
        reasons |= self._leave_out_impossible()
        self.notes = tuple(f"no {TITLES[name].lower()}: {why}" for name, why in reasons.items() if name in _ORDER[:3])
        self._link_path, self._links = links, self._read_links(links, model)
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
            made = [Made(name, self._make(name, event)) for name in self._makers]
            about = {"index": index, **{key: self.about[key] for key in ("source", "sample", "detector")}}
            extra = self._explained(index, event, made)
            return event_scene(event, 0, made, self._outline, about=about, **extra)

    def errors(self, start: int, stop: int) -> Errors | None:
        """How wrong every reconstruction is; the truth itself is left out."""
        if not self._has_truth:
            return None
        errors: Errors = {name: {"jet": [], "energy": []} for name in self._makers if name != TRUTH}
        with self._lock:
            while start < stop:
                first, block = self._block(start)
                part = block.take(start - first, min(stop - first, len(block)))
                true = visible(part)
                for name, columns in errors.items():
                    jet, energy = errors_by_event(checked(self._make(name, part), part.event_number, name), true)
                    columns["jet"] += jet.tolist()
                    columns["energy"] += energy.tolist()
                start += len(part)
        return errors

    def _read_links(self, path: Path | None, model: Path | None) -> dict[int, EventLinks]:
        if path is None:
            return {}
        file = LinkFile.read(path)
        self.notes += file.notes(path, self.dataset.path, model_file(model))
        self._calorimeter = open_model(None if model is None else model_file(model)).kinds[1]
        return file.by_place(path, self.dataset)

    def _explained(self, index: int, event: EventBlock, made: Sequence[Made]) -> dict[str, Any]:
        """What a scene has of the file of explanations, if that knows the event and points to what there is."""
        if self._link_path is None or (found := self._links.get(index)) is None:
            return {}
        elements = sum(len(event[kind]) for kind in ("track", self._calorimeter) if kind in event)
        found.require(self._link_path, {one.name: len(one.candidates) for one in made}, elements)
        return {"links": found.scene_links(), "graph": found.scene_graph(), "calorimeter": self._calorimeter}

    def _leave_out_impossible(self) -> dict[str, str]:
        """Drop reconstructions that cannot be made of the first event, and say why: outside data may lack a column."""
        first, block = self._block(0)
        reasons = {}
        for name in list(self._makers):
            try:
                self._make(name, block.take(first, first + 1))
            except DatasetError as error:
                if isinstance(self._makers[name], CandidateFile):
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
        if self._kept is not None and 0 <= index - self._kept[0] < len(self._kept[1]):
            return self._kept
        if isinstance(self.dataset, Edm4hepEvents):
            self._kept = index, next(self.dataset.file.events(index, index + 1))
            return self._kept
        first = 0
        for shard in self.dataset.manifest.shards:
            if index >= first + shard.num_events:
                first += shard.num_events
                continue
            for block in read_shard(self.dataset.path, shard, self.dataset.columns):
                if index < first + len(block):
                    self._kept = first, block
                    return self._kept
                first += len(block)
        raise UsageError(f"no event {index} in {self.dataset.path}; its {len(self.dataset)} events count from 0")


def _no_candidates(block: EventBlock) -> Collection:
    return cast("candidate", 0 * block.event_number, {name: np.zeros(0) for name in ROW})


def _candidate_files(dataset: Dataset, paths: Sequence[Path]) -> dict[str, CandidateFile]:
    files: dict[str, CandidateFile] = {}
    for path in paths:
        file = CandidateFile(path)
        if isinstance(dataset, Edm4hepEvents):
            if file.record["manifest_sha256"] or file.record["sample"] != dataset.manifest.sample:
                raise InputFileError(
                    f"{path} was made of {file.record['sample']!r}, not of {dataset.path}; make it again"
                )
        else:
            file.require(dataset)
        name = file.reconstruction if file.reconstruction not in {*_ORDER, *files} else path.stem
        if name in {*_ORDER, *files}:
            raise UsageError(f"there are two reconstructions called {name!r}; rename {path}")
        files[name] = file
    return files


def _makers(
    dataset: Dataset, model: Path | None, files: dict[str, CandidateFile]
) -> dict[str, Reconstruct | CandidateFile]:
    """Reconstructions by name; files stand right behind the truth, because they were asked for."""
    path = None if model is None else model_file(model)
    possible = available(dataset, path)
    names = [name for name in _ORDER if name in possible]
    own = {name: open_reconstruction(name, dataset.manifest.detector, path) for name in names}
    truth = {TRUTH: own.pop(TRUTH)} if TRUTH in own else {}
    return {**truth, **files, **own}
