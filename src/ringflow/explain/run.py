"""Explain events of a dataset or file: one of them in full, or what candidates of every class listen to in many."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ringflow.base.errors import UsageError
from ringflow.base.log import progress, say
from ringflow.base.provenance import describe_input
from ringflow.elements.batch import ElementBatch, from_block
from ringflow.elements.features import essential_columns
from ringflow.event.block import require_finite
from ringflow.explain.classes import Averages, some_of_every_class
from ringflow.explain.deletion import Change, deletions, verdicts
from ringflow.explain.event import describe_event
from ringflow.explain.graph_edges import graph_edges
from ringflow.explain.links import links as links_of
from ringflow.explain.outputs import MEANING
from ringflow.explain.relevance import Explainer, Relevance
from ringflow.infer.shipped import model_file
from ringflow.models.file import load_model
from ringflow.models.model import Model
from ringflow.recipes.inputs import EventInput, open_input

#: Candidates of a class and event that averages are made of.
PER_CLASS = 4


@dataclass(frozen=True)
class Request:
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


def explain(request: Request) -> dict[str, Any]:
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

    def __init__(self, explainer: Explainer, request: Request) -> None:
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


def _needed(request: Request) -> int:
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
