"""Figures of particles: efficiency and fake rate, momentum response, who is taken for whom, and how many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import hist
import mplhep
import numpy as np
from matplotlib.figure import Figure

from ringflow.evaluate.candidates import Floats
from ringflow.evaluate.plots.curves import Curve, at, draw_curves, draw_ratios, set_fraction_range
from ringflow.evaluate.plots.style import (
    CLASS_NAMES,
    legend,
    legend_height,
    looks,
    panels,
    reference_of,
    say_empty,
    styled,
)


@styled
def particle_rates(
    edges: Floats, efficiency: Mapping[str, Curve], fakes: Mapping[str, Curve], xlabel: str, *, log: bool
) -> Figure:
    """Efficiency (of true particles) and fake rate (of candidates) of one class, with ratios."""
    compared = reference_of(efficiency) is not None
    figure, axes = panels([2.1, 1.0, 2.1, 1.0] if compared else [2.3, 2.3], top=legend_height(looks(efficiency)))
    step = len(axes) // 2
    for panel, (curves, title) in enumerate([(efficiency, "efficiency"), (fakes, "fake rate")]):
        main = axes[panel * step]
        draw_curves(main, edges, curves, log=log)
        set_fraction_range(main, curves)
        main.set_ylabel(title)
        if compared:
            draw_ratios(axes[panel * step + 1], edges, curves, log=log)
    legend(axes[0], looks(efficiency), points=True)
    axes[-1].set_xlabel(xlabel)
    return figure


@styled
def confusion(histogram: hist.Hist[Any]) -> Figure:
    """Who is taken for whom, each row (true class) in percent of its sum; `none` is missed or fake."""
    counts = histogram.values()
    sums = counts.sum(axis=1, keepdims=True)
    shares = np.divide(100.0 * counts, sums, out=np.zeros_like(counts), where=sums > 0)
    figure, (axes,) = panels([4.6], top=0.12, left=1.3)
    edges = np.arange(len(counts) + 1) - 0.5
    mplhep.hist2dplot(
        shares.T, edges, edges, ax=axes, cmap="Blues", cmin=0.0, cmax=100.0, cbar=False, flow="none", edgecolor="white",
        linewidth=0.8,
    )  # fmt: skip
    for row, column in np.argwhere(np.broadcast_to(sums > 0, counts.shape)):
        if (row, column) == (0, 0):  # what neither exists nor is found cannot be counted
            continue
        share = shares[row, column]
        color, weight = "white" if share > 55 else "black", "bold" if row == column else "normal"
        axes.text(column, row, _percent(share), ha="center", va="center", color=color, weight=weight, fontsize=12)
    if not sums.any():
        say_empty(axes)
    names = [name.replace(" ", "\n") for name in CLASS_NAMES]
    rows = ["fake" if row == 0 else name for row, name in enumerate(names)]
    columns = ["missed" if column == 0 else name for column, name in enumerate(names)]
    axes.set_xticks(range(len(columns)), columns, fontsize=10.5)
    axes.set_yticks(
        range(len(rows)), [f"{name}\n({int(n):,})" for name, n in zip(rows, sums[:, 0], strict=True)], fontsize=10.5
    )
    axes.set_xlabel("reconstructed class")
    axes.set_ylabel("true class (entries)")
    axes.tick_params(which="both", length=0)
    axes.minorticks_off()
    axes.grid(visible=False)
    axes.invert_yaxis()
    return figure


@styled
def multiplicity(histograms: Mapping[str, hist.Hist[Any]]) -> Figure:
    """Particles too many or too few per event: mean, and the range of the central 68 % of events, per class."""
    figure, (axes,) = panels([3.6], top=legend_height(looks(histograms)))
    chosen = looks(histograms)
    labels = list(next(iter(histograms.values())).axes["label"])
    for position, (name, look) in enumerate(chosen.items()):
        shift = 0.15 * (position - (len(chosen) - 1) / 2)
        for place, label in enumerate(labels):
            low, mean, high = _centre(at(histograms[name], "label", label))
            axes.vlines(place + shift, low, high, color=look.color, linewidth=5, alpha=0.3)
            axes.plot([place + shift], [mean], look.marker, color=look.color)
    if not any(histogram.sum(flow=True) for histogram in histograms.values()):
        say_empty(axes)
    axes.axhline(0.0, color="#aaaaaa", linewidth=0.9, zorder=0)
    axes.set_xticks(range(len(labels)), [CLASS_NAMES[label].replace(" ", "\n") for label in labels])
    axes.tick_params(axis="x", which="minor", bottom=False, top=False)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_ylabel("particles per event, reconstructed − true")
    legend(axes, chosen, points=True)
    return figure


def _centre(histogram: hist.Hist[Any]) -> tuple[float, float, float]:
    """16 % quantile, mean and 84 % quantile of whole numbers, each of which has a bin of its own."""
    counts, values = histogram.values(), histogram.axes[0].centers
    if not counts.sum():
        return (float("nan"),) * 3
    low, high = values[np.searchsorted(np.cumsum(counts) / counts.sum(), [0.16, 0.84])]
    return float(low), float((counts * values).sum() / counts.sum()), float(high)


def _percent(share: float) -> str:
    if share == 0:
        return "·"
    if share < 0.1:
        return "<0.1"
    return f"{share:.1f}" if share < 10 else f"{share:.0f}"
