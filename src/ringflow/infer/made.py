"""What every session gives back: candidates as a collection of the schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ringflow.event.block import Collection, EventBlock, cast
from ringflow.event.schema import CANDIDATE_ERRORS

#: Columns of the rows that become candidates; `cluster` counts calorimeter elements, clusters or hits.
ROW = ("label", "charge", "px", "py", "pz", "energy", "track", "cluster")

#: Those that follow where uncertainties are known.
ERRORS = tuple(column.name for column in CANDIDATE_ERRORS)


class Reconstructor(Protocol):
    """A network ready to be used, whatever computes it."""

    threshold: float
    card: dict[str, Any]
    has_errors: bool  # whether its candidates have the columns `ERRORS`

    @property
    def kinds(self) -> tuple[str, str]:
        """Collections it needs."""

    @property
    def detector(self) -> str | None:
        """Detector it was trained for, as far as its card says."""

    def reconstruct(self, block: EventBlock) -> Collection:
        """The candidates of a block, in the order of their elements."""


def collection(
    counts: npt.NDArray[np.int64], rows: list[npt.NDArray[np.float64]], names: Sequence[str] = ROW
) -> Collection:
    """Candidates from rows of the columns `ROW`, or of others that begin with them."""
    return cast("candidate", counts, dict(zip(names, np.concatenate(rows).T, strict=True)))


def clusters_of_hits(block: EventBlock, made: Collection) -> npt.NDArray[np.int32]:
    """The cluster each candidate's hit belongs to; -1 for a candidate on a track, or where hits know no clusters."""
    hits = block["hit"]
    if "cluster" not in hits.columns:
        return np.full(len(made), -1, np.int32)
    hit = made["cluster"]
    first = np.repeat(hits.offsets[:-1], made.counts)
    cluster: npt.NDArray[np.int32] = np.where(hit >= 0, hits["cluster"][(first + hit).clip(0)], -1).astype(np.int32)
    return cluster
