"""Names that are looked for while a command is read: torch takes seconds to load, and a wrong one is told before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def _known_model(_: object, path: Path) -> None:
    from ringflow.infer.shipped import model_file

    model_file(path)


def _known_dataset(_: object, path: Path | None) -> None:
    from ringflow.data.manifest import read_manifest

    if path is not None:  # defaults are looked at, too
        read_manifest(path)


ModelName = Annotated[Path, Parameter(validator=_known_model, help="Model file, folder of a run, or `shipped`.")]
KnownDataset = Annotated[Path, Parameter(validator=_known_dataset, help="Folder of a dataset.")]
