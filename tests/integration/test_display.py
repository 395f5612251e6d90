"""The event display in a real browser: every control is used, nothing is asked of other machines, nothing complains."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from chromium import CHROMIUM, NO_WEBGL, PATIENCE, SOFTWARE_WEBGL, Chromium
from display_server import served

from ringflow.display.source import open_source
from ringflow.display.static import write_static
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
    errors = open_source(dataset).errors(0, EVENTS)
    assert errors is not None
    for measure in ("jet", "energy"):
        worst = max(range(EVENTS), key=lambda event: errors["baseline"][measure][event])
        fresh.choose("#order", f"{measure} baseline")
        fresh.until(f"{STATE}.scene.event.index === {worst}")
        fresh.until("document.getElementById('place').textContent === '1 of 4'")
    fresh.js("document.activeElement.blur()")
    fresh.press("w")
    fresh.until("document.getElementById('order').value === ''")
    fresh.press("v")
    fresh.press("w")
    fresh.until("document.getElementById('order').value === 'jet model'")


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
        assert browser.complaints() == []
        assert browser.requests() == [page.as_uri()]
        assert Path(browser.js("document.getElementById('phoenix').href").removeprefix("file://")).is_file()
