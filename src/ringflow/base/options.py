"""Options that several commands share, as annotated types: one name, one check, one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number


def about(text: str) -> Parameter:
    """The help of an option."""
    return Parameter(help=text)


Switch = Parameter(negative="", show_default=False)
Several = Parameter(consume_multiple=True, negative="", show_default=False)
Flag = Annotated[bool, Switch]
Paths = Annotated[tuple[Path, ...], Several]
Texts = Annotated[tuple[str, ...], Several]
Count = Annotated[int, Parameter(validator=Number(gte=1))]
Counts = Annotated[tuple[Count, ...], Several]
Natural = Annotated[int, Parameter(validator=Number(gte=0))]
NotNegative = Annotated[float, Parameter(validator=Number(gte=0, lte=1e6))]
Positive = Annotated[float, Parameter(validator=Number(gt=0, lte=1e6))]
Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535), help="Port; 0 is any that is free.")]
Seed = Annotated[Natural, about("The same seed gives the same events.")]
Workers = Annotated[Count, about("Processes to use; the result does not depend on it.")]
Detector = Annotated[str, about("Name of a detector, or a TOML file of one; `ringflow config` lists the names.")]
Device = Annotated[str, about("Where the detector is simulated: `cpu`, `cuda`, ... or `auto`.")]
TorchDevice = Annotated[str, about("Name of a torch device; auto is the accelerator found, else cpu.")]
Overrides = Annotated[str, about("Any setting as section.field=value.")]
Start = Annotated[Path, Parameter(name="--settings", help="Settings file to start from, as every dataset holds one.")]
SettingsFile = Annotated[Path, about("Write the resolved settings into this file.")]
Measured = Annotated[Count, about("Events per measurement.")]
Constants = Annotated[
    str, about("Constants of the rules: TOML file of `calibrate --baseline`; those of the detector unless given.")
]
DatasetFolder = Annotated[Path, about("Folder of a dataset.")]
ModelName = Annotated[Path, about("Model file, folder of a run, or name of a shipped model.")]
Split = Annotated[Literal["train", "valid", "test"], about("Only the events of one split.")]
Json = Annotated[bool, Switch, Parameter(name="--json", help="Print the result to stdout as JSON.")]
ProfileName = Annotated[
    str, about("How to read EDM4hep files: name of a profile or TOML file; the one that fits unless given.")
]


def without_start(first: str | None, overrides: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """What to start from and what to change: where nothing is named to start from, an override comes first."""
    return (None, (first, *overrides)) if first is not None and "=" in first else (first, overrides)
