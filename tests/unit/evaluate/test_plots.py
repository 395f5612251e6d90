"""Figures: every one can be drawn, full or empty, and the numbers drawn are those of the samples behind the histograms."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import hist
import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import beta, norm

from ringflow.evaluate.plots import figures as drawings
from ringflow.evaluate.plots.figures import common_bins, event_display
from ringflow.evaluate.plots.gallery import pictures
from ringflow.evaluate.plots.style import (
    LOOKS,
    file_name,
    looks,
    plain,
    png,
    reference_of,
    svg,
)
from ringflow.evaluate.sheet import book, load_histogram, save_histogram
from ringflow.evaluate.tables import METRICS, written
from ringflow.event.block import Collection, EventBlock

Fill = Callable[..., dict[str, hist.Hist]]
NAMES = ("target", "perfect", "baseline", "model")
Books = dict[str, dict[str, hist.Hist]]
Metrics = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def books(filled: Fill) -> dict[str, dict[str, hist.Hist]]:
    return {name: filled(name, 300, seed) for seed, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def figures(made_up_metrics: Callable[..., dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: made_up_metrics(name) for name in NAMES}


def texts(figure: Figure) -> Iterator[str]:
    for axes in figure.axes:
        yield from (axes.get_xlabel(), axes.get_ylabel())
        yield from (text.get_text() for text in axes.texts)
        if axes.get_legend():
            yield from (text.get_text() for text in axes.get_legend().get_texts())


@pytest.fixture(scope="module")
def drawn(books: Books, figures: Metrics) -> dict[str, Figure]:
    """Every figure."""
    return {picture.key: picture.draw() for picture in pictures(books, figures) if not picture.lacks}


def test_every_figure_can_be_drawn_and_leaves_the_callers_style_alone(
    books: Books, figures: Metrics, drawn: dict[str, Figure]
) -> None:
    before = dict(matplotlib.rcParams)
    assert len(drawn) == len(list(pictures(books, figures)))
    assert all(png(figure).startswith(b"\x89PNG") for figure in drawn.values())
    assert dict(matplotlib.rcParams) == before


def test_any_names_can_be_drawn(filled: Fill, made_up_metrics: Callable[..., dict[str, Any]]) -> None:
    names = ("baseline", "mine_$x$", "_hidden", "日本", *"abc")
    chosen, numbers = {name: filled(name, 60) for name in names}, {name: made_up_metrics(name) for name in names}
    for _, (picture, *_) in groupby(pictures(chosen, numbers), key=lambda picture: picture.group):
        figure = picture.draw()
        png(figure)
        shown = {text.split("\n")[0] for text in texts(figure)}
        assert picture.key == "confusion_1" or {plain(name) for name in names if name != "baseline"} <= shown


def test_axes_have_units_and_numbers_are_those_of_the_metrics(figures: Metrics, drawn: dict[str, Figure]) -> None:
    model = figures["model"]
    labels = {metric.key: metric for metric in METRICS}
    for key, median, width in (
        ("jet_response", "jet_median", "jet_iqr_over_median"),
        ("visible_energy", "visible_energy_median", "visible_energy_resolution"),
    ):
        said = [written(model[name], labels[name]) for name in (median, width)]
        assert f"model\nmedian {said[0]}\nIQR/median {said[1]}" in list(texts(drawn[key])), key
    for key, rows in (("jet_width_pt", model["jet_bins"]), ("muon_width", model["classes"]["muon"]["pt_bins"])):
        curve = [row["iqr_over_median"]["value"] for row in rows]
        assert curve in [np.asarray(line.get_ydata()).tolist() for line in drawn[key].axes[0].lines], key
    for key in ("jet_width_pt", "met_width", "missing_error", "photon_pt", "mass_1"):
        assert any("[GeV]" in text for text in texts(drawn[key])), key
    shown = set(texts(drawn["jet_width_pt"]))
    assert {"truth target", "perfect PF", "rule-based PF", "model", "ratio to\nrule-based PF"} <= shown


def test_what_is_empty_is_no_figure_and_what_is_too_little_says_so(filled: Fill) -> None:
    assert list(pictures({name: book() for name in NAMES}, {})) == []
    few = {picture.key: picture.lacks for picture in pictures({"model": filled("model", 5)}, {})}
    assert few["jet_response"] == "20 entries, and 50 are needed"
    assert few["jet_width_pt"] == "0 of its bins hold 10 entries, and 3 are needed"
    assert few["particles_per_event"] == "5 entries, and 50 are needed"
    assert few["multiplicity"] == "5 events, and 20 are needed"
    assert few["muon_pt"].startswith("0 of its bins")
    assert few["confusion_1"] == ""


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


def test_a_fraction_has_a_clopper_pearson_interval_and_small_bins_none() -> None:
    found = drawings.fraction(np.array([5.0, 10.0, 3.0]), np.array([10.0, 10.0, 4.0]))
    assert found.value[:2].tolist() == [0.5, 1.0]
    assert found.up[1] == 0
    assert found.down[0] == pytest.approx(0.5 - beta.ppf(norm.cdf(-1), 5, 6))
    assert np.isnan([found.value[2], found.down[2], found.up[2]]).all()


def test_a_ratio_carries_both_uncertainties() -> None:
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


def test_every_reconstruction_looks_different_without_colour() -> None:
    chosen = looks([*LOOKS, "mine", "yours", "theirs"])
    assert len({look.color for look in chosen.values()}) == 7
    assert len({look.marker for look in chosen.values()}) == 7
    assert len({look.line for look in chosen.values()}) == 7
    assert looks(["model"])["model"] == chosen["model"]


def test_names_from_outside_are_no_formulas_and_no_paths() -> None:
    assert plain("a$b$") == r"a\$b\$"
    assert plain("_x") == " _x"
    assert plain("日\n") == "??"
    assert len(plain("x" * 99)) == 32
    assert file_name("../../etc/passwd") == "etc_passwd"
    assert file_name("日本") == "unnamed"


def test_the_same_figure_gives_the_same_bytes(books: Books, figures: Metrics) -> None:
    picture = next(pictures(books, figures))
    assert png(picture.draw()) == png(picture.draw())
    assert svg(picture.draw()) == svg(picture.draw())
    with Image.open(io.BytesIO(png(picture.draw()))) as image:
        assert image.width > 1100


def test_histograms_are_read_back_as_they_were(books: dict[str, dict[str, hist.Hist]], tmp_path: Path) -> None:
    for name, histogram in books["baseline"].items():
        save_histogram({"baseline": histogram}, tmp_path / "h.json")
        (read,) = load_histogram(tmp_path / "h.json").values()
        assert read == histogram, name
        assert read.axes.name == histogram.axes.name


def test_an_event_shows_elements_truth_and_candidates(made_up_event: tuple[EventBlock, Collection]) -> None:
    block, candidates = made_up_event
    figure = event_display(block, candidates, "rule-based PF")
    axes = figure.axes[0]
    drawn = [len(collection.get_offsets()) for collection in axes.collections]
    assert drawn[:3] == [len(block["cluster"]), len(block["track"]), len(block["target"])]
    assert sum(drawn[3:]) == len(candidates)
    assert {"cluster", "track", "truth target", "photon"} <= set(texts(figure))
    png(figure)
