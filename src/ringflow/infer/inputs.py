"""What can be reconstructed: a dataset, or a file of an experiment. Both give blocks of events and say where they come from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.provenance import describe_input
from ringflow.data.candidates import candidate_record
from ringflow.data.manifest import ROOT_SUFFIX, SPLITS, instead_of_dataset, is_generated
from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock


class EventInput(ABC):
    """Events to be reconstructed: the first of those that are there."""

    notes: tuple[str, ...] = ()  # what people should know
    detector: str

    def __init__(self, there: int, events: int | None) -> None:
        self.num_events = there if events is None else min(events, there)

    @property
    @abstractmethod
    def field(self) -> float:
        """Magnetic field of the detector in tesla."""

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What tells this input from others."""

    @abstractmethod
    def record(self, reconstruction: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
        """What a candidate file says of its origin."""

    @abstractmethod
    def _all(self, collections: Sequence[str]) -> Iterator[EventBlock]:
        """All that are there."""

    def blocks(self, collections: Sequence[str]) -> Iterator[EventBlock]:
        """The events in order, with at least these collections."""
        left = self.num_events
        for block in self._all(collections):
            yield block.take(0, min(len(block), left))
            left -= len(block)
            if left <= 0:
                return


def open_input(path: Path, split: str | None, events: int | None, profile: str | None) -> EventInput:
    """The first `events` events of (a split of) a dataset, or of a ROOT file that is read with a profile."""
    if path.is_dir():
        if profile is not None:
            raise UsageError(f"--profile {profile} is for ROOT files, {path} is a folder; leave it out")
        return _OfDataset(Dataset(path), split, events)
    require_file(path)
    if split is not None:
        raise UsageError(f"--split {split} is for datasets, {path} is a file; leave it out")
    return _OfFile(path, profile, events)


def require_file(path: Path) -> None:
    """Refuse what by its name is no EDM4hep file."""
    if is_generated(path):
        raise InputFileError(instead_of_dataset(path))
    if not path.exists():
        raise InputFileError(f"nothing at {path}; give the folder of a dataset or an EDM4hep ROOT file")
    if path.suffix != ROOT_SUFFIX:
        raise InputFileError(f"{path} is neither the folder of a dataset nor an EDM4hep file ({ROOT_SUFFIX}); give one")


class _OfDataset(EventInput):
    def __init__(self, dataset: Dataset, split: str | None, events: int | None) -> None:
        if split is not None and split not in SPLITS:
            raise UsageError(f"unknown split {split!r}; choose from {', '.join(SPLITS)}")
        shards = dataset.manifest.shards
        super().__init__(sum(shard.num_events if split is None else shard.splits[split] for shard in shards), events)
        if not self.num_events:
            raise UsageError(
                f"{dataset.path} has no events" + (f" in split {split!r}; choose another" if split else "")
            )
        self._dataset, self._split, self.detector = dataset, split, dataset.manifest.detector

    @property
    def field(self) -> float:
        """By the detector or profile that the dataset was made with, as it tells; else that of ours with the name."""
        from ringflow.sim.geometry import detector_names, load_detector

        told = self._dataset.manifest.provenance
        settings = told.get("settings")
        for place in (told.get("geometry"), settings.get("profile") if isinstance(settings, dict) else None, told):
            field = place.get("field") if isinstance(place, dict) else None
            if isinstance(field, int | float) and 0.0 < field < math.inf:
                return float(field)
        if self.detector in detector_names():
            return load_detector(self.detector).field
        raise InputFileError(
            f"{self._dataset.path} does not tell the magnetic field of its detector {self.detector!r}, without which an "
            "EDM4hep file has no tracks; write candidates (.parquet), or give write_dataset provenance={'field': 3.5} (tesla)"
        )

    @property
    def identity(self) -> dict[str, Any]:
        return {"record": self.record("", {}), "split": self._split, "events": self.num_events}

    def record(self, reconstruction: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
        return candidate_record(self._dataset, reconstruction, provenance)

    def _all(self, collections: Sequence[str]) -> Iterator[EventBlock]:
        return self._dataset.events(self._split, columns=list(collections))


class _OfFile(EventInput):
    def __init__(self, path: Path, profile: str | None, events: int | None) -> None:
        from ringflow.data.edm4hep import open_edm4hep

        self._path, self._file = path, open_edm4hep(path, profile)
        super().__init__(self._file.num_events, events)
        self.notes, self.detector = self._file.notes, self._file.profile.detector

    @property
    def field(self) -> float:
        return self._file.profile.field

    @property
    def identity(self) -> dict[str, Any]:
        profile = self._file.profile.model_dump(mode="json")
        return {"input": describe_input(self._path), "profile": profile, "events": self.num_events}

    def record(self, reconstruction: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "manifest_sha256": "",
            "sample": self._path.stem,
            "detector": self.detector,
            "reconstruction": reconstruction,
            "provenance": {**provenance, "input": describe_input(self._path)},
        }

    def _all(self, collections: Sequence[str]) -> Iterator[EventBlock]:
        return self._file.events()
