"""What earlier studies know: their trials, for a search that begins.

    known = earlier_trials([Path("studies/first")], space, settings)

Their numbers are negative, -1 the newest, so that a search tells them from its own: it learns which of them were better than
which, whatever the scale of their values is (see `search.history`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.tune.folder import StudyFolder
from ringflow.tune.objective import ALIASES
from ringflow.tune.record import TrialRecord
from ringflow.tune.scalar import ranks
from ringflow.tune.schedulers import Finished
from ringflow.tune.search.expected import expected_ends
from ringflow.tune.settings import StudySettings
from ringflow.tune.space import Space


def earlier_trials(studies: Sequence[Path], space: Space, settings: StudySettings) -> list[Finished]:
    """The trials of several studies that say something about the objectives in a space; see `earlier`."""
    found = [earlier(path, space, *settings.objectives) for path in studies]
    if len(found) > 1:  # their values may mean different things, but the best of each is the best of each
        found = [_scaled(trials) for trials in found]
    together = [trial for trials in found for trial in trials]
    return [replace(trial, trial=number - len(together)) for number, trial in enumerate(together)]


def earlier(path: Path, space: Space, objective: str, *others: str) -> list[Finished]:
    """The trials of a study that are points of a space and have a value of all objectives, the oldest first.

    Those that were stopped are among them, those that never reported are not. An error if there is no study, or none of its
    trials can be used.
    """
    study = StudyFolder(path)
    told = [trial for trial in study.record().trials if trial.reports]
    inside = [trial for trial in told if space.holds(trial.point)]
    found, missing = [], set()
    for trial in inside:
        values = {name: _value(study, trial, name) for name in (objective, *others)}
        measured = [value for value in values.values() if value is not None]
        missing |= {name for name, value in values.items() if value is None}
        if len(measured) == len(values):
            way = trial.earlier_values if objective == study.settings.objectives[0] else ()
            several = tuple(measured) if others else ()
            whole = trial.state == "complete"
            found.append(Finished(0, trial.point, measured[0], trial.resource, whole, way, several))
    lacking = " or ".join(sorted(missing)) or objective
    left_out = (
        f"{len(told) - len(inside)} of {len(told)} are not of this space, {len(inside) - len(found)} have no {lacking}"
    )
    if not any(math.isfinite(trial.value or 0.0) for trial in found):
        why = left_out if told else "none of its trials reported anything"
        raise UsageError(f"nothing can be learned from {path}: {why}; give a study of the same settings, or none")
    if len(found) < len(told):
        say(f"{path}: {len(found)} trials to learn from; {left_out}")
    return [replace(trial, trial=number - len(found)) for number, trial in enumerate(found)]


def _value(study: StudyFolder, trial: TrialRecord, objective: str) -> float | None:
    """The last value of an objective, NaN if the training diverged; None if it was not measured."""
    if objective == study.settings.objectives[0] or (trial.value is not None and math.isnan(trial.value)):
        return trial.value
    return trial.figures.get(ALIASES.get(objective, objective))


def _scaled(trials: Sequence[Finished]) -> list[Finished]:
    """Values on a scale of their study: -1 the best, 0 the median; of several objectives ranks."""
    ranked = ranks(trials)
    ends = expected_ends(trials)
    values = [value for value in ends if math.isfinite(value)]
    middle = median(values) if values else 0.0
    width = (middle - min(values) if values else 0.0) or 1.0
    return [
        replace(trial, value=(end - middle) / width, earlier=(), values=ranked.get(trial.trial, trial.values))
        for trial, end in zip(trials, ends, strict=True)
    ]
