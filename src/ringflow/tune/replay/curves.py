"""Learning curves, the value of a trial by the events it was shown: recorded in studies, or drawn from a model of those.

    recorded = recorded_curves(Path("studies/first"))              # None: those that come with the package
    many = CurveModel(recorded.curves).draw(10_000, seed=1)        # like them, as many as one wants
    write_curves(Path("recorded.json"), [Path("studies/a"), Path("studies/b")], what="loss of clic_small, one H200")

The model is a power law per training, `floor + amplitude * share**-slope` with `share` the part of the whole training, and a
scatter of every validation around it. A drawn curve has the power law of one of the recorded ones, moved in its value at the
end, in how far it falls and in its slope by about as much as recorded curves differ. Scaling a curve keeps the value by share:
it assumes that a longer training of another network falls in the same way, which is all that short recordings tell.

A trial that was stopped has the beginning of a curve only. It is carried on as the others went on from there: by the median of
their values, each relative to its value at that place. What is written to a file is what was recorded, and nothing else.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringflow.base.errors import InputFileError
from ringflow.base.rundir import write_atomic
from ringflow.tune.folder import StudyFolder
from ringflow.tune.objective import ALIASES
from ringflow.tune.schedulers import ETA, Point

Array = NDArray[np.float64]

_SHIPPED = Path(__file__).with_name("recorded.json")
_HISTORY_FILE = "history.jsonl"
#: Hours of a whole trial on one device if nothing says otherwise: our choice, neither the best nor the worst for those that
#: grow; see `sensitivity` for others.
DEFAULT_HOURS = 2.0
#: Shares of the whole training at which modelled curves are drawn: a validation every factor of 1.25 or so.
_SHARES = np.geomspace(1e-3, 1.0, 32)
#: Where a curve has its fall before it.
_EARLY = 1.0 / 16.0
_SLOPES = np.linspace(0.05, 2.0, 40)
#: Places at which a curve is carried on: so many, evenly over the logarithm of the events.
_STEPS = 8
#: Part of the whole length that a curve must have to be a whole one; a training stops at the end of a step.
_WHOLE = 0.99


@dataclass(frozen=True)
class LearningCurve:
    """Values after so many events, in rising order of events; straight between them, level before and after."""

    events: Sequence[float]
    values: Sequence[float]

    def value(self, events: float) -> float:
        """After so many events."""
        after = bisect_left(self.events, events)
        if after == 0 or after == len(self.events):
            return self.values[min(after, len(self.values) - 1)]
        before, share = after - 1, (events - self.events[after - 1]) / (self.events[after] - self.events[after - 1])
        return (1.0 - share) * self.values[before] + share * self.values[after]

    def scaled(self, factor: float) -> LearningCurve:
        """The same values after so many times the events."""
        return LearningCurve([factor * place for place in self.events], self.values)


class Recorded(NamedTuple):
    """Trainings that were done, and how the study that did them went about it."""

    what: str
    #: Over one event in all: lengths of different studies do not compare.
    curves: list[LearningCurve]
    study: Path | None = None
    #: First rung as a part of the whole; None: as `ringflow tune` has it unless told.
    least_share: float | None = None
    eta: int = ETA
    #: Of a whole trial on one process.
    hours: float = DEFAULT_HOURS
    scheduler: str | None = None
    workers_per_trial: int = 1


def recorded_curves(study: Path | None) -> Recorded:
    """Of the first objective of a study, or those that come with the package. An error if no trial reported anything."""
    if study is None:
        return read_recorded(_SHIPPED)
    folder = StudyFolder(study)
    record, settings, ladder = folder.record(), folder.settings, folder.ladder
    most = float(folder.training.length.events)
    curves = [curve for _, curve in _curves_of(folder)]
    if not any(math.isfinite(curve.values[-1]) for curve in curves):
        raise InputFileError(f"no trial of {study} has reported a value; wait for it, or replay another study")
    events = sum(trial.resource for trial in record.trials)
    return Recorded(
        f"{settings.objectives[0]} of {len(curves)} trials of {study}",
        [curve.scaled(1.0 / most) for curve in carried_on(curves, most)],
        study,
        ladder.least / ladder.most,
        ladder.eta,
        (record.device_seconds / events * record.most / 3600.0 if events else 0.0) or DEFAULT_HOURS,
        settings.scheduler,
        settings.workers_per_trial,
    )


def _curves_of(folder: StudyFolder) -> list[tuple[Point, LearningCurve]]:
    """Trials that reported, with their validations where their run has them, or else with what they reported."""
    found = []
    objective = folder.settings.objectives[0]
    for trial in folder.record().trials:
        if not trial.reports:
            continue
        # None if the run was deleted to save space, or the figure is no validation's.
        points = _validations(folder.run(trial.number), ALIASES.get(objective, objective)) or sorted(
            {float(said.resource): said.value for said in trial.reports}.items()
        )
        if math.isnan(trial.reports[-1].value) and points[-1][0] < trial.resource:
            points.append((float(trial.resource), math.nan))
        found.append((trial.point, LearningCurve(*map(list, zip(*points, strict=True)))))
    return found


def _validations(run: Path, figure: str) -> list[tuple[float, float]]:
    """Events and values of a figure of the validations of a run, as far as they can be read."""
    try:
        lines = [json.loads(line) for line in (run / _HISTORY_FILE).read_text(encoding="utf-8").splitlines()]
        told = [(float(line["events"]), line.get(figure)) for line in lines if line["kind"] == "validation"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return sorted({events: float(value) for events, value in told if value is not None and events > 0}.items())


def read_recorded(path: Path) -> Recorded:
    """A file of `write_curves`."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    groups: dict[float, list[LearningCurve]] = {}
    for trial in kept["trials"]:
        values = [math.nan if value is None else float(value) for value in trial["value"]]
        groups.setdefault(float(trial["most"]), []).append(LearningCurve(trial["events"], values))
    curves = [c.scaled(1.0 / most) for most, found in groups.items() for c in carried_on(found, most)]
    return Recorded(str(kept["what"]), curves)


