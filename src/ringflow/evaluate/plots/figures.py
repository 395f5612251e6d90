"""Quantities against another one: points with uncertainties per reconstruction and a panel of ratios to one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import hist
import mplhep
import numpy as np
import numpy.typing as npt
from hist.intervals import clopper_pearson_interval
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ringflow.evaluate.momenta import Floats
from ringflow.evaluate.plots.style import (
    CLASS_MARKS,
    CLASS_NAMES,
    Look,
    legend,
    legend_height,
    looks,
    panels,
    plain,
    reference_of,
    say_empty,
    styled,
)
from ringflow.event.block import Collection, EventBlock

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


_ETA_RANGE = 3.2
_SMALLEST_P = 1e-9


@styled
def event_display(block: EventBlock, candidates: Collection, title: str = "", index: int = 0) -> Figure:
    """Event `index` of a block with the candidates of a reconstruction of the same block.

    Grey squares are clusters, grey crosses tracks, open circles truth targets, filled marks candidates by class; areas grow
    with energy. Collections the block lacks are left out.
    """
    event, found = block.take(index, index + 1), candidates.take(index, index + 1)
    figure, (axes,) = panels([4.9], top=0.95)
    handles: list[Line2D] = []
    if "cluster" in event:
        cluster = event["cluster"]
        axes.scatter(
            cluster["eta"], cluster["phi"], s=_area(cluster["energy"], 2.2), marker="s", color="#cfcfcf", linewidths=0
        )
        handles.append(_entry("s", "cluster", markerfacecolor="#cfcfcf", markeredgecolor="#cfcfcf"))
    if "track" in event:
        track = event["track"]
        axes.scatter(track["eta"], track["phi"], s=28, marker="+", color="#777777", linewidths=1.0)
        handles.append(_entry("+", "track", markeredgecolor="#777777"))
    if "target" in event:
        eta, phi = _direction(event["target"])
        axes.scatter(
            eta, phi, s=_area(event["target"]["energy"], 2.0), facecolors="none", edgecolors="black", linewidths=0.9
        )
        handles.append(_entry("o", "truth target", markerfacecolor="none", markeredgecolor="black"))
    _draw_candidates(axes, found, handles)
    axes.set_xlim(-_ETA_RANGE, _ETA_RANGE)
    axes.set_ylim(-np.pi, np.pi)
    axes.set_yticks([-np.pi, -np.pi / 2, 0, np.pi / 2, np.pi], [r"$-\pi$", r"$-\pi/2$", "0", r"$\pi/2$", r"$\pi$"])
    axes.set_xlabel(r"$\eta$")
    axes.set_ylabel(r"$\phi$ [rad]")
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, columnspacing=1.0, handletextpad=0.2,
        fontsize=10, title=plain(title) if title else None, alignment="left",
    )  # fmt: skip
    return figure


def _draw_candidates(axes: Axes, found: Collection, handles: list[Line2D]) -> None:
    eta, phi = _direction(found)
    area = _area(found["energy"], 1.0)
    for label, (color, marker) in enumerate(CLASS_MARKS):
        chosen = found["label"] == label
        if label == 0 or not chosen.any():
            continue
        axes.scatter(eta[chosen], phi[chosen], s=area[chosen], marker=marker, color=color, alpha=0.8, linewidths=0)
        handles.append(_entry(marker, CLASS_NAMES[label], markerfacecolor=color, markeredgecolor=color))


def _direction(objects: Collection) -> tuple[Floats, Floats]:
    """Pseudorapidity and azimuth of a momentum."""
    px, py, pz = (objects[name].astype(np.float64) for name in ("px", "py", "pz"))
    return np.arcsinh(pz / np.maximum(np.hypot(px, py), _SMALLEST_P)), np.arctan2(py, px)


def _area(energy: Floats, scale: float) -> Floats:
    """Marker area in points squared: a constant to be seen, and a part that grows with the energy in GeV."""
    return np.asarray(scale * (10.0 + 14.0 * np.maximum(energy.astype(np.float64), 0.0) ** 0.75))


def _entry(marker: str, label: str, **colors: str) -> Line2D:
    return Line2D([], [], linestyle="None", marker=marker, markersize=7, label=label, **colors)  # type: ignore[arg-type]
