"""Where events to be shown come from: a dataset, what was made of one, an EDM4hep file, or a Phoenix event file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.log import say
from ringflow.data.manifest import instead_of_dataset
from ringflow.display.ranking import Errors
from ringflow.infer.shipped import MODEL_FILE, model_file

PHOENIX_SUFFIX, ROOT_SUFFIX, CANDIDATES_SUFFIX = ".json", ".root", ".parquet"
_WHAT = (
    "give the folder of a dataset or of a report, a file of candidates (.parquet), an EDM4hep file (.root) or a Phoenix "
    "event file (.json)"
)


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
        raise InputFileError(f"nothing at {path}; {_WHAT}")
    if path.suffix in (".safetensors", ".onnx") or (path / MODEL_FILE).is_file():
        raise InputFileError(f"{path} is a network; show events with it: ringflow display DATASET --model {path}")
    if path.is_file() and path.suffix not in (PHOENIX_SUFFIX, ROOT_SUFFIX, CANDIDATES_SUFFIX):
        hepmc = ".hepmc" in path.name
        raise InputFileError(instead_of_dataset(path) if hepmc else f"{path} is no file of events; {_WHAT}")
    if path.is_file() and path.suffix == PHOENIX_SUFFIX:
        options = {"--candidates": candidates, "--model": model, "--profile": profile, "--sample": sample}
        _refuse({**options, "--links": links}, path)
        from ringflow.display.phoenix_source import PhoenixSource

        return PhoenixSource(path, events)
    if model is not None:
        model_file(model)  # a wrong name is told before torch is loaded, which takes seconds
    say(f"opening {path}")
    from ringflow.display.reconstructed import ReconstructedEvents
    from ringflow.display.report import dataset_of_candidates, dataset_of_report, is_report

    if path.is_file() and path.suffix == ROOT_SUFFIX:
        _refuse({"--sample": sample}, path)
        from ringflow.display.edm4hep import Edm4hepEvents

        return ReconstructedEvents(Edm4hepEvents(path, profile), candidates, model, events, links)
    _refuse({"--profile": profile}, path)
    if path.is_file():
        _refuse({"--sample": sample}, path)
        path, candidates = dataset_of_candidates(path), [path, *candidates]
    elif is_report(path):
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
