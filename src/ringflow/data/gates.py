"""What a gate is: it names the columns it needs, measures block after block, and gives a verdict.

Either every number must lie in a range, or the ratio of two sums over the dataset must, or no two events may be alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.event.block import Collection, EventBlock
from ringflow.event.schema import parquet_name

Row = dict[str, Any]
Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """An inclusive range and how to write it."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"

    def hold(self, low: float, high: float) -> bool:
        """Whether a range lies inside; NaN never does."""
        return self.low <= low and high <= self.high


#: For a count of things that must not be.
NONE = Limits(0, 0)


class EveryValue:
    """Every number a block gives must lie within the limits; observed: the smallest and the largest."""

    def __init__(
        self, name: str, needs: tuple[str, ...], limits: Limits, measure: Callable[[EventBlock], Values]
    ) -> None:
        self.name, self.needs, self._limits, self._measure = name, needs, limits, measure
        self._low, self._high = np.inf, -np.inf

    def feed(self, block: EventBlock) -> None:
        """Measure one more block."""
        values = self._measure(block)
        if values.size:
            self._low = float(np.minimum(self._low, values.min()))
            self._high = float(np.maximum(self._high, values.max()))

    def row(self) -> Row:
        """The verdict."""
        if self._low == np.inf and self._high == -np.inf:
            return {"gate": self.name, "ok": True, "observed": "nothing to measure", "expected": str(self._limits)}
        observed = f"{self._low:.4g}" if self._low == self._high else f"{self._low:.4g} to {self._high:.4g}"
        return {
            "gate": self.name,
            "ok": self._limits.hold(self._low, self._high),
            "observed": observed,
            "expected": str(self._limits),
        }


class Ratio:
    """The ratio of two sums over the dataset must lie within the limits."""

    def __init__(
        self, name: str, needs: tuple[str, ...], limits: Limits, parts: Callable[[EventBlock], tuple[float, float]]
    ) -> None:
        self.name, self.needs, self._limits, self._parts = name, needs, limits, parts
        self._above, self._below = 0.0, 0.0

    def feed(self, block: EventBlock) -> None:
        """Measure one more block."""
        above, below = self._parts(block)
        self._above += float(above)
        self._below += float(below)

    def row(self) -> Row:
        """The verdict."""
        if not self._below:
            return {"gate": self.name, "ok": True, "observed": "nothing to measure", "expected": str(self._limits)}
        value = self._above / self._below
        ok = self._limits.hold(value, value)
        return {"gate": self.name, "ok": ok, "observed": f"{value:.4g}", "expected": str(self._limits)}


class Duplicates:
    """No two events with the same content."""

    name = "duplicated events"
    needs = ()
    _CONTENT = ("track_pt", "cluster_energy", "hit_energy", "particle_px", "candidate_px")

    def __init__(self) -> None:
        self._digests: list[npt.NDArray[np.uint64]] = []

    def feed(self, block: EventBlock) -> None:
        """Remember 8 bytes per event."""
        columns = [(part, part.offsets, np.ascontiguousarray(part[column])) for part, column in self._content(block)]
        digests = []
        for event in range(len(block)):
            content = hashlib.blake2b(digest_size=8)
            for _, offsets, values in columns:
                content.update(values[offsets[event] : offsets[event + 1]].tobytes() + b"|")
            if any(part.counts[event] for part, _, _ in columns):  # empty events are all alike
                digests.append(int.from_bytes(content.digest(), "little"))
        self._digests.append(np.array(digests, dtype=np.uint64))

    def _content(self, block: EventBlock) -> Iterator[tuple[Collection, str]]:
        for collection, part in block.collections.items():
            for column in part.columns:
                if parquet_name(collection, column) in self._CONTENT:
                    yield part, column

    def row(self) -> Row:
        """The verdict."""
        digests = np.concatenate(self._digests) if self._digests else np.zeros(0, dtype=np.uint64)
        repeated = len(digests) - len(np.unique(digests))
        return {"gate": self.name, "ok": repeated == 0, "observed": repeated, "expected": 0}


Gate = EveryValue | Ratio | Duplicates


def column(block: EventBlock, collection: str, name: str) -> Values:
    """A flat column, as numbers."""
    return np.asarray(block[collection][name])