def write_curves(path: Path, studies: Sequence[Path], *, what: str) -> int:
    """Put the curves of all trials of studies into a file; their number."""
    trials: list[dict[str, Any]] = []
    for study in studies:
        folder = StudyFolder(study)
        most = folder.training.length.events
        for point, curve in _curves_of(folder):
            values = [float(f"{value:.6g}") if math.isfinite(value) else None for value in curve.values]
            events = [round(place) for place in curve.events]
            trials.append({"point": dict(point), "most": most, "events": events, "value": values})
    if not trials:
        raise InputFileError("no trial of these studies has reported a value; give studies that have run")
    lines = ",\n".join(map(json.dumps, trials))
    write_atomic(path, f'{{"what": {json.dumps(what)}, "trials": [\n{lines}\n]}}\n')
    return len(trials)


def carried_on(curves: Sequence[LearningCurve], most: float) -> list[LearningCurve]:
    """The same curves over the whole length; one that is not finite at its end stays as it is."""
    finite = [curve for curve in curves if math.isfinite(curve.values[-1])]
    whole = [curve for curve in finite if curve.events[-1] >= _WHOLE * most]

    def carried(curve: LearningCurve) -> LearningCurve:
        last, value = curve.events[-1], curve.values[-1]
        if last >= _WHOLE * most or not math.isfinite(value):
            return curve
        places = [last * (most / last) ** (step / _STEPS) for step in range(1, _STEPS + 1)]
        others = [other for other in whole if other.value(last) > 0.0]
        more = [
            value * median([other.value(place) / other.value(last) for other in others] or [1.0]) for place in places
        ]
        return LearningCurve([*curve.events, *places], [*curve.values, *more])

    return [carried(curve) for curve in curves]


def fit(curve: LearningCurve) -> tuple[float, float, float, float]:
    """The falling power law nearest to a curve, `end + fall * shape(share, slope)`, and the scatter of validations around it:
    end, fall, slope, scatter. For each of many slopes the end and the fall follow from a straight line."""
    shares, values = np.asarray(curve.events) / curve.events[-1], np.asarray(curve.values)
    best, least = (float(values.mean()), 0.0, 1.0, float(values.std())), math.inf
    for slope in _SLOPES:
        columns = np.stack([np.ones_like(shares), _shape(shares, slope)], axis=1)
        (end, fall), *_ = np.linalg.lstsq(columns, values, rcond=None)
        rest = columns @ [end, fall] - values
        squares = float((rest**2).sum())
        if fall >= 0.0 and squares < least:
            # By how much neighbours differ in what is left over: a law that does not fit is no noise.
            scatter = float(np.sqrt(np.mean(np.diff(rest[len(rest) // 2 :]) ** 2) / 2.0))
            best, least = (float(end), float(fall), float(slope), scatter), squares
    return best


def _shape(shares: Array, slope: float | Array) -> Array:
    """1 at the early share, 0 at the end."""
    shape: Array = (shares**-slope - 1.0) / (_EARLY**-slope - 1.0)
    return shape


class CurveModel:
    """Trainings like those that were recorded. One needs more than three validations, with finite values above 0, or it is
    left out."""

    def __init__(self, curves: Sequence[LearningCurve]) -> None:
        usable = [
            curve for curve in curves if len(curve.values) > 3 and all(0 < value < math.inf for value in curve.values)
        ]
        if len(usable) < 2:
            raise InputFileError(
                f"{len(usable)} curves with more than three validations are no model; give at least two"
            )
        #: End, fall, slope and scatter of each.
        self.laws = np.array([fit(curve) for curve in usable])

    def draw(self, count: int, *, seed: int, scatter: float = 1.0) -> list[LearningCurve]:
        """So many curves over one event in all. The scatter of validations is that of the recorded ones times `scatter`: with
        n times the events in a validation, about n**-0.5."""
        random = np.random.default_rng(seed)
        table = np.array([[math.log(end), *others] for end, *others in self.laws])
        chosen = table[random.integers(len(table), size=count)]
        # As wide as a kernel estimate of the density has it (Scott).
        width = table[:, :3].std(axis=0) * len(table) ** -0.2
        moved = chosen[:, :3] + random.normal(size=(count, 3)) * width
        end = np.exp(np.maximum(moved[:, 0], math.log(0.9) + table[:, 0].min()))  # none far below what was ever seen
        fall, slope = np.maximum(moved[:, 1], 0.0), np.clip(moved[:, 2], _SLOPES[0], _SLOPES[-1])
        values = end[:, None] + fall[:, None] * _shape(_SHARES, slope[:, None])
        values += random.normal(size=values.shape) * chosen[:, 3:] * scatter
        shares = _SHARES.tolist()
        return [LearningCurve(shares, row) for row in values.tolist()]
