"""Lines to draw: elements by how much they count, and the graph that a network makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ringflow.base.errors import UsageError
from ringflow.explain.attribution import Decided, Relevance
from ringflow.explain.run import graph_edges, links_of
from ringflow.models.graph import bins_of, hash_keys
from ringflow.models.model import Model
from ringflow.train.loss import losses
from ringflow.train.settings import LossSettings


def made_up(relevance: list[list[list[float]]]) -> Relevance:
    table = np.array(relevance, np.float32)
    candidates = len(table)
    nothing = torch.zeros(candidates, dtype=torch.int64)
    made = Decided(nothing, nothing, nothing, torch.zeros(candidates, 4), nothing == 0)
    return Relevance(made, table, np.zeros(candidates, np.float32), np.zeros(candidates, np.float32))


def test_lines_go_to_the_loudest_elements_with_their_sign() -> None:
    why = made_up([[[3.0, 0.0], [-1.0, -5.0], [1.0, -0.5], [0.0, 0.0]], [[0.0, 0.0]] * 4])
    found = links_of(why, most=2)
    assert found[0] == {
        "reconstruction": "model",
        "candidate": 0,
        "elements": [[1, pytest.approx(-6 / 10.5, abs=1e-4)], [0, pytest.approx(3 / 10.5, abs=1e-4)]],
    }
    assert found[1]["elements"] == []  # nothing says anything
    assert [element for element, _ in links_of(why)[0]["elements"]] == [1, 0, 2]
    assert links_of(why, least=0.5)[0]["elements"] == [[1, pytest.approx(-6 / 10.5, abs=1e-4)]]


def trained_graph(listening: Callable[..., Any], elements: Any) -> Model:
    """A few steps of a training, so that its graph is a learned one."""
    model: Model = listening("graph").model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(5):
        optimiser.zero_grad()
        losses(model.predict(elements), elements, LossSettings())["total"].backward()
        optimiser.step()
    return model.eval()


def test_edges_are_the_weights_that_the_network_uses(
    listening: Callable[..., Any], events: Callable[..., list[Any]]
) -> None:
    from fixtures.fake_events import fake_block
    from ringflow.elements.batch import from_block

    model = trained_graph(listening, from_block(fake_block(0, 20), with_targets=True))
    event = max(events(12), key=lambda one: one.num_elements)
    mixer = model.blocks[0].mixer
    assert event.num_elements > mixer.bin_size  # several bins
    seen: dict[str, Any] = {}
    convolve = mixer._convolve

    def watch(space: Any, value: Any, hashed: Any, layout: Any) -> Any:
        # Values that are one for one element only show who listens to it; a head takes so many of them at a time.
        width = value.shape[-1]
        one_hot = torch.nn.functional.pad(torch.eye(len(space)), (0, -len(space) % width))
        parts = [part[:, None].expand(-1, space.shape[1], -1) for part in one_hot.split(width, dim=1)]
        heard = torch.cat([convolve(space, part, hashed, layout).mean(1) for part in parts], dim=1)
        seen["weight"] = heard[:, : len(space)]
        seen["bins"] = bins_of(hashed, layout, mixer.bin_size)
        assert hash_keys(space.detach().flatten(1), mixer.hash_KD).equal(hashed)
        return convolve(space, value, hashed, layout)

    mixer._convolve = watch
    with torch.no_grad():
        before = model.predict(event)
    del mixer._convolve
    (layer,) = graph_edges(model, event, least=0.0)
    expected = seen["weight"]
    assert layer["layer"] == 0
    weight = torch.zeros(event.num_elements, event.num_elements)
    for listening_element, heard, value in layer["edges"]:
        weight[listening_element, heard] = value
    off_diagonal = ~torch.eye(len(weight), dtype=torch.bool)
    torch.testing.assert_close(weight[off_diagonal], expected[off_diagonal], atol=1e-4, rtol=0)
    assert (weight[off_diagonal] == 0).any()  # elements of different bins do not hear each other
    strong = graph_edges(model, event, least=0.2)[0]["edges"]
    assert 0 < len(strong) < len(layer["edges"])
    assert [edge[2] for edge in strong] == sorted((edge[2] for edge in strong), reverse=True)
    with torch.no_grad():  # nothing is left behind
        assert torch.equal(model.predict(event).particle_N, before.particle_N)


def test_an_event_of_one_bin_is_joined_as_a_whole(
    listening: Callable[..., Any], events: Callable[..., list[Any]]
) -> None:
    from ringflow.explain.deletion import only

    model = listening("graph").model
    event = only(events(1)[0], torch.arange(3))
    (layer,) = graph_edges(model, event, least=0.0)
    assert len(layer["edges"]) == 6
    total = torch.zeros(3)
    for heard_by, _, value in layer["edges"]:
        total[heard_by] += value
    assert (total < 1.0).all()  # the rest is what an element hears of itself


def test_other_backbones_make_no_graph(listening: Callable[..., Any], events: Callable[..., list[Any]]) -> None:
    with pytest.raises(UsageError, match="'attention' makes no graph"):
        graph_edges(listening().model, events(1)[0])
