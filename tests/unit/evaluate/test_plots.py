"""Figures: every one can be drawn, full or empty, and the numbers drawn are those of the samples behind the histograms."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hist
import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import beta, norm

from ringflow.evaluate.metrics import BY_KEY, written
from ringflow.evaluate.plots import (
    LOOKS,
    file_name,
    looks,
    plain,
    png,
    reference_of,
    svg,
)
from ringflow.evaluate.plots import figures as drawings
from ringflow.evaluate.plots.figures import common_bins, event_display, pictures
from ringflow.evaluate.sheet import book, load_histogram, save_histogram
from ringflow.event.block import Collection, EventBlock

Books = dict[str, dict[str, hist.Hist]]
Metrics = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def figures(_scored: dict[str, Any]) -> Metrics:
    return _scored["reconstructions"]


def texts(figure: Figure) -> Iterator[str]:
    for axes in figure.axes:
        yield from (axes.get_xlabel(), axes.get_ylabel())
        yield from (text.get_text() for text in axes.texts)
        if axes.get_legend():
            yield from (text.get_text() for text in axes.get_legend().get_texts())


@pytest.fixture(scope="module")
def draw(books: Books, figures: Metrics) -> Callable[[str], Figure]:
    """A figure by its key, drawn once."""
    found = {picture.key: picture for picture in pictures(books, figures)}
    return cache(lambda key: found[key].draw())


SOME = ("jet_response", "jet_width_pt", "missing_error", "confusion_1", "multiplicity", "photon_pt")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_figures_can_be_drawn_and_leave_the_callers_style_alone(
    books: Books, figures: Metrics, draw: Callable[[str], Figure], every: bool
) -> None:
    before = dict(matplotlib.rcParams)
    found = list(pictures(books, figures))
    assert not any(picture.lacks for picture in found)
    assert all(png(draw(key)).startswith(b"\x89PNG") for key in ([one.key for one in found] if every else SOME))
    assert dict(matplotlib.rcParams) == before


def test_any_names_can_be_drawn(books: Books, figures: Metrics) -> None:
    names = ("baseline", "mine_$x$", "_hidden", "日本")
    chosen, numbers = dict.fromkeys(names, books["model"]), dict.fromkeys(names, figures["model"])
    for picture in pictures(chosen, numbers):
        if picture.key in SOME and picture.key != "confusion_1":
            png(figure := picture.draw())
            assert {plain(name) for name in names[1:]} <= {text.split("\n")[0] for text in texts(figure)}


def test_axes_have_units_and_numbers_are_those_of_the_metrics(figures: Metrics, draw: Callable[[str], Figure]) -> None:
    model = figures["model"]
    for key, median, width in (
        ("jet_response", "jet_median", "jet_iqr_over_median"),
        ("visible_energy", "visible_energy_median", "visible_energy_resolution"),
    ):
        said = [written(model[name], BY_KEY[name]) for name in (median, width)]
        assert f"model\nmedian {said[0]}\nIQR/median {said[1]}" in list(texts(draw(key))), key
    for key, rows in (("jet_width_pt", model["jet_bins"]), ("muon_width", model["classes"]["muon"]["pt_bins"])):
        curve = [value for row in rows if (value := row["iqr_over_median"]["value"]) is not None]
        assert curve in [np.asarray(line.get_ydata()).tolist() for line in draw(key).axes[0].lines], key
    for key in ("jet_width_pt", "met_width", "missing_error", "photon_pt", "mass_1"):
        assert any("[GeV]" in text for text in texts(draw(key))), key
    shown = set(texts(draw("jet_width_pt")))
    assert {"truth target", "perfect PF", "rule-based PF", "model", "ratio to\nrule-based PF"} <= shown


def test_what_is_empty_is_no_figure_and_what_is_too_little_says_so() -> None:
    few = book()
    assert list(pictures(dict.fromkeys(("baseline", "model"), few), {})) == []
    few["jet_response"].fill(np.full(20, 30.0), np.ones(20))
    few["particles_per_event"].fill(np.full(5, 90.0))
    for label in range(1, 6):
        few["multiplicity"].fill(label, np.zeros(5))
    for side in ("particle_truth", "particle_reco"):
        few[side].fill([1] * 60, np.ones(60), np.ones(60), [True] * 60)
    few["confusion"].fill([1] * 60, [1] * 60)
    lacks = {picture.key: picture.lacks for picture in pictures({"model": few}, {})}
    assert lacks["jet_response"] == "20 entries, and 50 are needed"
    assert lacks["jet_width_pt"] == "0 of its bins hold 10 entries, and 3 are needed"
    assert lacks["particles_per_event"] == "5 entries, and 50 are needed"
    assert lacks["multiplicity"] == "5 events, and 20 are needed"
    assert lacks["muon_pt"].startswith("0 of its bins")
    assert lacks["charged_hadron_pt"].startswith("1 of its bins")
    assert lacks["confusion_1"] == ""


def test_without_something_to_compare_there_is_no_ratio_panel(books: Books, figures: Metrics) -> None:
    (alone,) = (p for p in pictures({"model": books["model"]}, figures) if p.key == "jet_width_pt")
    assert len(alone.draw().axes) == 1
    assert reference_of(["model", "perfect", "baseline"]) == "baseline"
    assert reference_of(["other", "perfect"]) == "perfect"
    assert reference_of(["a", "b"]) == "a"


def test_a_confusion_matrix_is_normalised_by_row() -> None:
    histogram = book()["confusion"]
    histogram.fill([3] * 10, [3] * 9 + [2])
    histogram.fill([0], [3])
    shown = list(texts(drawings.confusion(histogram)))
    assert "90" in shown
    assert "10" in shown
    assert "100" in shown  # the one fake is a photon
    assert shown.count("·") == 4 + 4


def test_fractions_have_clopper_pearson_intervals_and_ratios_both_uncertainties() -> None:
    found = drawings.fraction(np.array([5.0, 10.0, 3.0]), np.array([10.0, 10.0, 4.0]))
    assert found.value[:2].tolist() == [0.5, 1.0]
    assert found.up[1] == 0
    assert found.down[0] == pytest.approx(0.5 - beta.ppf(norm.cdf(-1), 5, 6))
    assert np.isnan([found.value[2], found.down[2], found.up[2]]).all()  # too few to tell
    one = np.array([1.0])
    found = drawings.ratio(drawings.Curve(2 * one, 0.2 * one, 0.2 * one), drawings.Curve(4 * one, 0.3 * one, 0.3 * one))
    assert found.value[0] == 0.5
    assert found.up[0] == pytest.approx(0.5 * np.hypot(0.1, 0.075))
    assert np.isnan(drawings.ratio(found, drawings.Curve(0 * one, one, one)).value[0])


def test_distributions_share_bins_and_lose_nothing_in_range() -> None:
    narrow, wide = (hist.Hist(hist.axis.Regular(600, 0, 3, name="response")) for _ in range(2))
    narrow.fill(np.linspace(0.99, 1.01, 100))
    wide.fill(np.linspace(0.7, 1.3, 100))
    edges, binned = common_bins({"perfect": narrow, "baseline": wide})
    assert edges[0] < 0.7 < 1.3 < edges[-1]
    assert len(edges) <= 61
    assert binned["baseline"].counts.sum() == binned["baseline"].total == 100


def test_looks_and_names_tell_reconstructions_apart() -> None:
    chosen = looks([*LOOKS, "mine", "yours", "theirs"])
    for column in ("color", "marker", "line"):
        assert len({getattr(look, column) for look in chosen.values()}) == len(chosen) == 8
    assert looks(["model"])["model"] == chosen["model"]
    names = {"a$b$": r"a\$b\$", "_x": " _x", "日\n": "??", "x" * 99: "x" * 31 + "…"}  # no formula, no hidden entry
    assert {name: plain(name) for name in names} == names
    assert [file_name(name) for name in ("../../etc/passwd", "日本")] == ["etc_passwd", "unnamed"]


def test_the_same_figure_gives_the_same_bytes(books: Books, figures: Metrics) -> None:
    (picture,) = (one for one in pictures(books, figures) if one.key == "particles_per_event")
    first, second = picture.draw(), picture.draw()
    assert png(first) == png(second)
    assert svg(first) == svg(second)
    with Image.open(io.BytesIO(png(first))) as image:
        assert image.width > 1100


def test_histograms_are_read_back_as_they_were(books: Books, tmp_path: Path) -> None:
    for name, histogram in books["baseline"].items():
        save_histogram({"baseline": histogram}, tmp_path / "h.json")
        (read,) = load_histogram(tmp_path / "h.json").values()
        assert read == histogram, name
        assert read.axes.name == histogram.axes.name


def test_an_event_shows_elements_truth_and_candidates() -> None:
    rng = np.random.default_rng(3)
    direction = {"eta": rng.normal(0, 1, 9), "phi": rng.uniform(-3, 3, 9), "energy": rng.exponential(5, 9)}
    columns = {"label": np.repeat([1, 3, 5], 3), **{name: rng.normal(0, 5, 9) for name in ("px", "py", "pz", "energy")}}
    parts = {"cluster": direction, "track": direction, "target": columns}
    block = EventBlock(np.array([7]), {name: Collection(np.array([9]), part) for name, part in parts.items()})
    figure = event_display(block, Collection(np.array([9]), columns), "rule-based PF")
    shown = [len(collection.get_offsets()) for collection in figure.axes[0].collections]
    assert shown == [9, 9, 9, 3, 3, 3]
    assert {"cluster", "track", "truth target", "photon"} <= set(texts(figure))
    png(figure)
