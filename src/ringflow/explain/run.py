"""Explain events of a dataset or file: one of them in full, or what candidates of every class listen to in many.

Lines from candidates to elements, and the graph of a network that makes one, are written as an event display draws them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from ringflow.explain.attribution import MEANING, Explainer, Relevance, class_name
from ringflow.explain.deletion import Change, deletions, distances, verdicts
from ringflow.infer.inputs import EventInput, open_input
from ringflow.infer.shipped import model_file
from ringflow.models.attention import Block, Layout
from ringflow.models.file import load_model
from ringflow.models.graph import GraphMixer, bins_of
from ringflow.models.model import Model

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


#: Lines of a candidate at most, and the least share of its weight that is worth one.
MOST, LEAST_SHARE = 8, 0.02


def links_of(why: Relevance, *, most: int = MOST, least: float = LEAST_SHARE) -> list[dict[str, Any]]:
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


#: Weaker edges are left out.
LEAST_WEIGHT = 0.02


@torch.no_grad()
def graph_edges(model: Model, event: ElementBatch, least: float = LEAST_WEIGHT) -> list[dict[str, Any]]:
    """Edges [listening element, element, weight] of every layer of an event, counted as in `links`; the strongest first."""
    if model.settings.backbone != "graph":
        raise UsageError(f"a network of the backbone {model.settings.backbone!r} makes no graph; give one of `graph`")
    mixers = [cast(GraphMixer, cast(Block, block).mixer) for block in model.blocks]
    seen: list[Tensor] = []
    with _watched(mixers, seen.append):
        model.predict(event)
    return [{"layer": layer, "edges": _edges(weight, least)} for layer, weight in enumerate(seen)]


@contextmanager
def _watched(mixers: list[GraphMixer], see: Callable[[Tensor], None]) -> Iterator[None]:
    """While it lasts, every layer shows its weights [element, element]."""

    def watch(mixer: GraphMixer) -> Callable[..., Tensor]:
        def attend(query: Tensor, key: Tensor, value: Tensor, hashed: Tensor | None, layout: Layout) -> Tensor:
            see(_weights(mixer, query, key, hashed, layout))
            return GraphMixer.attend(mixer, query, key, value, hashed, layout)

        return attend

    for mixer in mixers:
        mixer.attend = watch(mixer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for mixer in mixers:
            del mixer.attend


def _weights(mixer: GraphMixer, query: Tensor, key: Tensor, hashed: Tensor | None, layout: Layout) -> Tensor:
    """Softmax over the bin of every element, mean over the heads."""
    number = len(query)
    bin_of = torch.zeros(number, dtype=torch.int64)
    if hashed is not None:
        bins = bins_of(hashed, layout, mixer.bin_size)
        assert bins.order_S is not None, "hashed elements are sorted"
        places = torch.repeat_interleave(torch.arange(len(bins.offsets) - 1), bins.offsets.diff().long())
        bin_of[bins.order_S] = places
    apart = bin_of[:, None] != bin_of
    product = torch.einsum("ihe,jhe->hij", query, key).masked_fill(apart, -torch.inf)
    return product.softmax(-1).mean(0)


def _edges(weight: Tensor, least: float) -> list[list[float]]:
    """The edges between two elements, without those of an element with itself."""
    strong = (weight >= least) & ~torch.eye(len(weight), dtype=torch.bool)
    listening, heard = torch.nonzero(strong, as_tuple=True)
    found = weight[listening, heard]
    order = found.argsort(descending=True, stable=True)
    return [[int(listening[place]), int(heard[place]), round(float(found[place]), 4)] for place in order.tolist()]


#: Candidates of a class and event that averages are made of.
PER_CLASS = 4


@dataclass(frozen=True)
class ExplainRequest:
    """What is to be explained, and how."""

    source: Path
    model: Path | None = None
    event: int | None = None
    events: int = 20
    split: str | None = None
    profile: str | None = None
    output: str = "class"
    method: str = "integrated-gradients"
    baseline: str = "hidden"
    steps: int = 8
    with_links: bool = False
    with_graph: bool = False

    @property
    def all_candidates(self) -> bool:
        """Whether all candidates of an event are explained, or some of every class."""
        return self.event is not None or self.with_links


def explain(request: ExplainRequest) -> dict[str, Any]:
    """Averages, deletion test and what was asked for of single events, ready for JSON."""
    path = model_file(request.model)
    if path.suffix == ".onnx":
        raise UsageError(f"{path} is an ONNX file, which has no gradients; give the model it was exported from")
    loaded = load_model(path)
    explainer = Explainer(
        loaded, output=request.output, method=request.method, baseline=request.baseline, steps=request.steps
    )
    if request.with_graph and loaded.model.settings.backbone != "graph":
        raise UsageError(f"{path} has the backbone {loaded.model.settings.backbone!r}, which makes no graph")
    given = open_input(request.source, request.split, _needed(request), request.profile)
    for note in given.notes:
        say(note)
    work = _Work(explainer, request)
    with progress(1 if request.event is not None else given.num_events, "explaining") as advance:
        for index, number, event in _events(given, loaded.model, request.event):
            work.add(index, number, event)
            advance(1)
    return {
        "source": str(request.source),
        "model": describe_input(path),
        "output": request.output,
        "meaning": MEANING[request.output],
        "method": request.method,
        "baseline": request.baseline,
        "steps": request.steps,
        **work.result(),
    }


class _Work:
    """What comes together event by event."""

    def __init__(self, explainer: Explainer, request: ExplainRequest) -> None:
        self._explainer, self._request = explainer, request
        self._averages = Averages(explainer.loaded.model.kinds)
        self._changes: list[Change] = []
        self._single: list[dict[str, Any]] = []
        self._candidates = 0
        self._missed, self._explained, self._seconds = 0.0, 0.0, 0.0
        self._events = 0

    def add(self, index: int, number: int, event: ElementBatch) -> None:
        """Explain one more event."""
        started = time.perf_counter()
        why = self._why(event, number)
        self._seconds += time.perf_counter() - started
        self._events += 1
        self._candidates += len(why)
        self._missed += float(np.abs(why.error).sum())
        self._explained += float(np.abs(why.output - why.at_baseline).sum())
        self._averages.add(event, why)
        if self._request.event is None:  # one event proves nothing
            self._changes += deletions(self._explainer, event, why, number)
        single: dict[str, Any] = {"index": index, "event_number": number}
        if self._request.event is not None:
            single |= describe_event(event, why, self._explainer.loaded.model.kinds)
        if self._request.with_links:
            single["links"] = links_of(why)
        if self._request.with_graph:
            single["graph"] = graph_edges(self._explainer.loaded.model, event)
        self._single.append(single)

    def _why(self, event: ElementBatch, number: int) -> Relevance:
        if self._request.all_candidates:
            return self._explainer.explain(event)
        labels = self._explainer.network(event).made.label.numpy()
        return self._explainer.explain(event, torch.from_numpy(some_of_every_class(labels, PER_CLASS, number)))

    def result(self) -> dict[str, Any]:
        """All of it."""
        deletion = verdicts(self._changes)
        return {
            "events": self._events,
            "candidates": self._candidates,
            "seconds_per_event": round(self._seconds / max(self._events, 1), 3),
            # Of all that is explained, how much an integral over few points misses or invents.
            "incomplete": self._missed / self._explained if self._explained else None,
            "classes": self._averages.classes(),
            "distances": self._averages.distances(),
            "features": self._averages.features(),
            "deletion": deletion,
            "ok": all(row["ok"] for row in deletion if row["judged"]),
            "single": self._single,
        }


def _needed(request: ExplainRequest) -> int:
    return request.events if request.event is None else request.event + 1


def _events(given: EventInput, model: Model, only: int | None) -> Iterator[tuple[int, int, ElementBatch]]:
    """Place, number and elements of every event, or of one."""
    if only is not None and only >= given.num_events:
        raise UsageError(f"--event {only}: there are {given.num_events} events here, counted from 0")
    start = 0
    for block in given.blocks(model.kinds):
        wanted = range(len(block)) if only is None else range(max(only - start, 0), min(only - start + 1, len(block)))
        for place in wanted:
            one = block.take(place, place + 1)
            require_finite(one, {kind: essential_columns(kind) for kind in model.kinds})
            yield start + place, int(one.event_number[0]), from_block(one, model.settings.calorimeter)
        start += len(block)
