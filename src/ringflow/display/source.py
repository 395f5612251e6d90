"""Where events to be shown come from: a dataset, what was made of one, an EDM4hep file, or a Phoenix event file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.log import say
from ringflow.base.rundir import METRICS_FILE
from ringflow.data.manifest import MANIFEST_FILE, ROOT_SUFFIX, instead_of_dataset, is_generated, manifest_hash
from ringflow.infer.shipped import MODEL_FILE, model_file

if TYPE_CHECKING:
    from ringflow.display.events import ReconstructedEvents
    from ringflow.display.phoenix import PhoenixSource

PHOENIX_SUFFIX, CANDIDATES_SUFFIX = ".json", ".parquet"
_WHAT = (
    "give the folder of a dataset or of a report, a file of candidates (.parquet), an EDM4hep file (.root) or a Phoenix "
    "event file (.json)"
)

#: Events that can be shown: `scene(index)` is one of them (see `scene.py`), `about` what all scenes have in common,
#: `errors(index)` how wrong every reconstruction of it is (nothing without truth), `notes` what people should know,
#: `explained` the places of events that have lines of a file of `ringflow explain`.
EventSource: TypeAlias = "ReconstructedEvents | PhoenixSource"


def open_source(
    path: Path,
    *,
    candidates: Sequence[Path] = (),
    model: Path | None = None,
    events: int | None = None,
    profile: str | None = None,
    sample: str | None = None,
    links: Path | None = None,
    constants: str | None = None,
) -> EventSource:
    """The first `events` events of what is at a path, with the reconstructions that can be made of them.

    `profile` is how to read a ROOT file, `sample` which of several samples of a report to show, `links` a file
    of `ringflow explain --links`, `constants` of the rules are those of a file.
    """
    if not path.exists():
        raise InputFileError(f"nothing at {path}; {_WHAT}")
    if path.suffix in (".safetensors", ".onnx") or (path / MODEL_FILE).is_file():
        raise InputFileError(f"{path} is a network; show events with it: ringflow display DATASET --model {path}")
    kind = path.suffix if path.is_file() else ""
    if kind not in ("", PHOENIX_SUFFIX, ROOT_SUFFIX, CANDIDATES_SUFFIX) or (path.is_file() and not kind):
        raise InputFileError(
            instead_of_dataset(path) if is_generated(path) else f"{path} is no file of events; {_WHAT}"
        )
    is_report = (path / METRICS_FILE).is_file() and not (path / MANIFEST_FILE).is_file()
    refused: dict[str, object] = {} if is_report else {"--sample": sample}
    if kind != ROOT_SUFFIX:
        refused["--profile"] = profile
    if kind == PHOENIX_SUFFIX:
        refused |= {"--candidates": candidates, "--model": model, "--links": links, "--constants": constants}
    for name, value in refused.items():
        if value:
            shown = value[0] if isinstance(value, tuple | list) else value
            raise UsageError(f"{name} {shown} does not go with {path}; leave it out")
    if kind == PHOENIX_SUFFIX:
        from ringflow.display.phoenix import PhoenixSource

        return PhoenixSource(path, events)
    if model is not None:
        model_file(model)  # a wrong name is told before torch is loaded, which takes seconds
    say(f"opening {path}")
    if kind == CANDIDATES_SUFFIX:
        path, candidates = _dataset_of_candidates(path), [path, *candidates]
    elif is_report:
        path = _dataset_of_report(path, sample)
    from ringflow.data.read import Dataset
    from ringflow.display.events import Edm4hepEvents, ReconstructedEvents

    dataset = Edm4hepEvents(path, profile) if kind == ROOT_SUFFIX else Dataset(path)
    return ReconstructedEvents(dataset, candidates, model, events, links, constants)


def _dataset_of_report(folder: Path, sample: str | None) -> Path:
    """The folder of the dataset that a report is about, found near the report or here."""
    path = folder / METRICS_FILE
    try:
        samples = json.loads(path.read_bytes())["samples"]
        if not isinstance(samples, dict) or not samples:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise InputFileError(f"{path} is not a report of `ringflow evaluate`; make the report again") from None
    if sample is None:
        sample = next(iter(samples))
    if sample not in samples:
        raise UsageError(f"no sample {sample!r} in {folder}; there is {', '.join(samples)}")
    try:
        name, fingerprint = str(samples[sample]["dataset"]), str(samples[sample]["manifest_sha256"])
    except (KeyError, TypeError):
        raise InputFileError(f"{path} does not say of which dataset it is; give the dataset") from None
    return _find_dataset(
        fingerprint,
        folder,
        f"the report {folder} is of a dataset called {name!r}, which is neither beside it nor in data/; "
        "give the folder of the dataset instead",
    )


def _dataset_of_candidates(path: Path) -> Path:
    """The folder of the dataset that a file of candidates was made of, found near the file or here."""
    from ringflow.data.candidates import CandidateFile

    record = CandidateFile(path).record
    return _find_dataset(
        record["manifest_sha256"],
        path,
        f"{path} holds candidates of {record['sample']!r}, which are neither beside it nor in data/; "
        f"show those, with --candidates {path}",
    )


def _find_dataset(fingerprint: str, made: Path, otherwise: str) -> Path:
    """A dataset is known by its manifest, whatever its folder is called."""
    near = made.resolve().parent
    for place in (near, near / "data", Path("data"), Path(), near.parent, near.parent / "data"):
        for path in sorted(place.glob(f"*/{MANIFEST_FILE}")):
            if manifest_hash(path.parent) == fingerprint:
                return path.parent
    raise InputFileError(otherwise)
