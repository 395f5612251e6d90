"""Numbers that must be numbers: one that is not would spoil its whole event, and others that are computed with it."""

from __future__ import annotations

from collections.abc import Collection as Names
from collections.abc import Mapping

import numpy as np

from ringflow.base.errors import DatasetError
from ringflow.event.block import EventBlock


def require_finite(block: EventBlock, columns: Mapping[str, Names[str]]) -> None:
    """An error that names the first value that is none, in the given columns by collection; absent ones are no matter."""
    places = [(name, column) for name in columns if name in block for column in sorted(columns[name])]
    for name, column in places:
        part = block[name]
        if column in part.columns and not np.isfinite(values := part[column]).all():
            wrong = int(np.argmin(np.isfinite(values)))
            event = np.repeat(block.event_number, part.counts)[wrong]
            raise DatasetError(
                f"{name} {column} is {values[wrong]} in event {event}, and a network cannot do without; "
                "leave such events out"
            )
