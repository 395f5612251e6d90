"""The event display in a real browser: every control is used, nothing is asked of other machines, nothing complains."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from fixtures.chromium import CHROMIUM, NO_WEBGL, PATIENCE, SOFTWARE_WEBGL, Chromium
from fixtures.display_server import served
from ringflow.display.source import EventSource, open_source
from ringflow.display.static import add_errors, write_static
from ringflow.recipes.simulate import simulate
from ringflow.sim.settings import SimulateSettings

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
    pytest.mark.xdist_group("display"),  # one browser for all of them
]

EVENTS = 4
STATE = "ringflow.state"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("display") / "zuds"
    settings = ["generator.sample=zuds_91", "generator.seed=5", f"production.events={EVENTS}"]
    simulate(SimulateSettings.resolve(None, settings), out)
    return out


@pytest.fixture(scope="module")
def url(dataset: Path) -> Iterator[str]:
    with served(open_source(dataset), 1) as address:
        yield address


@pytest.fixture(scope="module")
def page(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(*SOFTWARE_WEBGL) as browser:
        browser.call(
            "Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path_factory.mktemp("downloads"))
        )
        browser.open(url)
        yield browser


@pytest.fixture
def fresh(page: Chromium, url: str) -> Iterator[Chromium]:
    """The page as it comes; after the test nothing may have been complained about, and only the server asked."""
    page.events.clear()
    page.open(url)
    yield page
    assert page.complaints() == []
    assert page.requests()
    assert [asked for asked in page.requests() if not asked.startswith((url, "data:", "blob:" + url))] == []


def downloaded(folder: Path, suffix: str) -> bytes:
    """A file that the browser saved, once it is whole."""
    ends = time.monotonic() + PATIENCE
    while not (found := [path for path in folder.iterdir() if path.name.endswith(suffix)]):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return found[0].read_bytes()


def test_it_begins_with_three_views_in_space(fresh: Chromium) -> None:
    assert fresh.js(f"{STATE}.index") == 1
    assert fresh.js(f"{STATE}.views") == ["target", "model", "baseline"]
    assert fresh.js("ringflow.frames() > 0")
    assert fresh.js("document.querySelectorAll('.view').length") == 3
    told = fresh.js("document.getElementById('space').getAttribute('aria-label')")
    assert "Truth" in told
    assert "Model" in told


def test_events_are_gone_through(fresh: Chromium) -> None:
    def wait_for(index: int) -> None:
        fresh.until(f"{STATE}.scene.event.index === {index}")

    fresh.click_on("#next")
    wait_for(2)
    fresh.click_on("#previous")
    wait_for(1)
    fresh.press("n")
    wait_for(2)
    fresh.press("ArrowRight")
    wait_for(3)
    fresh.press("p")
    wait_for(2)
    fresh.choose("#number", "0")
    wait_for(0)
    fresh.choose("#number", "77")
    assert "No event 77" in fresh.js("document.getElementById('status').textContent")
    fresh.press("g")
    assert fresh.js("document.activeElement.id") == "number"


def test_the_worst_come_first(fresh: Chromium, dataset: Path) -> None:
    source, errors = open_source(dataset), dict[str, dict[str, list[float]]]()
    for event in range(EVENTS):
        add_errors(errors, source.errors(event))
    for measure in ("jet", "energy"):
        worst = max(range(EVENTS), key=lambda event: errors["baseline"][measure][event])
        fresh.choose("#order", f"{measure} baseline")
        fresh.until(f"{STATE}.scene.event.index === {worst}")
        fresh.until("document.getElementById('place').textContent === '1 of 4'")
    fresh.js("document.activeElement.blur()")
    for view, name in enumerate(("model", "model", "baseline")):  # with the truth in the active view the model is meant
        fresh.js(f"{STATE}.active = {view}")
        fresh.press("w")
        fresh.until(f"document.getElementById('order').value === 'jet {name}'")
        worst = max(range(EVENTS), key=lambda event: errors[name]["jet"][event])
        fresh.until(f"{STATE}.scene.event.index === {worst}")
    time.sleep(1.0)  # the model's worst may be the same one: nothing tells when the page has gone to it once more
    fresh.press("n")
    fresh.until(f"{STATE}.scene.event.index !== {worst}")
    fresh.press("w")  # it goes there, and never back
    fresh.until(f"{STATE}.scene.event.index === {worst}")
    fresh.press("w")
    assert fresh.js(f"{STATE}.index") == worst
    assert fresh.js("document.getElementById('order').value") == "jet baseline"
    fresh.press("o")
    fresh.until("document.getElementById('order').value === ''")
    assert fresh.js(f"{STATE}.index") == worst
    fresh.press("?")
    assert "worst event of the model" in fresh.js("document.getElementById('keys').textContent")


class Held:
    """Events that are computed when a test lets them."""

    def __init__(self, source: EventSource) -> None:
        self._source, self.scenes, self.ranking = source, Event(), Event()
        self.asked: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def scene(self, index: int) -> dict[str, Any]:
        self.asked.append(index)
        assert index == 1 or self.scenes.wait(PATIENCE)
        return self._source.scene(index)

    def errors(self, index: int) -> dict[str, dict[str, float]]:
        time.sleep(1.0 if index == 0 else 0.0)  # so long that it is answered with the first one
        assert index == 0 or self.ranking.wait(PATIENCE)
        jet = [1.0, 2.0, 9.0, 3.0][index]
        return {name: {"jet": jet, "energy": jet} for name in ("model", "baseline", "perfect")}


@pytest.fixture
def held(dataset: Path) -> Iterator[Held]:
    source = Held(open_source(dataset))
    yield source
    source.scenes.set()
    source.ranking.set()


def test_it_says_that_an_event_is_computed_and_then_shows_the_last_one_asked_for(page: Chromium, held: Held) -> None:
    busy = "document.getElementById('stage').ariaBusy === 'true'"
    with served(held, 1) as url:
        page.open(url)
        assert not page.js(busy)
        page.press("n")
        page.until(busy)
        assert page.js("document.getElementById('loading').checkVisibility()")
        assert page.js("document.getElementById('status').textContent") == "Computing event 2 …"
        page.press("n")
        page.press("p")
        page.press("n")
        assert page.js("document.getElementById('status').textContent") == "Computing event 3 …"
        held.scenes.set()
        page.until(f"{STATE}.scene.event.index === 3")
        assert not page.js(busy)
        assert not page.js("document.getElementById('loading').checkVisibility()")
        assert page.js("document.getElementById('status').textContent") == ""
        assert held.asked == [1, 2, 3]


def test_the_worst_is_gone_to_again_when_all_events_are_known(page: Chromium, held: Held) -> None:
    held.scenes.set()
    with served(held, 1) as url:
        page.open(url)
        page.press("w")
        page.until(f"{STATE}.scene.event.index === 0")
        page.until("document.getElementById('status').textContent === '1 of 4 events ordered'")
        held.ranking.set()
        page.until(f"{STATE}.scene.event.index === 2")


def test_colours_of_energy_have_scales_with_units(fresh: Chromium) -> None:
    scales = "[...document.querySelectorAll('#legend .scale')].map((one) => one.firstChild.textContent)"
    momentum = "momentum of tracks and candidates [GeV]"
    assert fresh.js(scales) == []
    fresh.press("2")
    assert fresh.js(scales) == ["hit energy [MeV]", momentum]
    fresh.press("c")
    assert fresh.js(scales) == ["hit energy [MeV]", "cluster energy [GeV]", momentum]
    ticks = fresh.js(
        "[...document.querySelectorAll('.ticks')].map((one) => [...one.children].map((t) => +t.textContent))"
    )
    for marks in ticks:
        assert 2 <= len(marks) <= 5
        assert marks == sorted(marks)
    bars = fresh.js(
        "[...document.querySelectorAll('#legend canvas')].map((c) => [...c.getContext('2d').getImageData(0, 0, 256, 1).data])"
    )
    assert bars[0] == bars[1] != bars[2]


def follows(page: Chromium, *parts: str) -> str:
    """The fragment of the address, once it has followed what was done: it has these parts."""
    page.until(f"{json.dumps(parts)}.every((part) => location.hash.slice(1).split('&').includes(part))")
    found: str = page.js("location.hash")
    return found


def test_a_link_shows_what_it_was_copied_from(fresh: Chromium, url: str) -> None:
    assert follows(fresh, "event=1") == "#event=1"
    fresh.press("n")
    fresh.until(f"{STATE}.scene.event.index === 2")
    fresh.choose(".view:nth-of-type(1) select", "perfect")
    fresh.choose("#count", "2")
    fresh.js("document.activeElement.blur()")
    for key in "2chzvj":
        fresh.press(key)
    fresh.choose("#pt", "40")
    fresh.click_on("#classes input[name=muon]")
    fresh.choose("#order", "explained")  # not offered here
    kept = "(({index, order, views, active, colour, minPt, without, layers, selected, look}) => JSON.stringify("
    kept += f"[index, order, views, active, colour, minPt, [...without], layers, selected, look]))({STATE})"
    shown, selected = fresh.js(kept), fresh.js(f"{STATE}.selected.candidate")
    parts = ["event=2", "views=perfect,model", "active=1", "colour=energy", "pt=1.6", "without=muon", "on=clusters"]
    link = follows(fresh, *parts, "off=hits", "look=front", f"selected=model,{selected}")
    fresh.call("Page.navigate", url="about:blank")
    fresh.open(url + link)
    assert fresh.js(kept) == shown
    assert follows(fresh, *parts) == link
    assert [fresh.js(f"document.getElementById({name!r}).value") for name in ("colour", "pt", "number")] == [
        "energy", "40", "2"]  # fmt: skip
    camera = "ringflow.space().camera.position.toArray().map(Math.round)"
    fresh.click(300, 300, to=(340, 330))
    turned = fresh.js(camera)
    link = follows(fresh, f"look={','.join(map(str, fresh.js(f'{STATE}.look')))}")
    fresh.call("Page.navigate", url="about:blank")
    fresh.open(url + link)
    assert fresh.js(camera) == turned


@pytest.mark.heavy
def test_one_goes_back_to_events_and_not_through_every_change(fresh: Chromium, url: str) -> None:
    fresh.open(f"{url}?webgl=off")
    follows(fresh, "event=1")
    steps = fresh.js("history.length")
    for value in range(10):
        fresh.choose("#pt", str(value))
    fresh.press("2")
    follows(fresh, "event=1", "colour=energy", f"pt={fresh.js(f'{STATE}.minPt')}")
    assert fresh.js("history.length") == steps
    fresh.js("document.activeElement.blur(); performance.now = () => 0")  # however slow this machine is
    fresh.press("n")
    fresh.until("location.hash.startsWith('#event=2')")
    fresh.press("n")  # at once, so that it is the same step
    fresh.until("location.hash.startsWith('#event=3')")
    fresh.press("1")
    fresh.until("!location.hash.includes('colour')")
    fresh.js("history.back()")
    fresh.until(f"{STATE}.scene.event.index === 1")
    assert fresh.js(f"{STATE}.colour") == "energy"
    fresh.js("history.forward()")
    fresh.until(f"{STATE}.scene.event.index === 3")
    assert fresh.js(f"{STATE}.colour") == "class"


NONSENSE = [
    "event=77",
    "event=-1",
    "event=1.5",
    "event=",
    "event=%ff",
    "views=&active=9",
    "views=nobody,<b>",
    "colour=loud",
    "pt=1e9",
    "pt=x",
    "without=nothing,%",
    "on=off&off=on",
    "graph=-3",
    "selected=model",
    "selected=model,99999",
    "selected=nobody,0",
    "look=1,2,3",
    "look=0,0,0,0,0,0",
    "look=NaN,1,1,1,1,1",
    "order=jet+nobody",
    "&&=&=,=",
    "__proto__=1",
]


@pytest.mark.heavy
def test_nonsense_in_the_address_is_ignored(fresh: Chromium, url: str) -> None:
    fresh.call("Page.navigate", url="about:blank")
    fresh.open(f"{url}?webgl=off#{'&'.join(NONSENSE)}")  # flat, which is drawn sooner
    fresh.until("location.hash === '#event=1'")
    for nonsense in NONSENSE:
        fresh.js(f"location.hash = {nonsense!r}")
        fresh.until("location.hash === '#event=1'")


def test_a_candidate_is_selected_everywhere(fresh: Chromium) -> None:
    selected = f"{STATE}.selected"
    shown = "document.getElementById('selected').textContent"
    fresh.press("v")
    fresh.press("j")
    assert fresh.js(f"{selected}.name") == "model"
    assert "energy" in fresh.js(shown)
    first = fresh.js(f"{selected}.candidate")
    fresh.press("j")
    assert fresh.js(f"{selected}.candidate") != first
    fresh.press("k")
    assert fresh.js(f"{selected}.candidate") == first
    assert "truth" in fresh.js(shown)
    fresh.press("Escape")
    assert fresh.js(selected) is None
    fresh.click_on("#list > div:nth-child(2)")
    assert fresh.js(f"{selected}.name") == "model"
    for pane in ("etaphi", "xy", "rz"):
        fresh.js("ringflow.actions.clear()")
        fresh.js(f"document.getElementById({pane!r}).scrollIntoView()")
        where = fresh.js(f"ringflow.where({pane!r}, 0)")
        fresh.click(*where)
        assert fresh.js(f"{selected}?.name") == "model", pane
    fresh.js("ringflow.actions.clear()")
    fresh.drawn()
    fresh.click(*fresh.js("ringflow.where('space', 0)"))
    assert fresh.js(f"{selected}?.name") == "target"


def test_cuts_and_layers(fresh: Chromium) -> None:
    rows = "document.querySelectorAll('#list > div').length"
    everything = fresh.js(rows)
    fresh.choose("#pt", "40")
    softer = fresh.js(rows)
    assert 0 < softer < everything
    fresh.choose("#pt", "0")
    for box in range(1, fresh.js("document.querySelectorAll('#classes label').length") + 1):
        name = fresh.js(f"document.querySelector('#classes label:nth-child({box}) input').name")
        labels = fresh.js(f"{STATE}.scene.reconstructions[0].candidates.label")
        of_class = labels.count(fresh.js(f"{STATE}.scene.classes").index(name))
        fresh.click_on(f"#classes label:nth-child({box}) input")
        assert fresh.js(rows) == everything - of_class
        fresh.click_on(f"#classes label:nth-child({box}) input")
    for layer in ("hits", "clusters", "tracks", "candidates", "jets", "detector", "yoke"):
        before = fresh.js(f"{STATE}.layers.{layer}")
        fresh.click_on(f"#layers input[name={layer}]")
        fresh.drawn()
        assert fresh.js(f"{STATE}.layers.{layer}") is not before
    fresh.js("document.activeElement.blur()")
    for key, layer in {"h": "hits", "c": "clusters", "r": "tracks", "d": "detector"}.items():
        before = fresh.js(f"{STATE}.layers.{layer}")
        fresh.press(key)
        assert fresh.js(f"{STATE}.layers.{layer}") is not before


def test_colours_views_and_the_camera(fresh: Chromium, tmp_path: Path) -> None:
    before = fresh.picture(tmp_path / "class.png")
    for key, mode in {"2": "energy", "3": "subsystem", "4": "particle", "5": "candidate"}.items():
        fresh.press(key)
        fresh.drawn()
        assert fresh.js("document.getElementById('colour').value") == mode
        assert fresh.picture(tmp_path / f"{mode}.png") != before
        assert fresh.js("document.getElementById('legend').textContent") or mode == "energy"
    fresh.choose("#colour", "class")
    places = set()
    for key in "zxy0":
        fresh.press(key)
        places.add(tuple(round(place) for place in fresh.js("ringflow.space().camera.position.toArray()")))
    assert len(places) == 4
    fresh.choose("#camera", "front")
    frames = fresh.js("ringflow.frames()")
    fresh.click(300, 300, to=(340, 330))
    fresh.drawn()
    assert tuple(round(p) for p in fresh.js("ringflow.space().camera.position.toArray()")) not in places
    assert fresh.js("ringflow.frames()") > frames
    for count in "1423":
        fresh.choose("#count", count)
        assert fresh.js("document.querySelectorAll('.view').length") == int(count)
    fresh.choose(".view:nth-of-type(1) select", "perfect")
    assert fresh.js(f"{STATE}.views[0]") == "perfect"


def test_it_draws_only_when_something_changes(fresh: Chromium) -> None:
    fresh.drawn()
    frames = fresh.js("ringflow.frames()")
    for _ in range(5):
        fresh.drawn()
    assert fresh.js("ringflow.frames()") == frames


def test_pictures_and_events_are_saved(fresh: Chromium, tmp_path: Path) -> None:
    fresh.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    fresh.click_on("#picture")
    assert downloaded(tmp_path, ".png").startswith(b"\x89PNG")
    fresh.click_on("#phoenix")
    event = json.loads(downloaded(tmp_path, ".phoenix.json"))["event 1"]
    assert len(event["Tracks"]["model"]) == fresh.js(f"{STATE}.scene.reconstructions[1].candidates.label.length")


def test_light_dark_and_help(fresh: Chromium) -> None:
    theme = "document.documentElement.dataset.theme"
    assert fresh.js(theme) == "light"
    fresh.click_on("#theme")
    assert fresh.js(theme) == "dark"
    fresh.press("t")
    assert fresh.js(theme) == "light"
    fresh.press("?")
    assert fresh.js("document.getElementById('keys').open")
    fresh.click_on("#keys button")
    fresh.click_on("#help")
    assert "next event" in fresh.js("document.getElementById('keys').textContent")
    fresh.press("Escape")


def test_without_webgl_the_views_are_flat(url: str, tmp_path: Path) -> None:
    with Chromium(*NO_WEBGL, size=(900, 700), dark=True) as browser:
        browser.open(url)
        assert browser.js("ringflow.space()") is None
        assert browser.js("document.documentElement.dataset.theme") == "dark"
        assert browser.js("document.querySelectorAll('.view > canvas').length") == 3
        browser.click(*browser.js("ringflow.where('flat', 0)"))
        assert browser.js(f"{STATE}.selected?.name") == "target"
        assert browser.complaints() == []


def test_a_page_without_a_server(dataset: Path, tmp_path: Path) -> None:
    page = write_static(open_source(dataset), [1, 3], tmp_path / "static")
    with Chromium(*SOFTWARE_WEBGL) as browser:
        browser.open(page.as_uri())
        assert browser.js(f"{STATE}.index") == 1
        browser.press("n")
        browser.until(f"{STATE}.scene.event.index === 3")
        browser.choose("#order", "energy model")
        browser.until("document.getElementById('place').textContent === '1 of 2'")
        browser.choose("#order", "")
        browser.press("5")
        browser.choose("#number", "3")
        assert follows(browser, "event=3", "colour=candidate") == "#event=3&colour=candidate"
        assert browser.complaints() == []
        assert browser.requests() == [page.as_uri()]
        link = f"{page.as_uri()}#event=3&colour=energy"
        browser.call("Page.navigate", url="about:blank")
        browser.open(link)
        assert browser.js(f"[{STATE}.scene.event.index, {STATE}.colour]") == [3, "energy"]
        assert browser.js("document.getElementById('phoenix').checkVisibility()")
        assert Path(browser.js("document.getElementById('phoenix').href").removeprefix("file://")).is_file()
