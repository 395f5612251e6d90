"""The graph that a network of the backbone `graph` makes of an event: who listens to whom, in every layer.

Nothing is computed anew: while the network runs, a copy of what its layers multiply is kept, and the softmax of it are the
weights of the edges, the mean over the heads. Edges join elements of one bin only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from ringflow.base.errors import UsageError
from ringflow.elements.batch import ElementBatch
from ringflow.models.attention import Block, Layout
from ringflow.models.graph import GraphMixer, bins_of
from ringflow.models.model import Model

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
