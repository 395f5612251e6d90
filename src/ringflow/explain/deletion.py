"""Whether an explanation is true: without the elements that are said to matter, a candidate changes more than without others.

For candidates of every class the k elements with the largest weight are taken out of the event, the candidate's own one apart,
and the network is asked again; then k elements drawn at random, and the k nearest ones. The own element cannot be taken
out, since the candidate would go with it; so a second time k elements, own ones included, are put to the baseline instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ringflow.elements.batch import ElementBatch, join
from ringflow.evaluate.bootstrap import event_weights, ratio
from ringflow.explain.attribution import OUTPUTS, Decided, Explainer, Relevance, baseline_of, class_name, of_rows

Floats = npt.NDArray[np.float64]

#: Elements that are taken out.
TAKEN = 3
#: Draws of random elements, which are averaged.
_DRAWS = 3
#: A class with fewer candidates is told, but not judged.
LEAST_CANDIDATES = 10
#: The central 95 % of the replicates.
_INTERVAL = (0.025, 0.975)
#: Rows of a batch, so that memory stays small.
_ROWS_AT_ONCE = 8192

#: How elements are chosen: first those that are judged, then whom they are compared with.
CHOSEN, RANDOM, NEAREST = "relevant", "random", "nearest"
WAYS = ("removed", "hidden")


class Change(NamedTuple):
    """How much the output of one candidate changes, by way and by choice of elements."""

    event: int
    label: int
    change: dict[tuple[str, str], float]


class _Try(NamedTuple):
    """An event without some elements, or with some that tell nothing, and the row of the candidate in it."""

    candidate: int
    way: str
    choice: str
    event: ElementBatch
    row: int


def deletions(
    explainer: Explainer, event: ElementBatch, why: Relevance, number: int, taken: int = TAKEN
) -> list[Change]:
    """The changes of the candidates of an event that are explained; the same number draws the same random elements."""
    if event.num_elements <= taken:
        return []
    draw = np.random.default_rng(number)
    distance, weight = torch.from_numpy(distances(event)), torch.from_numpy(why.weight)
    blank = baseline_of(explainer.loaded.model, event.features_NF, explainer.baseline)
    tries: list[_Try] = []
    for candidate, own in enumerate(why.made.row.tolist()):
        others = np.delete(np.arange(event.num_elements), own)
        # Of all elements and of those but the own one, which is the nearest of all, and of random ones none in particular.
        loudest = others[weight[candidate][others].topk(taken).indices.numpy()].tolist()
        nearest = others[distance[own][others].topk(taken, largest=False).indices.numpy()].tolist()
        drawn = [draw.choice(others, taken, replace=False).tolist() for _ in range(_DRAWS)]
        chosen = [(CHOSEN, loudest, weight[candidate].topk(taken).indices.tolist())]
        chosen += [(RANDOM, rows, rows) for rows in drawn]
        chosen += [(NEAREST, nearest, [own, *nearest[:-1]])]
        for name, rows, rows_with_own in chosen:
            kept = np.delete(np.arange(event.num_elements), rows)
            place = int(np.searchsorted(kept, own))
            tries.append(_Try(candidate, "removed", name, only(event, torch.from_numpy(kept)), place))
            features = event.features_NF.clone()
            features[rows_with_own] = blank[rows_with_own]
            tries.append(_Try(candidate, "hidden", name, replace(event, features_NF=features, targets=None), own))
    after = _outputs(explainer, why.made, tries) - why.output[[one.candidate for one in tries]]
    found = [Change(number, int(label), {}) for label in why.made.label]
    for one, change in zip(tries, np.abs(after).tolist(), strict=True):
        share = change / (_DRAWS if one.choice == RANDOM else 1)
        so_far = found[one.candidate].change
        so_far[one.way, one.choice] = so_far.get((one.way, one.choice), 0.0) + share
    return found


def verdicts(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Per class and control the mean difference with its interval over resampled events; PASS where that is above zero.

    The nearest elements are a hard control, told beside: what matters to a candidate mostly is what is nearest to it.
    """
    rows = []
    for label in sorted({change.label for change in changes}):
        mine = [change for change in changes if change.label == label]
        weights = event_weights(np.array([change.event for change in mine]))
        for way in WAYS:
            for control in (RANDOM, NEAREST):
                chosen, other = (np.array([c.change[way, name] for c in mine]) for name in (CHOSEN, control))
                means = ratio(weights @ (chosen - other), weights.sum(1))
                low, high = np.nanquantile(means[1:], _INTERVAL)
                rows.append(
                    {
                        "class": class_name(label),
                        "elements": way,
                        "control": control,
                        "candidates": len(mine),
                        "change": float(chosen.mean()),
                        "change_of_control": float(other.mean()),
                        "difference": float(means[0]),
                        "low": float(low),
                        "high": float(high),
                        "judged": way == "removed" and control == RANDOM and len(mine) >= LEAST_CANDIDATES,
                        "ok": bool(low > 0),
                    }
                )
    return rows


def distances(event: ElementBatch) -> Floats:
    """Distance in eta and phi between all elements of an event, at the calorimeter."""
    eta, phi = event.position_N2.double().numpy().T
    turn = phi[:, None] - phi
    apart: Floats = np.hypot(eta[:, None] - eta, turn - 2 * np.pi * np.round(turn / (2 * np.pi)))
    return apart


@torch.inference_mode()
def _outputs(explainer: Explainer, made: Decided, tries: Sequence[_Try]) -> Floats:
    """The output of the candidate of every try, computed a few tries at a time."""
    found = []
    at_once = max(_ROWS_AT_ONCE // max((one.event.num_elements for one in tries), default=1), 1)
    for start in range(0, len(tries), at_once):
        part = tries[start : start + at_once]
        batch = join([one.event for one in part])
        rows = batch.offsets_B[:-1] + torch.tensor([one.row for one in part])
        whose = torch.tensor([one.candidate for one in part])
        said = of_rows(explainer.loaded.model.predict(batch), rows)
        found.append(OUTPUTS[explainer.output].value(said, of_rows(made, whose)))
    return torch.cat(found).double().numpy() if found else np.zeros(0)


def only(event: ElementBatch, rows: Tensor) -> ElementBatch:
    """An event with some of its elements only."""
    names = [field.name for field in fields(event) if field.name not in ("offsets_B", "targets")]
    return replace(
        event,
        **{name: getattr(event, name)[rows] for name in names},
        offsets_B=torch.tensor([0, len(rows)]),
        targets=None,
    )
