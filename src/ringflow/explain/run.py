"""Explain events of a dataset or file: one of them in full, or what candidates of every class listen to in many.

Lines from candidates to elements, and the graph of a network that makes one, are written as an event display draws them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ringflow.base.errors import UsageError
from ringflow.base.log import progress, say
from ringflow.base.provenance import describe_input
from ringflow.elements.batch import KINDS, TRACK, ElementBatch, from_block
from ringflow.elements.features import essential_columns, feature_groups, feature_names
from ringflow.event.block import require_finite
from ringflow.explain.attribution import (
    OUTPUTS,
    Change,
    Explainer,
    Relevance,
    class_name,
    deletions,
    distances,
    verdicts,
)
from ringflow.infer.inputs import EventInput, open_input
from ringflow.infer.session import load_for
from ringflow.infer.shipped import model_file
from ringflow.models.attention import Block, Layout
from ringflow.models.graph import GraphMixer, bins_of
from ringflow.models.model import Model

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Candidates of a class and event that averages are made of.
PER_CLASS = 4
#: Distances in eta and phi at the calorimeter; the last bin has no end.
DISTANCES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, np.inf)
#: Elements and features that are listed per candidate.
_LISTED = 5
#: Lines of a candidate at most, and the least share of its weight that is worth one.
MOST_LINES, LEAST_SHARE = 8, 0.02
#: Weaker edges of a graph are left out.
LEAST_WEIGHT = 0.02


def explain(
    source: Path,
    *,
    model: Path | None = None,
    event: int | None = None,
    events: int = 20,
    split: str | None = None,
    profile: str | None = None,
    target: str = "class",
    method: str = "integrated-gradients",
    baseline: str = "hidden",
    steps: int = 8,
    with_links: bool = False,
    with_graph: bool = False,
) -> dict[str, Any]:
    """Averages, deletion test and what was asked for of single events, ready for JSON."""
    path = model_file(model)
    if path.suffix == ".onnx":
        raise UsageError(f"{path} is an ONNX file, which has no gradients; give the model it was exported from")
    given = open_input(source, split, events if event is None else event + 1, profile)
    explainer = Explainer(load_for(path, given.detector), output=target, method=method, baseline=baseline, steps=steps)
    network = explainer.loaded.model
    if with_graph and network.settings.backbone != "graph":
        raise UsageError(f"{path} has the backbone {network.settings.backbone!r}, which makes no graph")
    for note in given.notes:
        say(note)
    if event is not None and event >= given.num_events:
        raise UsageError(f"--event {event}: there are {given.num_events} events here, counted from 0")
    averages, changes, single = Averages(network.kinds), list[Change](), list[dict[str, Any]]()
    candidates, missed, explained, seconds = 0, 0.0, 0.0, 0.0
    with progress(1 if event is not None else given.num_events, "explaining") as advance:
        for index, number, elements in _events(given, network, event):
            started = time.perf_counter()
            chosen = None
            if event is None and not with_links:
                labels = explainer.network(elements).made.label.numpy()
                chosen = torch.from_numpy(some_of_every_class(labels, PER_CLASS, number))
            why = explainer.explain(elements, chosen)
            seconds += time.perf_counter() - started
            candidates += len(why)
            missed += float(np.abs(why.error).sum())
            explained += float(np.abs(why.output - why.at_baseline).sum())
            averages.add(elements, why)
            told: dict[str, Any] = {"index": index, "event_number": number}
            if event is None:  # one event proves nothing
                changes += deletions(explainer, elements, why, number)
            else:
                told |= describe_event(elements, why, network.kinds)
            if with_links:
                told["links"] = links_of(why)
            if with_graph:
                told["graph"] = graph_edges(network, elements)
            single.append(told)
            advance(1)
    deletion = verdicts(changes)
    return {
        "source": str(source),
        "model": describe_input(path),
        "output": target,
        "meaning": OUTPUTS[target].meaning,
        "method": method,
        "baseline": baseline,
        "steps": steps,
        "events": len(single),
        "candidates": candidates,
        "seconds_per_event": round(seconds / max(len(single), 1), 3),
        # Of all that is explained, how much an integral over few points misses or invents.
        "incomplete": missed / explained if explained else None,
        **averages.tables(),
        "deletion": deletion,
        "ok": all(row["ok"] for row in deletion if row["judged"]),
        "single": single,
    }


def _events(given: EventInput, model: Model, only: int | None) -> Iterator[tuple[int, int, ElementBatch]]:
    """Place, number and elements of every event, or of one."""
    start = 0
    for block in given.blocks(model.kinds):
        for place in range(len(block)):
            if only is None or start + place == only:
                one = block.take(place, place + 1)
                require_finite(one, {kind: essential_columns(kind) for kind in model.kinds})
                yield start + place, int(one.event_number[0]), model.see(from_block(one, model.settings.calorimeter))
        start += len(block)


def some_of_every_class(labels: Integers, most: int, number: int) -> Integers:
    """At most so many candidates of every class, so that rare ones are seen; the same event number draws the same ones."""
    draw = np.random.default_rng(number)
    chosen = [draw.permutation(np.flatnonzero(labels == label))[:most] for label in np.unique(labels)]
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)


class Averages:
    """Shares of what candidates listen to, summed up by class: of all weight of a candidate, how much is where."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._features = list(zip(feature_names(kinds), _groups(kinds), strict=True))
        self._kinds = [KINDS.index(kind) for kind in kinds]
        self._sums: dict[int, dict[str, Floats]] = {}

    def add(self, event: ElementBatch, why: Relevance) -> None:
        """Count the candidates of an event."""
        apart = distances(event)
        kind = event.kind_N.numpy()
        weight = np.abs(why.relevance.astype(np.float64))
        bins = len(DISTANCES) - 1
        for candidate, (own, label) in enumerate(zip(why.made.row.tolist(), why.made.label.tolist(), strict=True)):
            total = weight[candidate].sum()
            if total == 0.0:  # nothing said anything
                continue
            share = weight[candidate] / total
            others = np.delete(np.arange(len(share)), own)
            by_other = share[others].sum(1)
            place = np.searchsorted(DISTANCES, apart[own, others], side="right") - 1
            found = {
                "candidates": 1.0,
                "own": share[own].sum(),
                "by_kind": [by_other[kind[others] == number].sum() for number in self._kinds],
                "by_distance": np.bincount(place, by_other, bins),
                "elements_at_distance": np.bincount(place, minlength=bins),
                "own_features": share[own],
                "other_features": share[others].sum(0),
            }
            sums = self._sums.setdefault(label, {name: np.zeros(np.shape(value)) for name, value in found.items()})
            for name, value in found.items():
                sums[name] = sums[name] + value

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Per class what it listens to: the own element, others by kind, by distance and by feature."""
        tables: dict[str, list[dict[str, Any]]] = {"classes": [], "distances": [], "features": []}
        for label, sums in sorted(self._sums.items()):
            name, count = class_name(label), sums["candidates"]
            by_distance, elements = sums["by_distance"], sums["elements_at_distance"]
            by_kind = zip(self._kinds, sums["by_kind"], strict=True)
            tables["classes"].append(
                {
                    "class": name,
                    "candidates": round(float(count)),
                    "own": float(sums["own"] / count),
                    **{KINDS[kind]: float(share / count) for kind, share in by_kind},
                    "within_0.1": float(by_distance[: DISTANCES.index(0.1)].sum() / count),
                    "beyond_0.4": float(by_distance[DISTANCES.index(0.4) :].sum() / count),
                }
            )
            tables["distances"] += [
                {
                    "class": name,
                    "from": low,
                    "to": None if np.isinf(high) else high,
                    "elements": float(elements[place] / count),
                    "share": float(by_distance[place] / count),
                    "share_of_one": float(by_distance[place] / max(elements[place], 1.0)),
                }
                for place, (low, high) in enumerate(pairwise(DISTANCES))
            ]
            tables["features"] += [
                {
                    "class": name,
                    "feature": feature,
                    "group": group,
                    "own": float(sums["own_features"][column] / count),
                    "others": float(sums["other_features"][column] / count),
                }
                for column, (feature, group) in enumerate(self._features)
            ]
        return tables


def describe_event(event: ElementBatch, why: Relevance, kinds: Sequence[str]) -> dict[str, Any]:
    """One event in full: its elements, in the order that links count them in, and what each candidate listens to."""
    apart, kind = distances(event), event.kind_N.numpy()
    tracks = int((kind == TRACK).sum())
    elements = [
        {
            "kind": KINDS[kind[row]],
            "number": row if row < tracks else row - tracks,
            "eta": round(float(eta), 4),
            "phi": round(float(phi), 4),
            "energy": round(float(event.reference_N4[row, 3]), 4),
        }
        for row, (eta, phi) in enumerate(event.position_N2.tolist())
    ]
    names, groups = feature_names(kinds), _groups(kinds)
    candidates = []
    for number, own in enumerate(why.made.row.tolist()):
        relevance = why.relevance[number].astype(np.float64)
        by_feature, share = relevance.sum(0), _shares(np.abs(relevance).sum(1))
        candidates.append(
            {
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
                    for element in _largest(share, _LISTED)
                ],
                "features": {names[k]: float(by_feature[k]) for k in _largest(np.abs(by_feature), _LISTED)},
                "groups": {
                    name: float(by_feature[[group == name for group in groups]].sum()) for name in dict.fromkeys(groups)
                },
            }
        )
    return {"elements": elements, "candidates": candidates}


def links_of(why: Relevance, *, most: int = MOST_LINES, least: float = LEAST_SHARE) -> list[dict[str, Any]]:
    """For every candidate of an event the elements it listens to, the loudest first.

        [{"reconstruction": "model", "candidate": 3, "elements": [[17, 0.62], [4, 0.21]]}, ...]

    Elements are counted within the event, tracks first and then clusters (or hits), as the network takes them. A weight is the
    share of all that a candidate listens to, negative where the element speaks against what it became.
    """
    found = []
    for candidate, (weight, by_element) in enumerate(zip(why.weight.astype(np.float64), why.by_element, strict=True)):
        share = _shares(weight)
        sign = np.where(by_element < 0, -1.0, 1.0)
        kept = [
            [element, round(float(share[element] * sign[element]), 4)]
            for element in _largest(share, most)
            if share[element] >= least
        ]
        found.append({"reconstruction": "model", "candidate": candidate, "elements": kept})
    return found


def _shares(weight: Floats) -> Floats:
    shares: Floats = weight / max(weight.sum(), np.finfo(np.float64).tiny)
    return shares


def _largest(values: Floats, most: int) -> list[int]:
    places: list[int] = np.argsort(-values, kind="stable")[:most].tolist()
    return places


def _groups(kinds: Sequence[str]) -> list[str]:
    return [group or "essential" for group in feature_groups(kinds)]


@torch.no_grad()
def graph_edges(model: Model, event: ElementBatch, least: float = LEAST_WEIGHT) -> list[dict[str, Any]]:
    """Edges [listening element, element, weight] of every layer of an event, counted as in `links`; the strongest first.

    The graph of a network of the backbone `graph`. Nothing is computed anew: while the network runs, a copy of what its layers
    multiply is kept, and the softmax of it are the weights, the mean over the heads. Edges join elements of one bin only.
    """
    if model.settings.backbone != "graph":
        raise UsageError(f"a network of the backbone {model.settings.backbone!r} makes no graph; give one of `graph`")
    seen: list[Tensor] = []

    def watch(mixer: GraphMixer, query: Tensor, key: Tensor, value: Tensor, hashed: Any, layout: Layout) -> Tensor:
        seen.append(_weights(mixer, query, key, hashed, layout))
        return GraphMixer.attend(mixer, query, key, value, hashed, layout)

    mixers = [cast(GraphMixer, cast(Block, block).mixer) for block in model.blocks]
    try:
        for mixer in mixers:
            mixer.attend = partial(watch, mixer)  # type: ignore[method-assign]
        model.predict(event)
    finally:
        for mixer in mixers:
            del mixer.attend
    return [{"layer": layer, "edges": _edges(weight, least)} for layer, weight in enumerate(seen)]


def _weights(mixer: GraphMixer, query: Tensor, key: Tensor, hashed: Tensor | None, layout: Layout) -> Tensor:
    """Softmax over the bin of every element, mean over the heads."""
    bin_of = torch.zeros(len(query), dtype=torch.int64)
    if hashed is not None:
        bins = bins_of(hashed, layout, mixer.bin_size)
        assert bins.order_S is not None, "hashed elements are sorted"
        bin_of[bins.order_S] = torch.repeat_interleave(torch.arange(len(bins.offsets) - 1), bins.offsets.diff().long())
    product = torch.einsum("ihe,jhe->hij", query, key).masked_fill(bin_of[:, None] != bin_of, -torch.inf)
    return product.softmax(-1).mean(0)


def _edges(weight: Tensor, least: float) -> list[list[float]]:
    """The edges between two elements, without those of an element with itself."""
    strong = (weight >= least) & ~torch.eye(len(weight), dtype=torch.bool)
    listening, heard = torch.nonzero(strong, as_tuple=True)
    found = weight[listening, heard]
    order = found.argsort(descending=True, stable=True)
    return [[int(listening[place]), int(heard[place]), round(float(found[place]), 4)] for place in order.tolist()]
