"""The report: one valid page that loads nothing, says the verdict first and shows every sample."""

from __future__ import annotations

import base64
import html
import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringflow.evaluate import report
from ringflow.evaluate.plots.figures import pictures
from ringflow.evaluate.report import write_report
from ringflow.evaluate.sheet import book, load_histogram
from ringflow.event.block import Collection, EventBlock

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = '<script>alert("x")</script>'
#: Some of every group; `test_plots.py` draws them all.
DRAWN = (
    "jet_response",
    "jet_width_pt",
    "met_response",
    "met_width",
    "confusion_1",
    "particles_per_event",
    "charged_hadron_pt",
)
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Checks that tags close in order, and collects what the page refers to."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def written(
    books: dict[str, Any], _scored: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, int]:
    """A report of two samples, and the number of figures it must have."""
    bare = {**book(), "particles_per_event": books["baseline"]["particles_per_event"]}
    results = {
        "samples": {
            "ttbar": _scored,
            "outside": {
                "truth": False,
                "not_available": {"target": "the dataset has no truth"},
                "reconstructions": {"mine": {"particles_per_event": {"value": 90.0, "lo": 89.0, "hi": 91.0}}},
            },
        },
        "provenance": {
            "ringflow": "1.2.3",
            "code": {"commit": "abcdef", "dirty": False},
            "settings": {"seeds": [1, 2]},
            "inputs": [{"file": "manifest.json", "sha256": "0123"}],
        },
    }
    event = np.random.default_rng(1).normal(0, 9, (4, 40)).astype(np.float32)
    columns = dict(zip(("px", "py", "pz", "energy"), event, strict=True)) | {"label": np.repeat([1, 3], 20)}
    seen = Collection(np.array([40]), columns)
    events = {"ttbar": (EventBlock(np.array([7]), {"target": seen}), {"baseline": seen, "model": seen})}
    histograms = {"ttbar": books, "outside": {"mine": bare}}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(report, "pictures", lambda *of: [one for one in pictures(*of) if one.key in DRAWN])
        page = write_report(results, histograms, tmp_path_factory.mktemp("report"), events)
    return page, len(DRAWN) + 2 + 1


@pytest.fixture(scope="module")
def page(written: tuple[Path, int]) -> Page:
    return Page(written[0].read_text(encoding="utf-8"))


