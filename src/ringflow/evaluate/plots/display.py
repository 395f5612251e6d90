"""One event in the eta-phi plane: what the detector saw, the truth, and what a reconstruction made of it."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ringflow.evaluate.candidates import Floats
from ringflow.evaluate.plots.style import CLASS_MARKS, CLASS_NAMES, panels, plain, styled
from ringflow.event.block import Collection, EventBlock

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
