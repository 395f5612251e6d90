"""The report of a study: one HTML page that needs nothing else, by default `STUDY/report/index.html`.

Pictures are drawn here, so that the page is whole without scripts; a small script of its own lets trials be pointed at, chosen
and sorted. Nothing is loaded from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from ringflow.base import page as pages
from ringflow.base.errors import RingflowError
from ringflow.base.page import PAGE_FILE
from ringflow.base.rundir import prepare, write_atomic
from ringflow.base.words import flat, time_in_words
from ringflow.tune.best import front_of
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import TrialRecord
from ringflow.tune.report import flow, plots
from ringflow.tune.report.chart import number, words
from ringflow.tune.report.data import STATES, StudyView
from ringflow.tune.report.importance import FEWEST, importances

REPORT_FOLDER = "report"
#: Trials in the table of the page as it is written, and in a page of it when it is sorted.
TABLE_ROWS = 200
_OWN = Path(__file__).parent / "templates"


class Picture(NamedTuple):
    """A drawing in the page."""

    title: str
    caption: str
    drawing: Markup
    wide: bool = False


def write_report(study: Path, out: Path | None = None) -> Path:
    """Write the page into the folder `out`; the path of the page."""
    folder = StudyFolder(study)
    view = StudyView(folder, folder.record())
    out = prepare(out or study / REPORT_FOLDER, marks=(PAGE_FILE,))
    page = out / PAGE_FILE
    write_atomic(page, render(view))
    return page


def render(view: StudyView) -> str:
    """The page of a study, finished or not."""
    script = (_OWN / "study.js").read_text(encoding="utf-8")
    return pages.render(
        _OWN / "study.html.j2",
        number=number,
        words=words,
        finite=math.isfinite,
        span=time_in_words,
        hours=flow.hours,
        view=view,
        name=view.folder.path.absolute().name,
        settings=view.folder.settings,
        states=STATES,
        parameters=view.folder.space.parameters,
        first=view.against_first(),
        middle=view.against_median(),
        saving=view.saving(),
        importances=_importances(view),
        history=_how_it_went(view) if view.values else [],
        slices=[Picture(name, "", Markup(drawing)) for name, drawing in plots.slices(view)] if view.values else [],
        parallel=Markup(flow.parallel(view)) if view.values else "",
        parallel_most=flow.MOST_PARALLEL,
        costs=_costs(view),
        pareto=_pareto(view) if len(view.objectives) > 1 and view.values else None,
        rows=best_first(view)[:TABLE_ROWS],
        failures=[trial for trial in view.trials if trial.reason][-TABLE_ROWS:],
        failed=sum(1 for trial in view.trials if trial.reason),
        provenance=dict(_provenance(view.folder)),
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=Markup(json.dumps(view.data(), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")),
    )


def best_first(view: StudyView) -> list[TrialRecord]:
    """All trials: those that lived to the end, then the others, each by value; those without one last."""

    def place(trial: TrialRecord) -> tuple[bool, bool, float, int]:
        told = view.values.get(trial.number)
        return told is None, trial.state != "complete", told[0] if told else 0.0, trial.number

    return sorted(view.trials, key=place)


def _how_it_went(view: StudyView) -> list[Picture]:
    name = view.objectives[0]
    drawn = [
        Picture(
            "History",
            f"Last {name} of every trial, in the order in which they began. Line: the best so far, of trials that lived to the "
            "end if any did. A cross was stopped early, a diamond goes on, a plus failed later; what is far above is marked at "
            "the edge.",
            Markup(plots.history(view)),
        ),
        Picture(
            "Learning curves",
            f"{name} at every rung that a trial came to."
            + (f" Of {len(view.trials):,} trials {plots.MOST_LINES} are drawn: those that came furthest, and some others."
               if len(view.trials) > plots.MOST_LINES else ""),
            Markup(plots.curves(view)),
        ),
    ]  # fmt: skip
    if len(view.rungs) > 1:
        resized = any(len({report.workers for report in trial.reports}) > 1 for trial in view.trials)
        caption = (
            "Trials at every rung, the best on top. A line is a trial that went on to the next rung. A cross was stopped, a "
            "diamond is put aside or on its way, a plus failed later."
        )
        if resized:
            caption += " A line is the thicker the more processes the trial had; small numbers say where it got more."
        climbers = sum(1 for climb in view.climbs if len(climb) > 1)
        if climbers > flow.MOST_CLIMBS:
            caption += (
                f" Of {climbers:,} lines {flow.MOST_CLIMBS} are drawn: those that came furthest, and some others."
            )
        drawn.append(Picture("Rungs", caption, Markup(flow.rung_diagram(view)), wide=True))
    return drawn


def _costs(view: StudyView) -> list[Picture]:
    if not any(trial.segments for trial in view.trials):
        return []
    return [
        Picture(
            "Processes",
            "Which trial had which process when. Gaps are starts of trainings, and processes that nobody used.",
            Markup(flow.timeline(view)),
            wide=True,
        ),
        Picture(
            "Device-hours by rung",
            "What it took to climb to each rung, split by what became of the trials.",
            Markup(flow.cost_bars(view)),
        ),
    ]


def _importances(view: StudyView) -> dict[str, Any]:
    """The bars, or a sentence that says why there are none."""
    found = importances(view.folder.space, view.trials)
    if not found:
        return {"note": f"Importances need at least {FEWEST} trials that reported a value."}
    if not any(found.values()):
        return {"note": "No setting made a difference."}
    return {"drawing": Markup(plots.importance_bars(found)), "trials": sum(1 for trial in view.trials if trial.reports)}


def _pareto(view: StudyView) -> dict[str, Any]:
    front = front_of(view.trials, view.objectives)
    rows = list(zip(front.trials, front.values.tolist(), strict=True))
    drawings = [Markup(drawing) for drawing in plots.pareto_plots(view, front)]
    return {"front": front, "rows": rows[:TABLE_ROWS], "drawings": drawings}


def _provenance(folder: StudyFolder) -> Iterator[tuple[str, str]]:
    try:
        yield from ((name, words(value)) for name, value in flat(folder.origin) if value is not None)
    except RingflowError as error:
        yield "origin", str(error)
