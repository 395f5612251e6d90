"""What can be reconstructed: a dataset, or a file of an experiment. Both give blocks of events and say where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.provenance import describe_input
from ringflow.data.candidates import candidate_record
from ringflow.data.manifest import ROOT_SUFFIX, SPLITS, instead_of_dataset
from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock


class EventInput(Protocol):
    """Events to be reconstructed."""

    num_events: int
    notes: tuple[str, ...]  # what people should know

    @property
    def detector(self) -> str:
        """Detector that saw them."""

    @property
    def field(self) -> float:
        """Its magnetic field in tesla."""

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this input from others."""

    def blocks(self, collections: Sequence[str]) -> Iterator[EventBlock]:
        """The events in order, with at least these collections."""

    def record(self, reconstruction: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
        """What a candidate file says of its origin."""


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
    if ".hepmc" in path.name:
        raise InputFileError(instead_of_dataset(path))
    if not path.exists():
        raise InputFileError(f"nothing at {path}; give the folder of a dataset or an EDM4hep ROOT file")
    if path.suffix != ROOT_SUFFIX:
        raise InputFileError(f"{path} is neither the folder of a dataset nor an EDM4hep file ({ROOT_SUFFIX}); give one")


class _OfDataset:
    """Events of a dataset."""

    def __init__(self, dataset: Dataset, split: str | None, events: int | None) -> None:
        if split is not None and split not in SPLITS:
            raise UsageError(f"unknown split {split!r}; choose from {', '.join(SPLITS)}")
        self._dataset, self._split = dataset, split
        shards = dataset.manifest.shards
        there = sum(shard.num_events if split is None else shard.splits[split] for shard in shards)
        if not there:
            raise UsageError(
                f"{dataset.path} has no events" + (f" in split {split!r}; choose another" if split else "")
            )
        self.notes: tuple[str, ...] = ()
        self.num_events = there if events is None else min(events, there)

    @property
    def detector(self) -> str:
        return self._dataset.manifest.detector

    @property
    def field(self) -> float:
        from ringflow.sim.geometry import load_detector

        return load_detector(self.detector).field

    @property
    def identity(self) -> dict[str, Any]:
        return {"record": self.record("", {}), "split": self._split, "events": self.num_events}

    def blocks(self, collections: Sequence[str]) -> Iterator[EventBlock]:
        return _first(self._dataset.events(self._split, columns=list(collections)), self.num_events)

    def record(self, reconstruction: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
        return candidate_record(self._dataset, reconstruction, provenance)


class _OfFile:
    """Events of an EDM4hep file."""

    def __init__(self, path: Path, profile: str | None, events: int | None) -> None:
        from ringflow.data.edm4hep import open_edm4hep

        self._path, self._file = path, open_edm4hep(path, profile)
        self._profile = self._file.profile
        self.notes = self._file.notes
        self.num_events = self._file.num_events if events is None else min(events, self._file.num_events)

    @property
    def detector(self) -> str:
        return self._profile.detector

    @property
    def field(self) -> float:
        return self._profile.field

    @property
    def identity(self) -> dict[str, Any]:
        profile = self._profile.model_dump(mode="json")
        return {"input": describe_input(self._path), "profile": profile, "events": self.num_events}

    def blocks(self, collections: Sequence[str]) -> Iterator[EventBlock]:
        return _first(self._file.events(), self.num_events)

    def record(self, reconstruction: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "manifest_sha256": "",
            "sample": self._path.stem,
            "detector": self.detector,
            "reconstruction": reconstruction,
            "provenance": {**provenance, "input": describe_input(self._path)},
        }


def _first(blocks: Iterator[EventBlock], events: int) -> Iterator[EventBlock]:
    for block in blocks:
        yield block.take(0, min(len(block), events))
        events -= len(block)
        if events <= 0:
            return
