"""Figures of particles: efficiency and fake rate, momentum response, who is taken for whom, and how many there are."""

from __future__ import annotations

from typing import Any

import hist
import mplhep
import numpy as np
from matplotlib.figure import Figure

from ringflow.evaluate.plots.curves import at, draw_curves, draw_ratios, matched_fraction, width_curve
from ringflow.evaluate.plots.distributions import draw_distribution
from ringflow.evaluate.plots.jets import Histograms, draw_spread, set_fraction_range
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
from ringflow.evaluate.quantiles import quantiles

_AXIS_LABELS = {"pt": "$p_T$ [GeV]", "eta": r"$\eta$"}


@styled
def particle_rates(truth: Histograms, reconstructed: Histograms, label: int, axis: str) -> Figure:
    """Efficiency (of true particles) and fake rate (of candidates) of one class against `pt` or `eta`, with ratios."""
    compared, log = reference_of(truth) is not None, axis == "pt"
    figure, axes = panels([2.1, 1.0, 2.1, 1.0] if compared else [2.3, 2.3], top=legend_height(looks(truth)))
    edges = next(iter(truth.values())).axes[axis].edges
    step = len(axes) // 2
    for panel, (histograms, matched, title) in enumerate(
        [(truth, True, "efficiency"), (reconstructed, False, "fake rate")]
    ):
        curves = {
            name: matched_fraction(at(histogram, "label", label), axis, matched=matched)
            for name, histogram in histograms.items()
        }
        main = axes[panel * step]
        draw_curves(main, edges, curves, log=log)
        set_fraction_range(main, curves)
        main.set_ylabel(title)
        if compared:
            draw_ratios(axes[panel * step + 1], edges, curves, log=log)
    legend(axes[0], looks(truth), points=True)
    axes[-1].set_xlabel(f"{CLASS_NAMES[label]} {_AXIS_LABELS[axis]}")
    return figure


def particle_width(histograms: Histograms, label: int) -> Figure:
    """IQR/median of the transverse momentum response of one class against the true transverse momentum."""
    chosen = {name: at(histogram, "label", label) for name, histogram in histograms.items()}
    title = "IQR / median of $p_T$ response"
    return draw_spread(chosen, "response", width_curve, f"true {CLASS_NAMES[label]} $p_T$ [GeV]", title, log=True)


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
def multiplicity(histograms: Histograms) -> Figure:
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


def particles_per_event(histograms: Histograms) -> Figure:
    """Number of candidates per event."""
    return draw_distribution(histograms, "particles per event")


def _centre(histogram: hist.Hist[Any]) -> tuple[float, float, float]:
    """16 % quantile, mean and 84 % quantile."""
    counts, axis = histogram.values(), histogram.axes[0]
    low, high = quantiles(histogram.values(flow=True), axis.edges, [0.16, 0.84])
    mean = float((counts * axis.centers).sum() / counts.sum()) if counts.sum() else float("nan")
    return float(low), mean, float(high)


def _percent(share: float) -> str:
    if share == 0:
        return "·"
    if share < 0.1:
        return "<0.1"
    return f"{share:.1f}" if share < 10 else f"{share:.0f}"
