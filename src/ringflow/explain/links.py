"""Lines from a candidate to the elements it listens to, as an event display draws them.

    [{"reconstruction": "model", "candidate": 3, "elements": [[17, 0.62], [4, 0.21]]}, ...]

Elements are counted within the event, tracks first and then clusters (or hits), as the network takes them. A weight is the
share of all that a candidate listens to, negative where the element speaks against what it became.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ringflow.explain.relevance import Relevance

#: Lines of a candidate at most, and the least share of its weight that is worth one.
MOST, LEAST_SHARE = 8, 0.02


def links(why: Relevance, *, most: int = MOST, least: float = LEAST_SHARE) -> list[dict[str, Any]]:
    """For every candidate of an event the elements it listens to, the loudest first."""
    found = []
    for candidate, (weight, sign) in enumerate(
        zip(why.weight.astype(np.float64), np.sign(why.by_element), strict=True)
    ):
        share = weight / max(weight.sum(), np.finfo(np.float64).tiny)
        loudest = [element for element in np.argsort(-share, kind="stable")[:most].tolist() if share[element] >= least]
        kept = [[element, round(float(share[element] * (sign[element] or 1.0)), 4)] for element in loudest]
        found.append({"reconstruction": "model", "candidate": candidate, "elements": kept})
    return found
