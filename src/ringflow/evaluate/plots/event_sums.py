"""Figures of whole events: missing momentum, visible energy and masses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import hist
from matplotlib.figure import Figure

from ringflow.evaluate.plots.curves import at, median_curve, width_curve
from ringflow.evaluate.plots.distributions import common_bins, draw_distribution, draw_steps
from ringflow.evaluate.plots.jets import Histograms, draw_spread
from ringflow.evaluate.plots.style import legend, legend_height, looks, panels, plain, styled

MISSING = "true missing $p_T$ [GeV]"


def missing_response(histograms: Histograms) -> Figure:
    """Missing transverse momentum, reconstructed over true."""
    projected = {name: histogram.project("response") for name, histogram in histograms.items()}
    return draw_distribution(projected, "missing $p_T$, reconstructed / true", around=1.0)


def missing_median(histograms: Histograms) -> Figure:
    """Median response of the missing transverse momentum against its true value."""
    return draw_spread(histograms, "response", median_curve, MISSING, "median missing $p_T$ response", around=1.0)


def missing_width(histograms: Histograms) -> Figure:
    """IQR/median of the missing transverse momentum response against its true value."""
    return draw_spread(histograms, "response", width_curve, MISSING, "IQR / median, missing $p_T$")


@styled
def missing_error(histograms: Histograms) -> Figure:
    """Error of the missing momentum along x, y and z."""
    components = list(next(iter(histograms.values())).axes["component"])
    figure, rows = panels([1.6] * len(components), top=legend_height(looks(histograms)))
    chosen = {name: _components(histogram, components) for name, histogram in histograms.items()}
    summed = {name: sum(parts[1:], start=parts[0]) for name, parts in chosen.items()}
    for row, (axes, component) in enumerate(zip(rows, components, strict=True)):
        edges, binned = common_bins({name: parts[row] for name, parts in chosen.items()}, span=summed)
        draw_steps(axes, edges, binned)
        axes.set_ylabel(f"per {edges[1] - edges[0]:.3g} GeV")
        axes.text(0.02, 0.9, f"${component}$ component", transform=axes.transAxes, va="top")
        axes.axvline(0.0, color="#aaaaaa", linewidth=0.9, zorder=0)
    legend(rows[0], looks(histograms), points=False)
    rows[-1].set_xlabel("missing momentum, reconstructed − true [GeV]")
    return figure


def visible_energy(histograms: Histograms) -> Figure:
    """Summed energy of an event, reconstructed over true."""
    return draw_distribution(histograms, "visible energy, reconstructed / true", around=1.0)


def mass(histograms: Mapping[str, hist.Hist[Any]], name: str) -> Figure:
    """One mass, e.g. of two jets."""
    chosen = {
        key: at(histogram, "name", name)
        for key, histogram in histograms.items()
        if name in list(histogram.axes["name"])
    }
    return draw_distribution(chosen, f"{plain(name)} mass [GeV]", unit="GeV")


def mass_names(histograms: Mapping[str, hist.Hist[Any]]) -> list[str]:
    """Masses that any reconstruction has, in the order they first appear."""
    return list(dict.fromkeys(name for histogram in histograms.values() for name in histogram.axes["name"]))


def _components(histogram: hist.Hist[Any], components: list[str]) -> list[hist.Hist[Any]]:
    return [at(histogram, "component", component) for component in components]
