"""Distributions of one quantity for several reconstructions on top of each other, with statistical bands and ratios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import hist
import mplhep
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringflow.evaluate.candidates import Floats
from ringflow.evaluate.plots.curves import Curve, at, draw_ratios
from ringflow.evaluate.plots.style import legend, legend_height, looks, panels, reference_of, say_empty, styled

_MOST_BINS = 60


class Binned(NamedTuple):
    """Entries of one distribution between two edges, and all its entries including what is not shown."""

    counts: Floats
    total: float


@styled
def draw_distribution(
    histograms: Mapping[str, hist.Hist[Any]],
    label: str,
    notes: Mapping[str, str],
    *,
    around: float | None = None,
    unit: str = "",
) -> Figure:
    """Overlay one-dimensional histograms as densities; `around` is marked, e.g. the perfect response of 1.

    The legend gives `notes`: numbers of each reconstruction, as the tables have them.
    """
    compared = reference_of(histograms) is not None
    figure, axes = panels([2.75, 1.15] if compared else [3.6], top=legend_height(looks(histograms), notes=True))
    edges, binned = common_bins(histograms)
    draw_steps(axes[0], edges, binned)
    if around is not None and edges[0] < around < edges[-1]:
        axes[0].axvline(around, color="#aaaaaa", linewidth=0.9, zorder=0)
    legend(axes[0], looks(histograms), notes, points=False)
    axes[0].set_ylabel(f"share of entries per {edges[1] - edges[0]:.3g}{unit and f' {unit}'}")
    if compared:
        draw_ratios(axes[1], edges, {name: _density(part) for name, part in binned.items()}, limits=(0.0, 2.0))
    axes[-1].set_xlabel(label)
    return figure


def draw_steps(axes: Axes, edges: Floats, binned: Mapping[str, Binned]) -> None:
    """Step lines with their statistical band; the truth target, a needle by construction, may leave the panel."""
    filled = {name: part for name, part in binned.items() if part.total > 0}
    for name, look in looks(binned).items():
        if name not in filled:
            continue
        counts, total = filled[name]
        values, errors = counts / total, np.sqrt(counts) / total
        mplhep.histplot(
            values, edges, ax=axes, histtype="step", yerr=False, color=look.color, linestyle=look.line, flow="none"
        )
        axes.stairs(
            values + errors, edges, baseline=np.maximum(values - errors, 0), fill=True, color=look.color, alpha=0.18,
            linewidth=0,
        )  # fmt: skip
    if not filled:
        say_empty(axes)
    scaling = [part for name, part in filled.items() if name != "target"] or list(filled.values())
    top = max((float(part.counts.max()) / part.total for part in scaling), default=0.0)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0.0, 1.12 * top if top > 0 else 1.0)


def common_bins(
    histograms: Mapping[str, hist.Hist[Any]], span: Mapping[str, hist.Hist[Any]] | None = None
) -> tuple[Floats, dict[str, Binned]]:
    """One binning for all, from the first to the last percent of the widest (of `span`, if given).

    At most sixty bins, and fewer where there would be fewer than four entries in each.
    """
    axis = next(iter(histograms.values())).axes[0]
    counts = {name: histogram.values(flow=True) for name, histogram in histograms.items()}
    ends = [_ends(wide.values(flow=True)) for wide in (span or histograms).values() if wide.sum(flow=True) > 0]
    first, last = (min(low for low, _ in ends), max(high for _, high in ends)) if ends else (0, axis.size)
    # A margin on both sides, so that the tails are seen to end.
    margin = max((last - first) // 6, 2)
    first, last = max(first - margin, 0), min(last + margin, axis.size)
    most = min(_MOST_BINS, max(int(max(values.sum() for values in counts.values())) // 4, 10))
    group = max(-(-(last - first) // most), 1)
    bins = (last - first) // group
    last = first + bins * group
    edges = np.asarray(axis.edges[first : last + 1 : group])
    shown = {name: values[1 + first : 1 + last].reshape(bins, group).sum(axis=1) for name, values in counts.items()}
    return edges, {name: Binned(shown[name], float(counts[name].sum())) for name in counts}


def _ends(counts: npt.NDArray[Any]) -> tuple[int, int]:
    """The bins that hold the first and the last percent, and the one after that; what lies outside is at the border."""
    upto = np.cumsum(counts) / counts.sum()
    low, high = np.searchsorted(upto, [0.01, 0.99])
    return max(int(low) - 1, 0), min(int(high), len(counts) - 2)


def _density(part: Binned) -> Curve:
    total = max(part.total, 1.0)
    error = np.sqrt(part.counts) / total
    return Curve(np.where(part.counts > 0, part.counts / total, np.nan), error, error)


@styled
def missing_error(histograms: Mapping[str, hist.Hist[Any]]) -> Figure:
    """Error of the missing momentum along x, y and z."""
    components = list(next(iter(histograms.values())).axes["component"])
    figure, rows = panels([1.6] * len(components), top=legend_height(looks(histograms)))
    summed = {name: histogram.project("difference") for name, histogram in histograms.items()}
    for axes, component in zip(rows, components, strict=True):
        parts = {name: at(histogram, "component", component) for name, histogram in histograms.items()}
        edges, binned = common_bins(parts, span=summed)
        draw_steps(axes, edges, binned)
        axes.set_ylabel(f"per {edges[1] - edges[0]:.3g} GeV")
        axes.text(0.02, 0.9, f"${component}$ component", transform=axes.transAxes, va="top")
        axes.axvline(0.0, color="#aaaaaa", linewidth=0.9, zorder=0)
    legend(rows[0], looks(histograms), points=False)
    rows[-1].set_xlabel("missing momentum, reconstructed − true [GeV]")
    return figure
