"""Figures of jets: response, its median and width, and how many are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import hist
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringflow.evaluate.plots.curves import Curve, draw_curves, draw_ratios, matched_fraction, median_curve, width_curve
from ringflow.evaluate.plots.distributions import draw_distribution
from ringflow.evaluate.plots.style import legend, legend_height, looks, panels, reference_of, styled
from ringflow.evaluate.quantiles import Floats

Histograms = Mapping[str, hist.Hist[Any]]

JET_PT = "true jet $p_T$ [GeV]"
RESPONSE = "jet $p_T$, reconstructed / true"
#: The bins of 2 GeV are too fine for a fraction.
_PT_EDGES = np.array([0.0, 10, 20, 30, 40, 50, 60, 70, 80, 100, 120, 150, 200])


def jet_response(histograms: Histograms) -> Figure:
    """Response of all matched jets."""
    return draw_distribution(
        {name: histogram.project("response") for name, histogram in histograms.items()}, RESPONSE, around=1.0
    )


def jet_median(histograms: Histograms) -> Figure:
    """Median response against the true transverse momentum."""
    return draw_spread(histograms, "response", median_curve, JET_PT, "median jet response", around=1.0)


def jet_width(histograms: Histograms) -> Figure:
    """IQR/median of the response against the true transverse momentum."""
    return draw_spread(histograms, "response", width_curve, JET_PT, "IQR / median of jet response")


def jet_width_eta(histograms: Histograms) -> Figure:
    """IQR/median of the response against pseudorapidity."""
    return draw_spread(histograms, "response", width_curve, r"true jet $\eta$", "IQR / median of jet response")


def jet_matched(histograms: Histograms) -> Figure:
    """Fraction of true jets that are found, against their transverse momentum."""
    return _draw_fraction(histograms, "truth_pt", JET_PT, "true jets matched", matched=True)


def jet_fakes(histograms: Histograms) -> Figure:
    """Fraction of reconstructed jets without a true one, against their transverse momentum."""
    return _draw_fraction(histograms, "pt", "reconstructed jet $p_T$ [GeV]", "jets without a true jet", matched=False)


def draw_spread(
    histograms: Histograms,
    axis: str,
    curve: Callable[[hist.Hist[Any], str], Curve],
    xlabel: str,
    ylabel: str,
    *,
    around: float | None = None,
    log: bool = False,
) -> Figure:
    """Median or width along `axis` of two-dimensional histograms, against their other axis."""
    (other,) = (candidate for candidate in next(iter(histograms.values())).axes if candidate.name != axis)
    curves = {name: curve(histogram, axis) for name, histogram in histograms.items()}
    return draw_against(other.edges, curves, xlabel, ylabel, around=around, log=log)


@styled
def draw_against(
    edges: Floats,
    curves: Mapping[str, Curve],
    xlabel: str,
    ylabel: str,
    *,
    around: float | None = None,
    log: bool = False,
) -> Figure:
    """One quantity against another with a ratio panel where there is something to compare."""
    compared = reference_of(curves) is not None
    figure, axes = panels([2.75, 1.15] if compared else [3.6], top=legend_height(looks(curves)))
    draw_curves(axes[0], edges, curves, log=log)
    if around is not None:
        axes[0].axhline(around, color="#aaaaaa", linewidth=0.9, zorder=0)
    else:
        axes[0].set_ylim(bottom=0.0)
    legend(axes[0], looks(curves), points=True)
    axes[0].set_ylabel(ylabel)
    if compared:
        draw_ratios(axes[1], edges, curves, log=log)
    axes[-1].set_xlabel(xlabel)
    return figure


def _draw_fraction(histograms: Histograms, axis: str, xlabel: str, ylabel: str, *, matched: bool) -> Figure:
    curves = {
        name: matched_fraction(histogram, axis, matched=matched, edges=_PT_EDGES)
        for name, histogram in histograms.items()
    }
    figure = draw_against(_PT_EDGES, curves, xlabel, ylabel)
    set_fraction_range(figure.axes[0], curves)
    return figure


def set_fraction_range(axes: Axes, curves: Mapping[str, Curve]) -> None:
    """Show fractions from 0 or to 1, whichever they are nearer to, and no more empty space than needed."""
    known = np.concatenate([curve.value[np.isfinite(curve.value)] for curve in curves.values()])
    if not len(known):
        axes.set_ylim(0.0, 1.05)
    elif known.mean() > 0.5:
        low = max(float(known.min()) - 0.05, 0.0)
        axes.set_ylim(low, 1.0 + 0.05 * (1.0 - low))
    else:
        axes.set_ylim(0.0, min(max(1.3 * float(known.max()), 0.02), 1.05))
