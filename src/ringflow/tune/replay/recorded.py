"""Learning curves of real trainings: of the trials of studies, and those that come with the package.

    curves = study_curves(StudyFolder(Path("studies/first")))
    write_curves(Path("recorded.json"), [Path("studies/a"), Path("studies/b")], what="loss of clic_small, one H200")

A trial that was stopped has the beginning of a curve only. It is carried on as the others went on from there: by the median of
their values, each relative to its value at that place. What is written to a file is what was recorded, and nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ringflow.base.errors import InputFileError
from ringflow.base.rundir import write_atomic
from ringflow.tune.folder import StudyFolder
from ringflow.tune.objective import ALIASES
from ringflow.tune.record import TrialRecord
from ringflow.tune.replay.curves import Curve, read_curves

_SHIPPED = Path(__file__).with_name("recorded.json")
#: Places at which a curve is carried on: so many, evenly over the logarithm of the events.
_STEPS = 8
#: Part of the whole length that a curve must have to be a whole one; a training stops at the end of a step.
_WHOLE = 0.99


class Recorded(NamedTuple):
    """Curves of the trials of a study, each over the whole length."""

    what: str
    curves: list[Curve]
    #: Events of a trial that lives to the end.
    most: float


def shipped_curves() -> Recorded:
    """What comes with the package."""
    return read_recorded(_SHIPPED)


def read_recorded(path: Path) -> Recorded:
    """A file of `write_curves`. Lengths of different studies do not compare, so each curve has one event in all."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        groups: dict[float, list[Curve]] = {}
        for trial in kept["trials"]:
            most = float(trial.get("most", trial["events"][-1]))
            groups.setdefault(most, []).append(Curve(trial["events"], [_number(value) for value in trial["value"]]))
        what = str(kept["what"])
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror}; give a file of recorded curves") from error
    except (ValueError, KeyError, TypeError, IndexError):
        raise InputFileError(f"{path} holds no recorded curves; make it from studies again") from None
    whole = [curve.scaled(1.0 / most) for most, curves in groups.items() for curve in carried_on(curves, most)]
    return Recorded(what, whole, 1.0)


def study_curves(folder: StudyFolder) -> Recorded:
    """Curves of the first objective of a study. An error if no trial reported anything."""
    most = float(folder.training.length.events)
    curves = [curve for _, curve in _recorded(folder)]
    if not any(math.isfinite(curve.values[-1]) for curve in curves):
        raise InputFileError(f"no trial of {folder.path} has reported a value; wait for it, or replay another study")
    objective = folder.settings.objectives[0]
    what = f"{objective} of {len(curves)} trials of {folder.path}"
    return Recorded(what, carried_on(curves, most), most)


def write_curves(path: Path, studies: Sequence[Path], *, what: str) -> int:
    """Put the curves of all trials of studies into a file; their number."""
    trials: list[dict[str, Any]] = []
    for study in studies:
        folder = StudyFolder(study)
        most = folder.training.length.events
        for trial, curve in _recorded(folder):
            values = [float(f"{value:.6g}") if math.isfinite(value) else None for value in curve.values]
            events = [round(place) for place in curve.events]
            trials.append({"point": dict(trial.point), "most": most, "events": events, "value": values})
    if not trials:
        raise InputFileError("no trial of these studies has reported a value; give studies that have run")
    lines = ",\n".join(map(json.dumps, trials))
    write_atomic(path, f'{{"what": {json.dumps(what)}, "trials": [\n{lines}\n]}}\n')
    return len(trials)


def _recorded(folder: StudyFolder) -> list[tuple[TrialRecord, Curve]]:
    """Trials that reported, with their validations where their run has them, or else with what they reported."""
    found = []
    objective = folder.settings.objectives[0]
    for trial in folder.record().trials:
        if not trial.reports:
            continue
        try:
            (curve,) = read_curves([folder.run(trial.number)], ALIASES.get(objective, objective))
        except InputFileError:  # the run was deleted to save space, or the figure is no validation's
            points = sorted({said.resource: said.value for said in trial.reports}.items())
            curve = Curve([float(events) for events, _ in points], [value for _, value in points])
        if math.isnan(trial.reports[-1].value) and curve.events[-1] < trial.resource:
            curve = Curve([*curve.events, float(trial.resource)], [*curve.values, math.nan])
        found.append((trial, curve))
    return found


def carried_on(curves: Sequence[Curve], most: float) -> list[Curve]:
    """The same curves over the whole length; one that is not finite at its end stays as it is."""
    whole = [curve for curve in curves if curve.events[-1] >= _WHOLE * most and math.isfinite(curve.values[-1])]
    return [
        curve
        if curve.events[-1] >= _WHOLE * most or not math.isfinite(curve.values[-1])
        else _carry(curve, most, whole)
        for curve in curves
    ]


def _carry(curve: Curve, most: float, whole: Sequence[Curve]) -> Curve:
    last, value = curve.events[-1], curve.values[-1]
    places = [last * (most / last) ** (step / _STEPS) for step in range(1, _STEPS + 1)]
    others = [other for other in whole if other.value(last) > 0.0]
    factors = [
        median(other.value(place) / other.value(last) for other in others) if others else 1.0 for place in places
    ]
    return Curve([*curve.events, *places], [*curve.values, *(value * factor for factor in factors)])


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
