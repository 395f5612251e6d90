"""A value that is no number is named with its event."""

from __future__ import annotations

import numpy as np
import pytest

from ringflow.base.errors import DatasetError
from ringflow.event.block import Collection, EventBlock, require_finite

COLUMNS = {"track": ("pt", "absent"), "hit": ("energy",)}


def block(pt: list[float]) -> EventBlock:
    """Events 5, 6 and 9 with two, no and two tracks."""
    columns = {"pt": np.array(pt, np.float32), "dedx": np.full(4, np.nan), "charge": np.ones(4, np.int32)}
    return EventBlock(np.array([5, 6, 9]), {"track": Collection(np.array([2, 0, 2]), columns)})


def test_columns_that_need_not_be_there_or_be_finite() -> None:
    require_finite(block([1.0, 2.0, 3.0, 4.0]), {**COLUMNS, "track": ("pt", "charge", "absent")})
    require_finite(block([1.0, 2.0, 3.0, 4.0]).take(1, 2), {"track": ("dedx",)})


@pytest.mark.parametrize(("value", "word"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_the_value_is_named(value: float, word: str) -> None:
    with pytest.raises(DatasetError, match=rf"track pt is {word} in event 9, and a network cannot do without"):
        require_finite(block([1.0, 2.0, 3.0, value]), COLUMNS)
    with pytest.raises(DatasetError, match="in event 5"):
        require_finite(block([1.0, value, 3.0, value]), COLUMNS)
