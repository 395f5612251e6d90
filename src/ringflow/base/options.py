"""Options that several commands share, as annotated types: one name, one check, one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

Switch = Parameter(negative="", show_default=False)
Several = Parameter(consume_multiple=True, negative="", show_default=False)
Count = Annotated[int, Parameter(validator=Number(gte=1))]
Seed = Annotated[int, Parameter(validator=Number(gte=0), help="The same seed gives the same events.")]
Workers = Annotated[Count, Parameter(help="Processes to use; the result does not depend on it.")]
Detector = Annotated[str, Parameter(help="Name of a detector; `ringflow config` lists them.")]
Device = Annotated[str, Parameter(help="Where the detector is simulated: `cpu`, `cuda`, ... or `auto`.")]
Overrides = Annotated[str, Parameter(help="Any setting as section.field=value.")]
Start = Annotated[Path, Parameter(name="--settings", help="Settings file to start from, as every dataset holds one.")]
SettingsFile = Annotated[Path, Parameter(help="Write the resolved settings into this file.")]
Measured = Annotated[Count, Parameter(help="Events per measurement.")]
DatasetFolder = Annotated[Path, Parameter(help="Folder of a dataset.")]
Json = Annotated[bool, Switch, Parameter(name="--json", help="Print the result to stdout as JSON.")]
ProfileName = Annotated[
    str, Parameter(help="How to read EDM4hep files: name of a profile or TOML file; the one that fits unless given.")
]
