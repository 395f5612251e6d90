"""All figures of one sample: how each is drawn, and in the order of the report its title, caption and the numbers behind it.

Distributions and fractions are drawn from histograms; medians and widths are those of the metrics, which the tables show too.
Where reconstructions are compared, a lower panel shows ratios to one of them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import hist
import mplhep
import numpy as np
import numpy.typing as npt
from hist.intervals import clopper_pearson_interval
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ringflow.evaluate.metrics import BY_KEY, MASS_METRICS, Metric, written
from ringflow.evaluate.momenta import Floats, momenta
from ringflow.evaluate.plots import (
    CLASS_MARKS,
    CLASS_NAMES,
    Look,
    display_name,
    legend,
    legend_height,
    looks,
    panels,
    plain,
    reference_of,
    say_empty,
    styled,
)
from ringflow.evaluate.sheet import LABELS
from ringflow.event.block import Collection, EventBlock

#: Bins with fewer entries are not drawn; fewer entries make no distribution, fewer events no spread, fewer points no curve.
MIN_ENTRIES, FEWEST_ENTRIES, FEWEST_EVENTS, FEWEST_POINTS = 10, 50, 20, 3
#: A ratio panel shows at most this range; what lies outside is drawn at the border as an arrow head.
_RATIO_RANGE = (0.0, 2.5)
_MOST_BINS = 60
_ETA_RANGE = 3.2
_GUIDE: dict[str, Any] = {"color": "#aaaaaa", "linewidth": 0.9, "zorder": 0}

Histogram = hist.Hist[Any]
Book = Mapping[str, Histogram]


class Curve(NamedTuple):
    """Values in bins, with their distance to the lower and upper end of the 68 % interval."""

    value: Floats
    down: Floats
    up: Floats


def at(histogram: Histogram, axis: str, value: int | str) -> Histogram:
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


def matched_fraction(histogram: Histogram, axis: str, *, matched: bool = True, edges: Floats | None = None) -> Curve:
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
    below: tuple[Mapping[str, Curve], str] | None = None,
) -> Figure:
    """One quantity against another, `below` it a second one, each with ratios where there is something to compare.

    `around` is a value to be marked; fractions are shown from 0 or to 1, whichever they are nearer to.
    """
    compared = reference_of(curves) is not None
    quantities = [(curves, ylabel), *([below] if below else [])]
    each = ((2.75, 1.15), (3.6,)) if below is None else ((2.1, 1.0), (2.3,))
    figure, axes = panels([*each[not compared]] * len(quantities), top=legend_height(looks(curves)))
    for (shown, label), main in zip(quantities, axes[:: 1 + compared], strict=True):
        draw_curves(main, edges, shown, log=log)
        known = np.concatenate([curve.value[np.isfinite(curve.value)] for curve in shown.values()])
        if around is not None:
            main.axhline(around, **_GUIDE)
        elif not fraction:
            main.set_ylim(bottom=0.0)
        elif not len(known):
            main.set_ylim(0.0, 1.05)
        elif known.mean() > 0.5:
            low = max(float(known.min()) - 0.05, 0.0)
            main.set_ylim(low, 1.0 + 0.05 * (1.0 - low))
        else:
            main.set_ylim(0.0, min(max(1.3 * float(known.max()), 0.02), 1.05))
        main.set_ylabel(label)
        if compared:
            draw_ratios(axes[axes.index(main) + 1], edges, shown, log=log)
    legend(axes[0], looks(curves), points=True)
    axes[-1].set_xlabel(xlabel)
    return figure


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
    assert reference is not None, "there is something to compare"
    quotients = {name: ratio(curve, curves[reference]) for name, curve in curves.items()}
    low, high = limits or _ratio_limits([quotients[name].value for name in quotients if name != reference])
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


def _ratio_limits(quotients: list[Floats]) -> tuple[float, float]:
    """A range with 1 in it that holds the ratios, but not far beyond what can be read."""
    values = np.concatenate([quotient[np.isfinite(quotient)] for quotient in quotients])
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
    return np.asarray(edges[:-1] ** (1 - share) * edges[1:] ** share if log else edges[:-1] + share * np.diff(edges))


class Binned(NamedTuple):
    """Entries of one distribution between two edges, and all its entries including what is not shown."""

    counts: Floats
    total: float


@styled
def draw_distribution(
    histograms: Book, label: str, notes: Mapping[str, str], *, around: float | None = None, unit: str = ""
) -> Figure:
    """Overlay one-dimensional histograms as densities; `around` is marked, e.g. the perfect response of 1.

    The legend gives `notes`: numbers of each reconstruction, as the tables have them.
    """
    compared = reference_of(histograms) is not None
    figure, axes = panels([2.75, 1.15] if compared else [3.6], top=legend_height(looks(histograms), notes=True))
    edges, binned = common_bins(histograms)
    draw_steps(axes[0], edges, binned)
    if around is not None and edges[0] < around < edges[-1]:
        axes[0].axvline(around, **_GUIDE)
    legend(axes[0], looks(histograms), notes, points=False)
    axes[0].set_ylabel(f"share of entries per {edges[1] - edges[0]:.3g}{unit and f' {unit}'}")
    if compared:
        shares = {}
        for name, (counts, total) in binned.items():
            error = np.sqrt(counts) / max(total, 1.0)
            shares[name] = Curve(np.where(counts > 0, counts / max(total, 1.0), np.nan), error, error)
        draw_ratios(axes[1], edges, shares, limits=(0.0, 2.0))
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
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0.0, 1.12 * top if top > 0 else 1.0))


def common_bins(histograms: Book, span: Book | None = None) -> tuple[Floats, dict[str, Binned]]:
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


@styled
def missing_error(histograms: Book) -> Figure:
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
        axes.axvline(0.0, **_GUIDE)
    legend(rows[0], looks(histograms), points=False)
    rows[-1].set_xlabel("missing momentum, reconstructed − true [GeV]")
    return figure


@styled
def confusion(histogram: Histogram) -> Figure:
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
    for (row, column), share in np.ndenumerate(shares):
        if not sums[row] or row == column == 0:  # what neither exists nor is found cannot be counted
            continue
        color, weight = "white" if share > 55 else "black", "bold" if row == column else "normal"
        text = "·" if share == 0 else "<0.1" if share < 0.1 else f"{share:.{int(share < 10)}f}"
        axes.text(column, row, text, ha="center", va="center", color=color, weight=weight, fontsize=12)
    if not sums.any():
        say_empty(axes)
    names = [name.replace(" ", "\n") for name in CLASS_NAMES[1:]]
    rows = [f"{name}\n({int(n):,})" for name, n in zip(["fake", *names], sums[:, 0], strict=True)]
    axes.set_xticks(range(len(rows)), ["missed", *names], fontsize=10.5)
    axes.set_yticks(range(len(rows)), rows, fontsize=10.5)
    axes.set(xlabel="reconstructed class", ylabel="true class (entries)")
    axes.tick_params(which="both", length=0)
    axes.minorticks_off()
    axes.grid(visible=False)
    axes.invert_yaxis()
    return figure


@styled
def multiplicity(histograms: Book) -> Figure:
    """Particles too many or too few per event: mean, and the range of the central 68 % of events, per class."""
    figure, (axes,) = panels([3.6], top=legend_height(looks(histograms)))
    chosen = looks(histograms)
    labels = list(next(iter(histograms.values())).axes["label"])
    for position, (name, look) in enumerate(chosen.items()):
        shift = 0.15 * (position - (len(chosen) - 1) / 2)
        for place, label in enumerate(labels):
            counted = at(histograms[name], "label", label)  # every whole number has a bin of its own
            counts, values = counted.values(), counted.axes[0].centers
            if counts.sum():
                low, high = values[np.searchsorted(np.cumsum(counts) / counts.sum(), [0.16, 0.84])]
                axes.vlines(place + shift, low, high, color=look.color, linewidth=5, alpha=0.3)
                mean = (counts * values).sum() / counts.sum()
                axes.plot([place + shift], [mean], look.marker, color=look.color)
    axes.axhline(0.0, **_GUIDE)
    axes.set_xticks(range(len(labels)), [CLASS_NAMES[label].replace(" ", "\n") for label in labels])
    axes.tick_params(axis="x", which="minor", bottom=False, top=False)
    axes.set(xlim=(-0.5, len(labels) - 0.5), ylabel="particles per event, reconstructed − true")
    legend(axes, chosen, points=True)
    return figure


@styled
def event_display(event: EventBlock, candidates: Collection, title: str) -> Figure:
    """One event with the candidates of a reconstruction of it.

    Grey squares are clusters, grey crosses tracks, open circles truth targets, filled marks candidates by class; areas grow
    with energy. Collections the event lacks are left out.
    """
    figure, (axes,) = panels([4.9], top=0.95)
    handles: list[Line2D] = []

    def scatter(
        marker: str, label: str, eta: Floats, phi: Floats, area: Any, edge: str, face: str, width: float
    ) -> None:
        line: dict[str, Any] = {"color": edge} if marker == "+" else {"facecolors": face, "edgecolors": edge}
        axes.scatter(
            eta, phi, s=area, marker=marker, linewidths=width, **line, alpha=0.8 if label in CLASS_NAMES else 1
        )
        style: dict[str, Any] = {"markerfacecolor": face, "markeredgecolor": edge}
        handles.append(Line2D([], [], linestyle="None", marker=marker, markersize=7, label=label, **style))

    if "cluster" in event:
        part = event["cluster"]
        scatter("s", "cluster", part["eta"], part["phi"], _area(part["energy"], 2.2), "#cfcfcf", "#cfcfcf", 0)
    if "track" in event:
        part = event["track"]
        scatter("+", "track", part["eta"], part["phi"], 28, "#777777", "none", 1.0)
    if "target" in event:
        true = momenta(event["target"])
        scatter("o", "truth target", true.eta, true.phi, _area(true.energy, 2.0), "black", "none", 0.9)
    found = momenta(candidates)
    for label, (color, marker) in list(enumerate(CLASS_MARKS))[1:]:
        if len(some := found.select(found.label == label)):
            scatter(marker, CLASS_NAMES[label], some.eta, some.phi, _area(some.energy, 1.0), color, color, 0)
    axes.set(xlim=(-_ETA_RANGE, _ETA_RANGE), ylim=(-np.pi, np.pi), xlabel=r"$\eta$", ylabel=r"$\phi$ [rad]")
    axes.set_yticks([-np.pi, -np.pi / 2, 0, np.pi / 2, np.pi], [r"$-\pi$", r"$-\pi/2$", "0", r"$\pi/2$", r"$\pi$"])
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, columnspacing=1.0, handletextpad=0.2,
        fontsize=10, title=plain(title), alignment="left",
    )  # fmt: skip
    return figure


def _area(energy: npt.NDArray[Any], scale: float) -> Floats:
    """Marker area in points squared: a constant to be seen, and a part that grows with the energy in GeV."""
    return np.asarray(scale * (10.0 + 14.0 * np.maximum(energy.astype(np.float64), 0.0) ** 0.75))


_POINTS = f"Bars are 68 % intervals; bins with fewer than {MIN_ENTRIES} entries are left out."
#: The bins of 2 GeV are too fine for a fraction.
_JET_PT_EDGES = np.array([0.0, 10, 20, 30, 40, 50, 60, 70, 80, 100, 120, 150, 200])
_FIGURES: dict[str, list[dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("figures.toml").read_text("utf-8"))


class Picture(NamedTuple):
    """One figure to be drawn, unless there is too little: `lacks` says of what, if so."""

    key: str
    group: str
    title: str
    caption: str
    draw: Callable[[], Figure]
    lacks: str = ""


def pictures(books: Mapping[str, Book], metrics: Mapping[str, Mapping[str, Any]]) -> Iterator[Picture]:
    """The figures of one sample, of what was counted and measured for every reconstruction; none of what is empty."""
    asked: list[tuple[dict[str, Any], int, dict[str, str]]] = [(figure, 0, {}) for figure in _FIGURES["figure"]]
    asked += [
        (figure, label, {"name": name, "classes": f"{name.capitalize()}s", "slug": name.replace(" ", "_")})
        for label, name in list(enumerate(CLASS_NAMES))[1:]
        for figure in _FIGURES["class"]
    ]
    for figure, label, words in asked:
        if all(any(book[name].sum(flow=True) > 0 for book in books.values()) for name in figure["needs"]):
            yield from _Maker(books, metrics, figure, label, words).made()


@dataclass(frozen=True)
class _Maker:
    """Makes the pictures of one entry of the table, of all particles or of those of one label."""

    books: Mapping[str, Book]
    metrics: Mapping[str, Mapping[str, Any]]
    figure: Mapping[str, Any]
    label: int
    words: dict[str, str]

    def made(self) -> Iterator[Picture]:
        histograms = {name: book[self.figure["needs"][0]] for name, book in self.books.items()}
        look = self.figure.get("look", {})
        match self.figure["kind"]:
            case "distribution":
                axis, label = self.figure["axis"], self.figure["xlabel"]
                notes = {said: BY_KEY[key] for said, key in self.figure["notes"].items()}
                shown = {name: part.project(axis) for name, part in histograms.items()}
                yield self._distribution(shown, label, notes, self.metrics, **look)
            case "masses":
                named = dict.fromkeys(name for part in histograms.values() for name in part.axes["name"])
                notes = dict(zip(("median", "IQR/median"), MASS_METRICS, strict=True))
                for number, name in enumerate(named, start=1):
                    there = {key: part for key, part in histograms.items() if name in list(part.axes["name"])}
                    shown = {key: at(part, "name", name) for key, part in there.items()}
                    numbers = {key: (part.get("masses") or {}).get(name) or {} for key, part in self.metrics.items()}
                    maker = replace(self, words={"number": str(number), "name": name})
                    yield maker._distribution(shown, f"{plain(name)} mass [GeV]", notes, numbers, unit="GeV")
            case "binned":
                parts = self.metrics
                if self.label:
                    parts = {name: part.get("classes", {}).get(self.words["slug"], {}) for name, part in parts.items()}
                rows = {name: found for name in self.books if (found := parts.get(name, {}).get(self.figure["bins"]))}
                first: list[Any] = next(iter(rows.values()), [])
                of = self.figure["of"]
                edges = [*(row[f"lo_{of}"] for row in first), *(row[f"hi_{of}"] for row in first[-1:])]
                curves = {name: measured(found, self.figure["metric"]) for name, found in rows.items()}
                yield self._curves(edges, curves, self.figure["ylabel"], **look)
            case "fraction":
                share = partial(matched_fraction, axis=self.figure["axis"], matched=self.figure["matched"])
                curves = {name: share(part, edges=_JET_PT_EDGES) for name, part in histograms.items()}
                yield self._curves(_JET_PT_EDGES, curves, self.figure["ylabel"], fraction=True)
            case "rates":
                axis = self.figure["axis"]
                found, fakes = (
                    {
                        name: matched_fraction(at(book[side], "label", self.label), axis, matched=matched)
                        for name, book in self.books.items()
                    }
                    for side, matched in (("particle_truth", True), ("particle_reco", False))
                )
                edges = next(iter(histograms.values())).axes[axis].edges
                yield self._curves(edges, found, "efficiency", below=(fakes, "fake rate"), fraction=True, **look)
            case "missing_error":
                yield self._picture(partial(missing_error, histograms), _few(_entries(histograms) / 3, "events"))
            case "multiplicity":
                events = _entries(histograms) / len(LABELS)
                yield self._picture(partial(multiplicity, histograms), _few(events, "events", FEWEST_EVENTS))
            case "confusion":
                for number, (name, counted) in enumerate(histograms.items(), start=1):
                    maker = replace(self, words={"number": str(number), "name": display_name(name)})
                    yield maker._picture(partial(confusion, counted), _few(counted.sum(flow=True), "particles"))

    def _distribution(
        self, histograms: Book, label: str, notes: Mapping[str, Metric], metrics: Mapping[str, Any], **look: Any
    ) -> Picture:
        """One quantity; `notes` are the metrics that the legend tells, written as in the tables."""
        numbers = {
            name: "\n".join(f"{said} {written(metrics.get(name, {}).get(m.key), m)}" for said, m in notes.items())
            for name in self.books
        }
        drawn = partial(draw_distribution, histograms, label, numbers, **look)
        return self._picture(drawn, _few(_entries(histograms), "entries"), self._divided("lower panel divides"))

    def _curves(self, edges: Any, curves: Mapping[str, Curve], ylabel: str, **look: Any) -> Picture:
        """One quantity against another."""
        shown = [*curves.values(), *(look["below"][0].values() if "below" in look else ())]
        points = max((int(np.isfinite(curve.value).sum()) for curve in shown), default=0)
        xlabel = self.figure["xlabel"].format(**self.words)
        drawn = partial(draw_against, np.asarray(edges), curves, xlabel, ylabel, **look)
        divided = self._divided("narrow panels divide" if "below" in look else "lower panel divides")
        lacks = _few(points, f"of its bins hold {MIN_ENTRIES} entries", FEWEST_POINTS)
        return self._picture(drawn, lacks, f" {_POINTS}{divided}")

    def _divided(self, panel: str) -> str:
        reference = reference_of(self.books)
        return f" The {panel} by {display_name(reference)}." if reference else ""

    def _picture(self, draw: Callable[[], Figure], lacks: str, note: str = "") -> Picture:
        key, group, title, caption = (
            self.figure[name].format(**self.words) for name in ("key", "group", "title", "caption")
        )
        return Picture(key, group, title, caption + note, draw, lacks)


def _few(count: float, what: str, needed: int = FEWEST_ENTRIES) -> str:
    return f"{count:,.0f} {what}, and {needed} are needed" if count < needed else ""


def _entries(histograms: Book) -> float:
    return max((float(part.sum(flow=True)) for part in histograms.values()), default=0.0)
