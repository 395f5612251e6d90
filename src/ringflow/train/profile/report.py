"""The page of a training's profile: `report.html`, which needs nothing else, made from the files beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ringflow.base.page import Shown, inline, render
from ringflow.base.rundir import write_atomic
from ringflow.base.words import size_in_words
from ringflow.evaluate.plots.style import png
from ringflow.train.profile.folder import STEPS_FILE, SUMMARY_FILE
from ringflow.train.profile.plots import COLORS, lateness, phase_bars, phase_history, step_histogram
from ringflow.train.profile.summary import steady
from ringflow.train.profile.table import KINDS, StepTable, read_table

PAGE_FILE = "report.html"
_TEMPLATE = Path(__file__).parents[1] / "templates" / "profile.html.j2"


class _Drawing(NamedTuple):
    title: str
    caption: str
    draw: Callable[[StepTable], Figure]


_BARS = _Drawing(
    "Where the time goes",
    "Mean time of a step per rank. Idle: waiting until the last rank is there. Communication: only what holds the step up, "
    "not what the backward hides. Other: everything that is in no phase.",
    phase_bars,
)
_LATE = _Drawing(
    "Who is waited for",
    "How much later than the others a rank comes to where all meet. Mark: half of the steps are below; bar: the middle half of "
    "the steps; line: nine of ten.",
    lateness,
)
_HISTORY = _Drawing("Step after step", "Time per phase, the mean over all ranks.", phase_history)
_HISTOGRAM = _Drawing("How long steps take", "The slowest percent is in the last bin.", step_histogram)


def write_profile_report(folder: Path) -> Path:
    """Make the page of a profile from its table and its summary; returns its path."""
    table = steady(read_table(folder / STEPS_FILE))
    summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
    drawings = [_BARS, *([_LATE] if table.num_ranks > 1 else []), _HISTORY, _HISTOGRAM]
    page = folder / PAGE_FILE
    write_atomic(page, _render(summary, [_image(drawing, table) for drawing in drawings]))
    return page


def _render(summary: Mapping[str, Any], images: list[Shown]) -> str:
    return render(
        _TEMPLATE,
        summary=summary,
        headline=headline(summary),
        sentences=sentences(summary),
        kinds=KINDS,
        look_colors=[COLORS[kind] for kind in KINDS],
        images=images,
        size=size_in_words,
    )


def _image(drawing: _Drawing, table: StepTable) -> Shown:
    return Shown(drawing.title, drawing.caption, inline(png(drawing.draw(table))))


def headline(summary: Mapping[str, Any]) -> str:
    """The one thing to know."""
    step = mean_of_ranks(summary, "step_ms")
    if summary["stragglers"]:
        names = " and ".join(f"rank {one['rank']}" for one in summary["stragglers"])
        return f"The others wait for {names}"
    useful = sum(mean_of_ranks(summary, f"{kind}_share") for kind in ("forward", "backward", "optimizer"))
    return f"A step takes {step:.3g} ms, {100 * useful:.0f} % of it to compute"


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """What the numbers say."""
    share = {kind: mean_of_ranks(summary, f"{kind}_share") for kind in KINDS}
    parts = ", ".join(f"{kind} {100 * share[kind]:.0f} %" for kind in sorted(KINDS, key=lambda kind: -share[kind]))
    said = [one["text"][0].upper() + one["text"][1:] + "." for one in summary["stragglers"]]
    said.append(f"A step takes {mean_of_ranks(summary, 'step_ms'):.3g} ms on average: {parts}.")
    if summary["processes"] > 1:
        if not summary["stragglers"]:
            said.append("No rank is waited for markedly more often than the others.")
        if summary["gradient_bytes"] is not None:
            hidden, exposed = mean_of_ranks(summary, "hidden_ms"), mean_of_ranks(summary, "communication_ms")
            behind = f"{hidden:.3g} ms" if hidden >= 0.01 else "Nothing"
            said.append(
                f"{behind} of the communication is hidden behind the backward, {exposed:.3g} ms hold a step up."
            )
        said += _byte_sentences(summary)
    return said


def _byte_sentences(summary: Mapping[str, Any]) -> list[str]:
    if any(rank["sent_bytes"] is None for rank in summary["ranks"]):
        return [f"Bytes are not counted: {summary['no_bytes_because']}."]
    sent, expected = mean_of_ranks(summary, "sent_bytes"), summary["ring_bytes_per_step"]
    text = f"A rank sends {size_in_words(sent)} per step"
    if expected is None:
        return [f"{text}."]
    return [
        f"{text}, {sent / expected:.3f} times the 2(N-1)K/N = {size_in_words(expected)} that a ring needs to add up "
        f"{size_in_words(summary['gradient_bytes'])} of gradients."
    ]


def mean_of_ranks(summary: Mapping[str, Any], name: str) -> float:
    """The mean of a value over ranks."""
    ranks = summary["ranks"]
    return float(sum(rank[name] for rank in ranks) / len(ranks))
