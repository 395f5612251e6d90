"""What candidates of a class listen to, on average over many events."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.elements.batch import KINDS, ElementBatch
from ringflow.elements.features import feature_groups, feature_names
from ringflow.explain.deletion import distances
from ringflow.explain.outputs import class_name
from ringflow.explain.relevance import Relevance

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Distances in eta and phi at the calorimeter; the last bin has no end.
DISTANCES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, np.inf)


def some_of_every_class(labels: Integers, most: int, number: int) -> Integers:
    """At most so many candidates of every class, so that rare ones are seen; the same event number draws the same ones."""
    draw = np.random.default_rng(number)
    chosen = [draw.permutation(np.flatnonzero(labels == label))[:most] for label in np.unique(labels)]
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)


class Averages:
    """Shares of what candidates listen to, summed up by class: of all weight of a candidate, how much is where."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._names = feature_names(kinds)
        self._groups = [group or "essential" for group in feature_groups(kinds)]
        self._kinds = [KINDS.index(kind) for kind in kinds]
        self._of: dict[int, _Sums] = {}

    def add(self, event: ElementBatch, why: Relevance) -> None:
        """Count the candidates of an event."""
        apart = distances(event)
        kind = event.kind_N.numpy()
        weight = np.abs(why.relevance.astype(np.float64))
        for candidate, (own, label) in enumerate(zip(why.made.row.tolist(), why.made.label.tolist(), strict=True)):
            total = weight[candidate].sum()
            if total == 0.0:  # nothing said anything
                continue
            share = weight[candidate] / total
            others = np.delete(np.arange(len(share)), own)
            by_other = share[others].sum(1)
            sums = self._of.setdefault(label, _Sums(len(self._names), len(self._kinds), len(DISTANCES) - 1))
            place = np.searchsorted(DISTANCES, apart[own, others], side="right") - 1
            sums.candidates += 1
            sums.own += share[own].sum()
            sums.by_kind += [by_other[kind[others] == number].sum() for number in self._kinds]
            sums.by_distance += np.bincount(place, by_other, len(DISTANCES) - 1)
            sums.elements_at_distance += np.bincount(place, minlength=len(DISTANCES) - 1)
            sums.own_features += share[own]
            sums.other_features += share[others].sum(0)

    def classes(self) -> list[dict[str, Any]]:
        """Per class the share of the own element, of tracks and of calorimeter elements, and of what is how far away."""
        rows = []
        for label, sums in sorted(self._of.items()):
            shares = sums.by_kind / sums.candidates
            rows.append(
                {
                    "class": class_name(label),
                    "candidates": sums.candidates,
                    "own": float(sums.own / sums.candidates),
                    **{KINDS[kind]: float(share) for kind, share in zip(self._kinds, shares, strict=True)},
                    "within_0.1": float(sums.by_distance[: DISTANCES.index(0.1)].sum() / sums.candidates),
                    "beyond_0.4": float(sums.by_distance[DISTANCES.index(0.4) :].sum() / sums.candidates),
                }
            )
        return rows

    def distances(self) -> list[dict[str, Any]]:
        """Per class and distance the share of all other elements there, and of one of them."""
        return [
            {
                "class": class_name(label),
                "from": low,
                "to": None if np.isinf(high) else high,
                "elements": float(sums.elements_at_distance[place] / sums.candidates),
                "share": float(sums.by_distance[place] / sums.candidates),
                "share_of_one": float(sums.by_distance[place] / max(sums.elements_at_distance[place], 1.0)),
            }
            for label, sums in sorted(self._of.items())
            for place, (low, high) in enumerate(pairwise(DISTANCES))
        ]

    def features(self) -> list[dict[str, Any]]:
        """Per class and feature the share it has on the candidate's own element and on all others."""
        return [
            {
                "class": class_name(label),
                "feature": name,
                "group": group,
                "own": float(sums.own_features[column] / sums.candidates),
                "others": float(sums.other_features[column] / sums.candidates),
            }
            for label, sums in sorted(self._of.items())
            for column, (name, group) in enumerate(zip(self._names, self._groups, strict=True))
        ]


class _Sums:
    """Of one class."""

    def __init__(self, features: int, kinds: int, bins: int) -> None:
        self.candidates = 0
        self.own = 0.0
        self.by_kind: Floats = np.zeros(kinds)
        self.by_distance: Floats = np.zeros(bins)
        self.elements_at_distance: Floats = np.zeros(bins)
        self.own_features: Floats = np.zeros(features)
        self.other_features: Floats = np.zeros(features)
