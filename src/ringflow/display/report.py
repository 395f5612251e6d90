"""The dataset that a report of `ringflow evaluate` is about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError, UsageError
from ringflow.data.manifest import MANIFEST_FILE, manifest_hash
from ringflow.recipes.evaluate import METRICS_FILE


def is_report(folder: Path) -> bool:
    """Whether a folder holds a report."""
    return (folder / METRICS_FILE).is_file() and not (folder / MANIFEST_FILE).is_file()


def dataset_of_report(folder: Path, sample: str | None = None) -> Path:
    """The folder of the dataset, found by its name near the report or here, and known by its manifest."""
    samples = _samples(folder / METRICS_FILE)
    if sample is None:
        sample = next(iter(samples))
    if sample not in samples:
        raise UsageError(f"no sample {sample!r} in {folder}; there is {', '.join(samples)}")
    try:
        name, fingerprint = str(samples[sample]["dataset"]), str(samples[sample]["manifest_sha256"])
    except (KeyError, TypeError):
        raise InputFileError(f"{folder / METRICS_FILE} does not say of which dataset it is; give the dataset") from None
    near = folder.resolve().parent
    places = [near, near / "data", Path("data"), Path(), near.parent, near.parent / "data"]
    for place in places:
        found = place / Path(name).name
        if (found / MANIFEST_FILE).is_file() and manifest_hash(found) == fingerprint:
            return found
    raise InputFileError(
        f"the report {folder} is of a dataset called {name!r}, which is neither beside it nor in data/; "
        "give the folder of the dataset instead"
    )


def _samples(path: Path) -> dict[str, Any]:
    try:
        samples = json.loads(path.read_bytes())["samples"]
        if not isinstance(samples, dict) or not samples:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise InputFileError(f"{path} is not a report of `ringflow evaluate`; make the report again") from None
    return samples