def test_the_page_loads_nothing(page: Page) -> None:
    for tag, attributes in page.tags:
        assert tag not in {"script", "link", "iframe", "object", "embed", "form", "base"}
        for name in ("src", "href", "srcset", "action", "poster", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/png;base64,", "#")), (tag, name)
    assert "url(" not in page.text
    assert "@import" not in page.text
    (policy,) = (meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert "default-src 'none'" in str(policy)
    anchors = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = [str(link["href"]).removeprefix("#") for link in page.all("a")]
    assert links == ["verdict", "sample-1", "sample-2", "provenance"]
    assert set(links) <= anchors


def test_every_figure_is_in_the_page_and_beside_it(page: Page, written: tuple[Path, int]) -> None:
    path, expected = written
    images = page.all("img")
    assert len(images) == len(page.all("figure")) == len(page.all("figcaption")) == expected
    contents = [base64.b64decode(str(image["src"]).split(",")[1]) for image in images]
    files = sorted((path.parent / "figures").rglob("*.png"))
    assert sorted(contents) == sorted(file.read_bytes() for file in files)
    assert all(len(str(image["alt"])) > 20 for image in images)
    assert (path.parent / "figures" / "1_ttbar" / "jet_response.svg").exists()
    assert set(load_histogram(path.parent / "figures" / "1_ttbar" / "jet_response.json")) == {
        "target",
        "perfect",
        "baseline",
        "model",
    }
    # Without truth there are no figures about it.
    assert [file.stem for file in (path.parent / "figures" / "2_outside").glob("*.png")] == ["particles_per_event"]
    assert path.stat().st_size < 2_500_000
    assert not list(path.parent.rglob(".*.part"))


def test_the_verdict_comes_first_then_samples_then_provenance(page: Page) -> None:
    places = [
        page.text.index(text)
        for text in (
            "Model is better than rule-based PF in all 8 metrics.",
            "within 1 % of 1, as it must be",
            "12,345",
            " ★",
            "has no truth: only what can be computed",
            "abcdef",
            "manifest.json",
        )
    ]
    assert places == sorted(places)
    assert "No truth target: the dataset has no truth." in page.text


def test_the_table_and_three_figures_are_open_and_the_rest_is_folded_by_topic(written: tuple[Path, int]) -> None:
    text = written[0].read_text(encoding="utf-8")
    sample = text.split('id="sample-1"')[1].split("</section>")[0]
    seen, *folds = sample.split("<details>")
    assert seen.count("<table") == 1
    assert seen.count("<figure>") == 3
    titles = [fold.split("</summary>")[0].removeprefix("<summary>") for fold in folds]
    assert titles == [
        "All metrics and what they are",
        "Jets",
        "Missing momentum, energy and masses",
        "All particles",
        "Charged hadrons",
        "Neutral hadrons",
        "Photons",
        "Electrons",
        "Muons",
        "One event",
    ]
    assert "<details open" not in text


def test_too_few_events_are_said_where_the_figure_would_be(scored: dict[str, Any], tmp_path: Path) -> None:
    few = book()
    few["jet_response"].fill(np.full(20, 30.0), np.ones(20))
    few["confusion"].fill([1] * 60, [1] * 60)
    results = {"samples": {"ttbar": {"reconstructions": {"model": scored["reconstructions"]["model"]}}}}
    page = Page(write_report(results, {"ttbar": {"model": few}}, tmp_path).read_text(encoding="utf-8"))
    assert "Jet response Too few to draw: 20 entries, and 50 are needed." in page.text
    drawn = {file.stem for file in (tmp_path / "figures" / "1_ttbar").glob("*.png")}
    assert "jet_response" not in drawn
    assert "confusion_1" in drawn


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
def test_nothing_is_wider_than_the_screen(written: tuple[Path, int], tmp_path: Path) -> None:
    """In a desktop's window and on a phone, folded and unfolded; on the first screen are the table and three figures."""
    page = html.escape(written[0].read_text(encoding="utf-8"))
    frames = "".join(f'<iframe width="{width}" height="900" srcdoc="{page}"></iframe>' for width in (1280, 390))
    script = """
    onload = () => {
      const found = [...document.querySelectorAll("iframe")].map((frame) => {
        const inside = frame.contentDocument, root = inside.documentElement;
        const images = [...inside.querySelectorAll("figure img")].slice(0, 3);
        const figures = images.map((image) => image.getBoundingClientRect().top);
        const closed = root.scrollWidth;
        inside.querySelectorAll("details").forEach((fold) => { fold.open = true; });
        const tables = [...inside.querySelectorAll(".stack")];
        const cut = tables.filter((table) => table.scrollWidth > table.parentElement.clientWidth);
        return {width: frame.contentWindow.innerWidth, closed, open: root.scrollWidth, cut: cut.length, figures};
      });
      document.body.textContent = "found" + JSON.stringify(found) + "end";
    };
    """
    (tmp_path / "frames.html").write_text(f"<body>{frames}<script>{script}</script>", encoding="utf-8")
    words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    words += ["--virtual-time-budget=10000", "--dump-dom", (tmp_path / "frames.html").as_uri()]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    desktop, phone = json.loads(html.unescape(shown.rsplit("found", 1)[1].split("end")[0]))
    for screen in (desktop, phone):
        assert max(screen["closed"], screen["open"]) <= screen["width"], screen
        assert screen["cut"] == 0, screen
    assert len({round(top) for top in desktop["figures"]}) == 1
    assert desktop["figures"][0] < 600


def test_hostile_names_are_text(scored: dict[str, Any], tmp_path: Path) -> None:
    metrics = scored["reconstructions"]
    mine = {**metrics["model"], "masses": {HOSTILE: {"median": metrics["model"]["jet_median"]}}}
    paired = [row | {"second": HOSTILE} for row in scored["comparisons"] if row["second"] == "model"]
    sample = {
        HOSTILE: HOSTILE,
        "reconstructions": {"baseline": metrics["baseline"], HOSTILE: mine},
        "comparisons": paired,
    }
    results = {"samples": {HOSTILE: sample}, "provenance": {HOSTILE: {HOSTILE: HOSTILE}}}
    text = write_report(results, {}, tmp_path).read_text(encoding="utf-8")
    assert HOSTILE not in text
    page = Page(text)
    assert page.all("script") == []
    assert page.text.count(HOSTILE) >= 10


def headline(scored: dict[str, Any], tmp_path: Path, names: str, **books: Any) -> str:
    """The text of the page about some reconstructions."""
    chosen = {name: scored["reconstructions"][name] for name in names.split()}
    samples = {"ttbar": {**scored, "reconstructions": chosen}} if chosen else {}
    return Page(write_report({"samples": samples}, {"ttbar": books}, tmp_path).read_text(encoding="utf-8")).text


def test_the_verdict_turns_with_the_numbers(scored: dict[str, Any], tmp_path: Path) -> None:
    assert "Rule-based PF falls short of perfect PF, which knows the true associations, in 8 of 8 metrics." in headline(
        scored, tmp_path, "perfect baseline"
    )
    only = headline(scored, tmp_path, "target", target=book())
    assert "Only truth target was evaluated: there is nothing to compare." in only
    assert "There were no events" in only
    assert "Not recorded." in only
    assert "Nothing was evaluated." in headline(scored, tmp_path, "")
    paired = [row for row in scored["comparisons"] if (row["first"], row["second"]) == ("baseline", "model")]
    for row, (low, high) in zip(paired, [(0.9, 1.1)] * 9 + [(0.5, 0.6)] * 2, strict=True):
        row["ratio"] = {"value": (low + high) / 2, "lo": low, "hi": high}
    text = headline(scored, tmp_path, "baseline model")
    assert "Model is better than rule-based PF in 0 of 8 metrics and worse in 1; 7 cannot be told apart." in text
    assert "cannot be told from" in text
    scored["reconstructions"]["target"]["jet_median"]["value"] = 0.95
    assert "not within 1 % of 1" in headline(scored, tmp_path, "target")
