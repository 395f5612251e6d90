"""The dataset that a report of `ringflow evaluate`, or a file of candidates, is about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError, UsageError
from ringflow.data.candidates import CandidateFile
from ringflow.data.manifest import MANIFEST_FILE, manifest_hash
from ringflow.recipes.evaluate import METRICS_FILE


def is_report(folder: Path) -> bool:
    """Whether a folder holds a report."""
    return (folder / METRICS_FILE).is_file() and not (folder / MANIFEST_FILE).is_file()


def dataset_of_report(folder: Path, sample: str | None = None) -> Path:
    """The folder of the dataset, found near the report or here."""
    samples = _samples(folder / METRICS_FILE)
    if sample is None:
        sample = next(iter(samples))
    if sample not in samples:
        raise UsageError(f"no sample {sample!r} in {folder}; there is {', '.join(samples)}")
    try:
        name, fingerprint = str(samples[sample]["dataset"]), str(samples[sample]["manifest_sha256"])
    except (KeyError, TypeError):
        raise InputFileError(f"{folder / METRICS_FILE} does not say of which dataset it is; give the dataset") from None
    found = _find_dataset(fingerprint, folder)
    if found is None:
        raise InputFileError(
            f"the report {folder} is of a dataset called {name!r}, which is neither beside it nor in data/; "
            "give the folder of the dataset instead"
        )
    return found


def dataset_of_candidates(path: Path) -> Path:
    """The folder of the dataset that a file of candidates was made of, found near the file or here."""
    record = CandidateFile(path).record
    found = _find_dataset(record["manifest_sha256"], path)
    if found is None:
        raise InputFileError(
            f"{path} holds candidates of {record['sample']!r}, which are neither beside it nor in data/; "
            f"show those, with --candidates {path}"
        )
    return found


def _find_dataset(fingerprint: str, made: Path) -> Path | None:
    """A dataset is known by its manifest, whatever its folder is called."""
    near = made.resolve().parent
    places = [near, near / "data", Path("data"), Path(), near.parent, near.parent / "data"]
    manifests = (path for place in places for path in sorted(place.glob(f"*/{MANIFEST_FILE}")))
    return next((path.parent for path in manifests if manifest_hash(path.parent) == fingerprint), None)


def _samples(path: Path) -> dict[str, Any]:
    try:
        samples = json.loads(path.read_bytes())["samples"]
        if not isinstance(samples, dict) or not samples:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise InputFileError(f"{path} is not a report of `ringflow evaluate`; make the report again") from None
    return samples
