"""The events of an EDM4hep file, looked at as if they were a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ringflow.data.edm4hep import open_edm4hep
from ringflow.data.manifest import make_manifest
from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock


class Edm4hepEvents(Dataset):
    """What a dataset offers, without a dataset on disk; a single event is read without those before it."""

    def __init__(self, path: Path, profile: str | None) -> None:
        self.path = path
        self.file = open_edm4hep(path, profile)
        self.field = self.file.profile.field
        self.manifest = make_manifest(
            detector=self.file.profile.detector, sample=path.stem, columns=self.file.columns, shards=(), provenance={}
        )

    def __len__(self) -> int:
        return self.file.num_events

    def number(self, index: int) -> int:
        """The number of an event, given its place."""
        return int(next(self.file.events(index, index + 1)).event_number[0])

    def events(self, split: str | None = None, columns: Sequence[str] | None = None) -> Iterator[EventBlock]:
        """All events in order, with all their columns."""
        return self.file.events()
