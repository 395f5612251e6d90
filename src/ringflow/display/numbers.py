"""Columns of numbers as short JSON lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

#: What a screen can show of a number; more would only make the page slow to load.
_SIGNIFICANT = 5


def listed(values: npt.NDArray[Any]) -> list[Any]:
    """A column: whole numbers as they are, others rounded to five significant digits; None where not finite."""
    if values.dtype.kind in "iub":
        whole: list[Any] = values.astype(np.int64).tolist()
        return whole
    numbers = values.astype(np.float64)
    finite = np.isfinite(numbers)
    if finite.all():
        return _rounded(numbers).tolist()  # type: ignore[no-any-return]
    return [value if ok else None for value, ok in zip(_rounded(np.where(finite, numbers, 0.0)), finite, strict=True)]


def places(points: npt.NDArray[np.float64]) -> list[float]:
    """Points of a line in space as x, y, z, x, y, z, ... to a tenth of a millimetre."""
    flat: list[float] = np.round(points.reshape(-1), 1).tolist()
    return flat


def _rounded(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    size = np.floor(np.log10(np.maximum(np.abs(values), 1e-30)))
    scale = 10.0 ** np.clip(_SIGNIFICANT - 1 - size, -15, 15)
    return np.asarray(np.round(values * scale) / scale)
