"""One event in full: for each candidate the elements it listens to, and what of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.elements.batch import KINDS, TRACK, ElementBatch
from ringflow.elements.features import feature_groups, feature_names
from ringflow.explain.deletion import distances
from ringflow.explain.outputs import class_name
from ringflow.explain.relevance import Relevance

#: Elements and features that are listed per candidate.
_LISTED = 5


def describe_event(event: ElementBatch, why: Relevance, kinds: Sequence[str]) -> dict[str, Any]:
    """Its candidates and its elements, ready for JSON."""
    apart = distances(event)
    return {
        "elements": _elements(event),
        "candidates": [_candidate(why, number, apart, kinds) for number in range(len(why))],
    }


def _elements(event: ElementBatch) -> list[dict[str, Any]]:
    """Kind, number within the kind, place and size of every element, in the order that links count them in."""
    kind = event.kind_N.numpy()
    tracks = int((kind == TRACK).sum())
    return [
        {
            "kind": KINDS[kind[row]],
            "number": row if row < tracks else row - tracks,
            "eta": round(float(eta), 4),
            "phi": round(float(phi), 4),
            "energy": round(float(event.reference_N4[row, 3]), 4),
        }
        for row, (eta, phi) in enumerate(event.position_N2.tolist())
    ]


def _candidate(why: Relevance, number: int, apart: npt.NDArray[np.float64], kinds: Sequence[str]) -> dict[str, Any]:
    own = int(why.made.row[number])
    relevance = why.relevance[number].astype(np.float64)
    weight = np.abs(relevance).sum(1)
    by_feature = relevance.sum(0)
    share = weight / max(weight.sum(), np.finfo(np.float64).tiny)
    names, groups = feature_names(kinds), [group or "essential" for group in feature_groups(kinds)]
    return {
        "candidate": number,
        "class": class_name(int(why.made.label[number])),
        "charge": int(why.made.charge[number]),
        "energy": round(float(why.made.momentum[number, 3]), 4),
        "element": own,
        "output": float(why.output[number]),
        "at_baseline": float(why.at_baseline[number]),
        "error": float(why.error[number]),
        "own": float(share[own]),
        "listens_to": [
            {
                "element": element,
                "share": float(share[element]),
                "relevance": float(relevance[element].sum()),
                "distance": round(float(apart[own, element]), 4),
            }
            for element in np.argsort(-share, kind="stable")[:_LISTED].tolist()
        ],
        "features": {names[column]: float(by_feature[column]) for column in _largest(by_feature)},
        "groups": {
            name: float(by_feature[[group == name for group in groups]].sum()) for name in dict.fromkeys(groups)
        },
    }


def _largest(values: npt.NDArray[np.float64]) -> list[int]:
    largest: list[int] = np.argsort(-np.abs(values), kind="stable")[:_LISTED].tolist()
    return largest
