"""Where events to be shown come from: a dataset, a report about one, an EDM4hep file, or a Phoenix event file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ringflow.base.errors import InputFileError, UsageError
from ringflow.display.ranking import Errors

PHOENIX_SUFFIX = ".json"


class EventSource(Protocol):
    """Events that can be shown."""

    num_events: int
    notes: tuple[str, ...]  # what people should know
    explained: tuple[int, ...]  # places of events that have lines of a file of `ringflow explain`

    @property
    def about(self) -> dict[str, Any]:
        """What all scenes have in common: source, sample, detector, names and titles of the reconstructions."""

    def scene(self, index: int) -> dict[str, Any]:
        """The scene of an event, see `scene.py`."""

    def errors(self, start: int, stop: int) -> Errors | None:
        """How wrong every reconstruction is in some events; None where there is no truth."""


def open_source(
    path: Path,
    *,
    candidates: Sequence[Path] = (),
    model: Path | None = None,
    events: int | None = None,
    profile: str | None = None,
    sample: str | None = None,
    links: Path | None = None,
) -> EventSource:
    """The first `events` events of what is at a path, with the reconstructions that can be made of them.

    `profile` is how to read a ROOT file, `sample` which of several samples of a report to show, `links` a file
    of `ringflow explain --links`.
    """
    if not path.exists():
        raise InputFileError(
            f"nothing at {path}; give the folder of a dataset or of a report, an EDM4hep file (.root) or a Phoenix "
            f"event file ({PHOENIX_SUFFIX})"
        )
    if path.is_file() and path.suffix == PHOENIX_SUFFIX:
        options = {"--candidates": candidates, "--model": model, "--profile": profile, "--sample": sample}
        _refuse({**options, "--links": links}, path)
        from ringflow.display.phoenix_source import PhoenixSource

        return PhoenixSource(path, events)
    from ringflow.display.reconstructed import ReconstructedEvents
    from ringflow.display.report import dataset_of_report, is_report

    if path.is_file():
        _refuse({"--sample": sample}, path)
        from ringflow.display.edm4hep import Edm4hepEvents

        return ReconstructedEvents(Edm4hepEvents(path, profile or "clic"), candidates, model, events, links)
    _refuse({"--profile": profile}, path)
    if is_report(path):
        path = dataset_of_report(path, sample)
    else:
        _refuse({"--sample": sample}, path)
    from ringflow.data.read import Dataset

    return ReconstructedEvents(Dataset(path), candidates, model, events, links)


def _refuse(options: dict[str, object], path: Path) -> None:
    """Options that mean nothing for this input."""
    for name, value in options.items():
        if value:
            shown = value[0] if isinstance(value, tuple | list) else value
            raise UsageError(f"{name} {shown} does not go with {path}; leave it out")
