"""Explanations in the event display, in a real browser: lines to what a candidate listens to, and the learned graph."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.chromium import CHROMIUM, NO_WEBGL, SOFTWARE_WEBGL, Chromium
from fixtures.display_server import served
from ringflow.base.provenance import describe_input
from ringflow.display.source import open_source
from ringflow.infer.shipped import MODEL
from ringflow.recipes.simulate import simulate
from ringflow.sim.settings import SimulateSettings

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
    pytest.mark.xdist_group("display"),  # one browser at a time
]

STATE = "ringflow.state"
#: What the flat pictures show, and where lines of the second view begin in space, if there is one.
DRAWN = """[
    ...["etaphi", "xy", "rz"].map((pane) => document.getElementById(pane).toDataURL()),
    ...(ringflow.space() ? [JSON.stringify(ringflow.space().contents[1].content.thin.children.map(
        ({ geometry }) => [...geometry.attributes.position.array.slice(0, 6)]))] : []),
]"""
SHARES = "[...document.querySelectorAll('.heard .share')].map((one) => one.textContent)"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("explained") / "zuds"
    settings = ["generator.sample=zuds_91", "generator.seed=5", "production.events=3"]
    simulate(SimulateSettings.resolve(None, settings), out)
    return out


@pytest.fixture(scope="module")
def links(dataset: Path) -> Path:
    """What every candidate of event 1 listens to, two tracks, and a graph of two layers."""
    made = {one["name"]: one for one in open_source(dataset).scene(1)["reconstructions"]}["model"]["candidates"]
    elements = [[[0, 0.5], [1, -0.25]] for _ in made["label"]]
    heard = [{"reconstruction": "model", "candidate": i, "elements": one} for i, one in enumerate(elements)]
    graph = [{"layer": 0, "edges": [[0, 1, 0.5], [1, 2, 0.1]]}, {"layer": 1, "edges": [[2, 3, 0.4]]}]
    event = {"index": 1, "event_number": 1, "links": heard, "graph": graph}
    path = dataset.parent / "links.json"
    path.write_text(json.dumps({"source": str(dataset), "model": describe_input(MODEL), "events": [event]}))
    return path


@pytest.fixture(scope="module")
def url(dataset: Path, links: Path) -> Iterator[str]:
    with served(open_source(dataset, links=links), 1) as address:
        yield address


@pytest.fixture(params=[SOFTWARE_WEBGL, NO_WEBGL], ids=["space", "flat"])
def fresh(request: pytest.FixtureRequest, url: str) -> Iterator[Chromium]:
    """The page in space and flat; nothing may be complained about."""
    with Chromium(*request.param, size=(1400, 800)) as browser:
        browser.open(url)
        yield browser
        assert browser.complaints() == []


def test_lines_and_graph_are_drawn_and_told(fresh: Chromium) -> None:
    def all_changed(before: list[str], what: str) -> list[str]:
        """Every flat picture, and the number of lines in space."""
        fresh.drawn()
        after: list[str] = fresh.js(DRAWN)
        assert [old == new for old, new in zip(before, after, strict=True)] == [False] * len(before), what
        return after

    fresh.press("v")
    fresh.drawn()
    drawn: list[str] = fresh.js(DRAWN)
    assert len(drawn) == (4 if fresh.js("ringflow.space() !== null") else 3)
    fresh.press("]")
    assert fresh.js("document.getElementById('graph-layer').value") == "1"
    drawn = all_changed(drawn, "the graph of the next layer")
    fresh.press("m")
    drawn = all_changed(drawn, "no graph")
    fresh.choose("#graph-layer", "0")
    fresh.click_on("#layers input[name=graph]")
    assert fresh.js(f"[{STATE}.graphLayer, {STATE}.layers.graph]") == [0, True]
    drawn = all_changed(drawn, "the graph again")
    fresh.press("[")
    assert fresh.js(f"{STATE}.graphLayer") == 0
    fresh.press("j")
    drawn = all_changed(drawn, "a candidate")
    assert fresh.js(SHARES) == ["50 %", "25 %"]
    told = fresh.js("document.getElementById('selected').textContent")
    assert re.search(r"track 0( \(own\))?50 %for", told)
    assert re.search(r"track 1( \(own\))?25 %against", told)
    fresh.press("l")
    all_changed(drawn, "no lines")
    fresh.click_on("#layers input[name=links]")
    fresh.drawn()
    assert fresh.js(DRAWN) == drawn


def test_other_events_have_none_of_it(fresh: Chromium) -> None:
    fresh.choose("#number", "2")
    fresh.until(f"{STATE}.scene.event.index === 2")
    assert not fresh.js("Boolean(document.querySelector('#graph-layer, #layers input[name=links]'))")
    fresh.js("document.activeElement.blur()")
    fresh.press("m")
    assert "no graph" in fresh.js("document.getElementById('status').textContent")
    assert fresh.js(f"{STATE}.layers.graph")
    fresh.choose("#order", "explained")
    fresh.until(f"{STATE}.scene.event.index === 1")
    assert fresh.js("document.getElementById('place').textContent") == "1 of 3"
    assert fresh.js("Boolean(document.querySelector('#graph-layer'))")
