"""Quantities against another one: points with uncertainties per reconstruction and a panel of ratios to one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import hist
import numpy as np
from hist.intervals import clopper_pearson_interval
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringflow.evaluate.candidates import Floats
from ringflow.evaluate.plots.style import (
    Look,
    legend,
    legend_height,
    looks,
    panels,
    reference_of,
    say_empty,
    styled,
)

#: Bins with fewer entries are not drawn.
MIN_ENTRIES = 10

#: A ratio panel shows at most this range; what lies outside is drawn at the border as an arrow head.
_RATIO_RANGE = (0.0, 2.5)


class Curve(NamedTuple):
    """Values in bins, with their distance to the lower and upper end of the 68 % interval."""

    value: Floats
    down: Floats
    up: Floats


def at(histogram: hist.Hist[Any], axis: str, value: int | str) -> hist.Hist[Any]:
    """The part of a histogram in one category."""
    part = histogram[{axis: hist.loc(value)}]
    assert isinstance(part, hist.Hist)  # one axis of several is gone
    return part


def fraction(passed: Floats, total: Floats) -> Curve:
    """Share of `total` that passed, with the Clopper-Pearson interval; nan in bins with too few entries to tell."""
    filled = total >= MIN_ENTRIES
    safe = np.where(filled, total, 1.0)
    value = np.where(filled, passed / safe, np.nan)
    low, high = clopper_pearson_interval(np.where(filled, passed, 0.0), safe)
    return Curve(value, np.where(filled, value - low, np.nan), np.where(filled, high - value, np.nan))


def matched_fraction(
    histogram: hist.Hist[Any], axis: str, *, matched: bool = True, edges: Floats | None = None
) -> Curve:
    """Share of matched (or unmatched) entries along one axis; `edges` merges its bins into fewer."""
    counts = histogram.project(axis, "matched").values().astype(np.float64)
    if edges is not None:
        counts = np.add.reduceat(counts, np.searchsorted(histogram.axes[axis].edges, edges[:-1]), axis=0)
    return fraction(counts[:, int(matched)], counts.sum(axis=1))


def measured(bins: Sequence[Mapping[str, Any]], name: str) -> Curve:
    """A figure of the metrics in bins; nan in bins with too few entries for a width, whatever the figure."""
    known = [(row[name] if row["iqr_over_median"]["value"] is not None else None) or {} for row in bins]
    value, low, high = (
        np.array([np.nan if part.get(end) is None else part[end] for part in known]) for end in ("value", "lo", "hi")
    )
    return Curve(value, value - low, high - value)


def ratio(above: Curve, below: Curve) -> Curve:
    """Quotient with relative uncertainties added in quadrature, as if the two were independent."""
    usable = np.isfinite(above.value) & np.isfinite(below.value) & (below.value > 0)
    bottom = np.where(usable, below.value, 1.0)
    value = np.where(usable, above.value / bottom, np.nan)
    down = np.hypot(above.down, value * below.up) / bottom
    up = np.hypot(above.up, value * below.down) / bottom
    return Curve(value, down, up)


@styled
def draw_against(
    edges: Floats,
    curves: Mapping[str, Curve],
    xlabel: str,
    ylabel: str,
    *,
    around: float | None = None,
    log: bool = False,
    fraction: bool = False,
) -> Figure:
    """One quantity against another with a ratio panel where there is something to compare."""
    compared = reference_of(curves) is not None
    figure, axes = panels([2.75, 1.15] if compared else [3.6], top=legend_height(looks(curves)))
    draw_curves(axes[0], edges, curves, log=log)
    if fraction:
        set_fraction_range(axes[0], curves)
    elif around is not None:
        axes[0].axhline(around, color="#aaaaaa", linewidth=0.9, zorder=0)
    else:
        axes[0].set_ylim(bottom=0.0)
    legend(axes[0], looks(curves), points=True)
    axes[0].set_ylabel(ylabel)
    if compared:
        draw_ratios(axes[1], edges, curves, log=log)
    axes[-1].set_xlabel(xlabel)
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


def draw_curves(axes: Axes, edges: Floats, curves: Mapping[str, Curve], *, log: bool = False) -> None:
    """Points with bars of uncertainty, joined by a thin line; reconstructions stand slightly beside each other."""
    if not any(np.isfinite(curve.value).any() for curve in curves.values()):
        say_empty(axes)
    for position, (name, look) in enumerate(looks(curves).items()):
        _draw_curve(axes, _places(edges, position, len(curves), log=log), curves[name], look)
    if log:
        axes.set_xscale("log")
    axes.set_xlim(edges[0], edges[-1])


def draw_ratios(
    axes: Axes,
    edges: Floats,
    curves: Mapping[str, Curve],
    *,
    log: bool = False,
    limits: tuple[float, float] | None = None,
) -> None:
    """The same curves divided by the one of the reference; where `limits` are given, what lies outside is cut off."""
    reference = reference_of(curves)
    if reference is None:
        return
    quotients = {name: ratio(curve, curves[reference]) for name, curve in curves.items()}
    low, high = limits or ratio_limits([quotients[name] for name in quotients if name != reference])
    for position, (name, look) in enumerate(looks(curves).items()):
        if name == reference:
            axes.axhline(1.0, color=look.color, linestyle=look.line, linewidth=1.4)
            continue
        places, quotient = _places(edges, position, len(curves), log=log), quotients[name]
        _draw_curve(axes, places, quotient, look)
        for outside, border, head in ((quotient.value > high, high, "^"), (quotient.value < low, low, "v")):
            if limits is None:
                axes.plot(places[outside], np.full(outside.sum(), border), head, color=look.color, clip_on=False, ms=5)
    axes.set_ylim(low, high)
    name = looks([reference])[reference].name
    axes.set_ylabel(f"ratio to\n{name if len(name) <= 16 else 'the first'}", fontsize=10.5)


def ratio_limits(quotients: list[Curve]) -> tuple[float, float]:
    """A range with 1 in it that holds the ratios, but not far beyond what can be read."""
    values = np.concatenate([quotient.value[np.isfinite(quotient.value)] for quotient in quotients] or [np.ones(1)])
    if not len(values):
        return 0.5, 1.5
    low, high = min(values.min(), 1.0), max(values.max(), 1.0)
    pad = max(0.15 * (high - low), 0.02)
    return float(max(low - pad, _RATIO_RANGE[0])), float(min(high + pad, _RATIO_RANGE[1]))


def _draw_curve(axes: Axes, places: Floats, curve: Curve, look: Look) -> None:
    shown = np.isfinite(curve.value)
    bars = np.nan_to_num(np.stack([curve.down, curve.up])[:, shown]).clip(min=0.0)
    axes.plot(places[shown], curve.value[shown], linestyle=look.line, color=look.color, linewidth=1.1, alpha=0.75)
    axes.errorbar(
        places[shown], curve.value[shown], yerr=bars, fmt=look.marker, color=look.color, elinewidth=1.4, label=look.name
    )  # fmt: skip


def _places(edges: Floats, position: int, count: int, *, log: bool) -> Floats:
    """Where in its bins a curve stands: side by side around the centre, so that no bar hides another."""
    share = 0.5 + 0.1 * (position - (count - 1) / 2)
    if log:
        places: Floats = edges[:-1] ** (1 - share) * edges[1:] ** share
        return places
    return np.asarray(edges[:-1] + share * np.diff(edges))
